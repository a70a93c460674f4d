// attention_sm70.cu: launches of attention_sm70.cuh, whose code tests/kernels_on_cpu compiles too.
#include "backends/cuda/ops/attention_sm70.cuh"

#include "backends/cuda/ops/linear_parts.cuh"
#include "backends/cuda/shared_memory.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

template <int Dim, int Warps>
bool launch(const Launch& to, AttentionSm70Params p, std::size_t most_bytes) {
  using namespace sm70::attending;
  using R = Room<Dim, Warps>;
  constexpr std::size_t kBeside = 1024;  // what the kernel has of its own
  if (R::kBytes + kBeside > most_bytes) return false;
  p.parts = parts_of<Warps>(p.shape);
  const dim3 grid(static_cast<unsigned>(most_records(to.max_rows, to.max_ranges) * p.parts), static_cast<unsigned>(p.shape.kv_heads));
  cudaFuncSetAttribute(sm70_attend<Dim, Warps>, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kBytes);
  sm70_attend<Dim, Warps><<<grid, R::kThreads, R::kBytes, to.stream>>>(p);
  return true;
}

bool fits(const View& v, std::uintptr_t bytes) {
  return v.dtype == DType::f32 && static_cast<std::uintptr_t>(v.stride) * 4 % bytes == 0 && reinterpret_cast<std::uintptr_t>(v.data) % bytes == 0;
}

}  // namespace

std::string attention_sm70_kernel() { return has_m8n8k4() ? "prompts: mma.m8n8k4" : "prompts: mma.m8n8k4, emulated"; }

void attention_sm70(const Launch& to, const AttentionArgs& a) {
  if (to.max_rows <= 0 || to.max_ranges <= 0) return;
  const AttentionShape& s = a.state.shape;
  if (!num::attention_on_units(s) || !fits(a.q, 16) || !fits(a.y, 8) || a.section != Section::prefill || a.gate.data != nullptr) {
    throw Error(ErrorCode::internal, "[cuda] attention on sm_70's matrix units: expected prefill rows without a gate, heads of 64, "
                                     "128 or 256, and rows of float32 at multiples of 16 bytes");
  }
  const AttentionSm70Params p{to.step, reinterpret_cast<const float*>(a.q.data), reinterpret_cast<float*>(a.y.data), a.q.stride, a.y.stride,
                              a.scale, s, reinterpret_cast<const float*>(a.state.k), reinterpret_cast<const float*>(a.state.v), 1};
  const std::size_t most = most_shared();
  const bool launched = s.head_dim == 64    ? launch<64, 4>(to, p, most)
                        : s.head_dim == 128 ? launch<128, 4>(to, p, most)
                                            : launch<256, 6>(to, p, most) || launch<256, 2>(to, p, most);
  if (!launched) throw Error(ErrorCode::internal, "[cuda] attention on matrix units: expected 49 KiB of shared memory, found less");
}

}  // namespace nibble::cuda
