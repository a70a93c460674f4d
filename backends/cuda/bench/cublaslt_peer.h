// cublaslt_peer.h: cuBLASLt, which has products of FP8 where the card has a unit for them. It is looked for when a bench
// runs: nothing links it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace nibble::cuda {

class CublasLtPeer {
 public:
  static constexpr std::uint64_t kWorkspaceBytes = 32u << 20;
  struct Plan;
  struct PlanDeleter {
    void operator()(Plan* plan) const;
  };
  using Product = std::unique_ptr<Plan, PlanDeleter>;  // not longer than its peer

  // Of the current card. Without the library (or its header in this build) it is absent and says why.
  CublasLtPeer();
  ~CublasLtPeer();
  CublasLtPeer(const CublasLtPeer&) = delete;
  CublasLtPeer& operator=(const CublasLtPeer&) = delete;

  bool there() const { return api_ != nullptr; }
  const std::string& text() const { return text_; }  // "cuBLASLt 13.0.2"; absent: why
  // y[T, N] = x[T, K] w[N, K]^T, all row-major: x and w e4m3, y bf16, sums as the FP8 unit has them (fast accumulation).
  // Throws Error(unsupported) where there is no algorithm.
  Product fp8_product(std::int64_t n, std::int64_t k, std::int64_t rows);
  // Enqueues it; `workspace` is kWorkspaceBytes on the card.
  void run(const Product& product, const std::byte* w, const std::byte* x, std::byte* y, std::byte* workspace,
           cudaStream_t stream);

 private:
  struct Api;
  std::unique_ptr<Api> api_;
  std::string text_;
};

}  // namespace nibble::cuda
