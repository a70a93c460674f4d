// launch_early.h: a launch that may begin while the one before it on the stream still runs.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace nibble::cuda {

// Such a kernel calls wait_for_launches_before() (device/sm90.cuh) before it reads what others write, or writes at all.
// Captured, it is the same in a graph.
template <class... Params, class... Args>
cudaError_t launch_early(void (*kernel)(Params...), dim3 blocks, unsigned threads, unsigned shared, cudaStream_t stream,
                         Args&&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = blocks;
  how.blockDim = dim3(threads);
  how.dynamicSmemBytes = shared;
  how.stream = stream;
  how.attrs = &early;
  how.numAttrs = 1;
  return cudaLaunchKernelEx(&how, kernel, std::forward<Args>(args)...);
}

}  // namespace nibble::cuda
