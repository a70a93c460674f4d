// shared_memory.h: what a block may ask for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace nibble::cuda {

// Bytes of shared memory of a block at most, on the card that is chosen; 0 where there is none.
inline std::size_t most_shared() {
  int card = 0, bytes = 0;
  if (cudaGetDevice(&card) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, card) != cudaSuccess) return 0;
  return static_cast<std::size_t>(bytes);
}

}  // namespace nibble::cuda
