// check.h: what a failed CUDA call becomes.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "nibble/error.h"

namespace nibble::cuda {

[[noreturn]] inline void fail(cudaError_t status, const std::string& what) {
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::internal;
  throw Error(code, "[cuda] " + what + ": " + cudaGetErrorString(status) + " (" +
                        cudaGetErrorName(status) + ")");
}

inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(status, what);
}

}  // namespace nibble::cuda
