// synthetic.h: weights from a random generator, for measuring speed and for tests without files.
//
// A matrix is made when a backend asks (Weight::materialize), belongs to the Weight that holds it, and
// depends on the seed, its name and its shape only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace nibble {

// embed_tokens, the small in_proj_a and in_proj_b, and the gates of a mixture of experts stay BF16 in the first two, as in published
// checkpoints; so does a matrix whose columns are no multiple of 16.
enum class SyntheticFormat : std::uint8_t {
  nvfp4,               // every other matrix NVFP4, W4A4 declared
  mlp_nvfp4_rest_fp8,  // NVFP4 in scopes called mlp, FP8 with row scales elsewhere
  bf16,
  f32,
};

struct SyntheticPolicy {
  SyntheticFormat format = SyntheticFormat::nvfp4;
  std::vector<std::string> absent;  // scopes for which has() says no: "lm_head" when tied, "mtp"
};

// By the names that the command line uses: "nvfp4", "mlp-nvfp4-rest-fp8", "bf16", "f32".
SyntheticPolicy synthetic_policy(std::string_view mix);

class SyntheticSource final : public TensorSource {
 public:
  explicit SyntheticSource(std::uint64_t seed, SyntheticPolicy policy = {});

  const TensorInfo* find(std::string_view) const override { return nullptr; }
  std::span<const TensorInfo> tensors() const override { return {}; }
  bool has(std::string_view scope) const override;
  std::string describe() const override { return "synthetic weights"; }
  bool synthetic() const override { return true; }
  std::shared_ptr<const void> owner(const TensorInfo&) const override { return nullptr; }

  std::optional<Weight> make_matrix(std::string_view scope, std::int64_t rows,
                                    std::int64_t cols) const override;
  std::optional<std::vector<float>> make_tensor(
      std::string_view name, const std::vector<std::int64_t>& shape, bool folded) const override;

 private:
  WeightFormat format_of(std::string_view scope, std::int64_t cols) const;

  std::uint64_t seed_;
  SyntheticPolicy policy_;
};

}  // namespace nibble
