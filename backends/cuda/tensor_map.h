// tensor_map.h: what the copy engine reads boxes of a matrix by.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

struct MappedMatrix {
  CUtensorMapDataType type;
  const std::byte* data;          // aligned to 16
  std::int64_t cols, rows;
  std::int64_t stride;            // bytes, a multiple of 16
  int box_cols, box_rows;         // what lies outside the matrix is zero
  CUtensorMapSwizzle swizzle;
  // So many boxes side by side come at once, one behind the other (copy_boxes); over 1: cols is a multiple of box_cols.
  int box_tiles = 1;
  int element_bytes = 1;          // of `type`; for box_tiles over 1
};
bool has_tensor_maps();  // whether the driver makes them
// Throws Error(internal).
CUtensorMap tensor_map(const MappedMatrix& m);

}  // namespace nibble::cuda
