// cublas_peer.h: cuBLAS as the thing to compare with. It is looked for when a bench runs: nothing links it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace nibble::cuda {

class CublasPeer {
 public:
  static constexpr std::uint64_t kWorkspaceBytes = 32u << 20;  // what cuBLAS itself takes on recent cards

  // Of the current card. Without the library (or its header in this build) it is absent and says why.
  explicit CublasPeer(cudaStream_t stream);
  ~CublasPeer();
  CublasPeer(const CublasPeer&) = delete;
  CublasPeer& operator=(const CublasPeer&) = delete;

  bool there() const { return api_ != nullptr; }
  const std::string& text() const { return text_; }  // "cuBLAS 13.0.2"; absent: why
  // Its own workspace cannot be made while a graph is captured.
  void set_workspace(std::byte* data);
  // Enqueues y[T, N] = x[T, K] w[N, K]^T: all bf16 and row-major, float32 sums.
  void gemm(std::int64_t n, std::int64_t k, std::int64_t rows, const std::byte* w, const std::byte* x,
            std::byte* y);

 private:
  struct Api;
  std::unique_ptr<Api> api_;
  std::string text_;
};

}  // namespace nibble::cuda
