// weights.h: a scope inside a checkpoint, as model files use it:
//   weights / "model.layers" / 3 / "mlp" / "gate_proj"
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/quant_config.h"
#include "core/checkpoint/tensor_source.h"
#include "core/checkpoint/weight.h"

namespace nibble {

// What became of the tensors of a checkpoint.
struct BindReport {
  std::size_t bound = 0;
  std::vector<std::string> skipped;  // one line for each group that is left out knowingly
  std::vector<std::string> unbound;  // tensors that nobody asked for
  std::vector<std::string> twice;    // tensors bound more than once
};

// What a model makes of a small tensor, once, at load (see docs/numerics.md).
enum class Fold : std::uint8_t {
  none,
  one_plus,  // float32(1 + w): the factor of a zero-centred norm
  neg_exp,   // -exp(w), in double, rounded once
};

// Copies are cheap and share one record of what was bound. Safe from any thread.
class Weights {
 public:
  // Model files write "model.layers", "lm_head" and "mtp" whatever prefix the checkpoint uses.
  static Weights root(std::shared_ptr<const TensorSource> source, QuantConfig config = {});

  Weights operator/(std::string_view name) const;
  Weights operator/(int index) const;
  bool has(std::string_view name) const;             // any tensor `scope.name` or `scope.name.*`
  const std::string& path() const { return path_; }     // as the checkpoint spells it
  const std::string& name() const { return logical_; }  // as model files spell it

  // `<scope>.weight` in any stored format. Throws Error(not_found) with the names looked for,
  // Error(bad_file) with tensor, expected and found, Error(unsupported) for other formats.
  Weight matrix(std::int64_t rows, std::int64_t cols) const;
  // The same for a matrix that somebody else binds too, such as a tied head.
  Weight shared_matrix(std::int64_t rows, std::int64_t cols) const;

  // `<scope>` itself or `<scope>.weight` [count, rows, cols], F32, F16 or BF16: matrices one behind the
  // other, as one of count * rows (row_runs.h takes it apart).
  Weight stacked_matrix(std::int64_t count, std::int64_t rows, std::int64_t cols) const;

  // `<scope>` itself or `<scope>.weight`, F32, F16 or BF16, widened exactly. Throws
  // Error(bad_file) for values that are not finite; those of a matrix a backend checks (finite.h).
  // A file that holds the values folded already (GGUF does) gives them as they are.
  std::vector<float> vector(std::int64_t n, Fold fold = Fold::none) const { return tensor({n}, fold); }
  std::vector<float> tensor(const std::vector<std::int64_t>& shape, Fold fold = Fold::none) const;

  // What vector() and tensor() read from files so far, in that order; they live with the source.
  std::vector<const TensorInfo*> vectors() const;

  BindReport report() const;
  // Throws Error(bad_file) naming a few tensors that nobody asked for; returns BindReport::skipped.
  std::vector<std::string> finish() const;

 private:
  struct Shared;
  Weights(std::shared_ptr<Shared> shared, std::string logical);

  const TensorInfo* find(std::string_view suffix) const;  // of path_ + suffix
  void bind(const std::string& name, bool shared) const;
  Weight read_matrix(std::int64_t rows, std::int64_t cols, bool shared) const;
  void read_plain(const TensorInfo& weight, Weight& out) const;
  void read_fp8(const TensorInfo& weight, Weight& out, bool shared) const;
  void read_nvfp4(const TensorInfo& codes, Weight& out, bool shared) const;
  void read_decoded(const TensorInfo& weight, Weight& out, bool shared) const;
  void read_activation(Weight& out, bool shared) const;
  std::vector<float> scales(const TensorInfo& t, bool shared) const;
  float scalar(const TensorInfo& t, bool divisor, bool shared) const;
  void expect(const TensorInfo& t, std::initializer_list<DType> dtypes,
              const std::vector<std::int64_t>& shape) const;
  [[noreturn]] void wrong(const TensorInfo& t, const std::string& expected) const;
  [[noreturn]] void wrong(const TensorInfo& t, const std::string& expected,
                          const std::string& found) const;
  [[noreturn]] void missing(std::initializer_list<std::string_view> suffixes) const;
  // A tensor that `beside` cannot do without.
  [[noreturn]] void lacks(const TensorInfo& beside,
                          std::initializer_list<std::string_view> suffixes) const;
  std::vector<std::string> aliases() const;
  std::string origin(const TensorInfo& t) const;  // for errors: file and tensor

  std::shared_ptr<Shared> shared_;
  std::string logical_;  // as model files spell it
  std::string path_;
};

}  // namespace nibble
