// stream.h: the backend's stream, and what it enqueues and reads.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <span>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/loaded.h"

namespace nibble::cuda {

struct CudaBackend::Stream {
  Stream() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream; }
  cudaStream_t stream = nullptr;
};

// Enqueues a step's kernels; `after` is called behind each op. Throws Error(internal) that names
// the op.
void enqueue(Loaded& loaded, const BoundProgram& program,
             const std::function<void(std::size_t op)>& after);

// Captures the program into its graph and counts its kernels.
void capture(Loaded& loaded, BoundProgram& program);

// Keys and values at the first `positions` of a page table.
HostState::KvLayer read_pages(const KvLayerView& state, std::span<const std::int32_t> pages,
                              std::int64_t positions);

}  // namespace nibble::cuda
