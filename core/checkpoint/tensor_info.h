// tensor_info.h: one tensor inside a checkpoint file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/dtype.h"

namespace nibble {

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // outermost first; empty for a scalar
  Bytes bytes;                      // may be unaligned: read with load_le or memcpy
};

std::string shape_text(const std::vector<std::int64_t>& shape);  // "[768, 256]"
std::string tensor_text(const TensorInfo& t);                    // "BF16 [768, 256]"

// A name from a hostile file made fit for an error message: quoted, control characters escaped,
// cut where it is very long.
std::string show_name(std::string_view name);

// Finds names in a fixed list of tensors by binary search; holds positions only, so that the list
// may move.
class NameIndex {
 public:
  NameIndex() = default;
  explicit NameIndex(const std::vector<TensorInfo>& tensors);

  const TensorInfo* find(const std::vector<TensorInfo>& tensors, std::string_view name) const;
  // Any tensor called `scope`, or `scope.` and something.
  bool has(const std::vector<TensorInfo>& tensors, std::string_view scope) const;

 private:
  std::vector<std::uint32_t>::const_iterator lower(const std::vector<TensorInfo>& tensors,
                                                   std::string_view name) const;
  std::vector<std::uint32_t> order_;
};

}  // namespace nibble
