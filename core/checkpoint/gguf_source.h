// gguf_source.h: the tensors of a GGUF model under the names, shapes and order of heads of a
// Hugging Face checkpoint, by a table that the architecture writes.
//
// F32, F16 and BF16 matrices lie in the file as a Weight holds them and stay mapped. Decoded when a
// backend asks: NVFP4 (blocks of 64 hold scales and codes together, in another order of nibbles),
// Q8_0 (int8 times an f16 scale is exact in float32: a matrix of f32), and any matrix whose heads
// lie in another order.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/checkpoint/gguf_model.h"
#include "core/checkpoint/tensor_source.h"

namespace nibble {

// Heads that the file keeps "tiled" (all key groups' first value head, then all second, ...) and
// the model grouped by key head: head k * each + j of the model is head j * keys + k of the file.
struct GgufHeads {
  enum class Axis : std::uint8_t { none, rows, columns };
  Axis axis = Axis::none;
  std::int64_t first = 0;  // rows or columns before them stay
  std::int64_t unit = 1;   // rows or columns of a head
  std::int64_t keys = 1, each = 1;

  // Where the file has the row or column that the model calls `at`.
  std::int64_t stored(std::int64_t at) const;
  bool moves() const { return axis != Axis::none && keys > 1 && each > 1; }
};

struct GgufBinding {
  std::string stored, name;
  bool folded = false;  // holds 1 + w or -exp(A_log)
  GgufHeads heads = {};
  bool middle_axis = false;  // [C, n] of the file is [C, 1, n]
};

// Everything that a model needs of a GGUF file.
struct GgufPlan {
  Json config;  // as config.json
  std::vector<GgufBinding> tensors;
};

// A row of the architectures' table.
struct GgufArchitecture {
  const char* name;  // general.architecture
  GgufPlan (*plan)(const GgufModel& model);
};

class GgufSource final : public TensorSource {
 public:
  // Throws Error(bad_file) for a tensor that no binding names, Error(unsupported) for a type that
  // is not read.
  GgufSource(std::shared_ptr<const GgufModel> model, std::vector<GgufBinding> bindings);

  const TensorInfo* find(std::string_view name) const override { return index_.find(infos_, name); }
  std::span<const TensorInfo> tensors() const override { return infos_; }
  bool has(std::string_view scope) const override { return index_.has(infos_, scope); }
  std::string describe() const override { return model_->source(); }
  std::shared_ptr<const void> owner(const TensorInfo& t) const override;
  std::string file_of(const TensorInfo& t) const override;
  std::string spelled(std::string_view name) const override;
  std::string stored(const TensorInfo& t) const override;
  bool folded(const TensorInfo& t) const override { return binding(t).folded; }
  void reorder(const TensorInfo& t, std::vector<float>& values) const override;
  bool decoded_at_load(const TensorInfo& t, Weight& out) const override;
  std::vector<std::string> notes() const override;

  std::vector<std::string> formats() const;  // "Q8_0: 12 tensors", for people

 private:
  std::size_t place(const TensorInfo& t) const {
    return static_cast<std::size_t>(&t - infos_.data());
  }
  const GgufBinding& binding(const TensorInfo& t) const { return bindings_[of_[place(t)]]; }
  const GgufModel::Stored& in_file(const TensorInfo& t) const {
    return model_->tensors()[place(t)];
  }

  std::shared_ptr<const GgufModel> model_;
  std::vector<GgufBinding> bindings_;
  std::vector<TensorInfo> infos_;  // one for each of model_->tensors(), in their order
  std::vector<std::size_t> of_;    // its binding
  NameIndex index_;
  std::unordered_map<std::string, std::size_t> by_name_;  // bindings by our name
};

}  // namespace nibble
