// tensor_source.h: where weights come from: a folder of files, a GGUF file, or a generator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/tensor_info.h"
#include "core/checkpoint/weight.h"

namespace nibble {

// Names are those of Hugging Face checkpoints. Immutable, safe from any thread.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const TensorInfo* find(std::string_view name) const = 0;
  virtual std::span<const TensorInfo> tensors() const = 0;  // fixed for the life of the source
  virtual bool has(std::string_view scope) const = 0;       // `scope` itself or `scope.anything`
  virtual std::string describe() const = 0;                 // for errors: a path, or "synthetic"
  virtual bool synthetic() const { return false; }

  // Keeps the bytes of `tensor` (one of tensors()) alive.
  virtual std::shared_ptr<const void> owner(const TensorInfo& tensor) const = 0;
  // The file that holds it, for errors.
  virtual std::string file_of(const TensorInfo&) const { return describe(); }

  // For sources that keep tensors in another form than Hugging Face's; errors use the first two.
  // The file's own name for one of ours, and its type and shape.
  virtual std::string spelled(std::string_view name) const { return std::string(name); }
  virtual std::string stored(const TensorInfo& t) const { return tensor_text(t); }
  // True where the file holds what models make of a tensor (Fold), not the tensor.
  virtual bool folded(const TensorInfo&) const { return false; }
  // Values in the file's order, put into the model's.
  virtual void reorder(const TensorInfo&, std::vector<float>&) const {}
  // True for a matrix that does not lie in the file as a Weight holds it: `out` has its format and
  // materialize then; an NVFP4 matrix has no tensor of block scales and may lack the tensor scale.
  virtual bool decoded_at_load(const TensorInfo&, Weight&) const { return false; }
  // What a person should know of how it is read, a line each.
  virtual std::vector<std::string> notes() const { return {}; }

  // A source whose weights do not lie in files as such makes them here; nothing means: read the
  // tensors. `scope` is the name without ".weight".
  virtual std::optional<Weight> make_matrix(std::string_view, std::int64_t, std::int64_t) const {
    return std::nullopt;
  }
  // `folded`: a model makes something else of it (Fold), so that it is no factor as it stands.
  virtual std::optional<std::vector<float>> make_tensor(std::string_view, const std::vector<std::int64_t>&,
                                                        bool /*folded*/) const {
    return std::nullopt;
  }
};

}  // namespace nibble
