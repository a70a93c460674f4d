#include "tests/kernels_on_cpu/attention_sm70_kernels.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/ops/attention_sm70.cuh"

namespace nibble::test {
namespace {

template <int Dim, int Warps>
void run_kernel_of(cuda::AttentionSm70Params p, const AttentionSm70Run& run, unsigned seed) {
  using namespace cuda::sm70::attending;
  static_assert(Room<Dim, Warps>::kBytes <= 96 << 10);
  p.parts = parts_of<Warps>(p.shape);
  const auto pieces = static_cast<unsigned>(cuda::most_records(run.max_rows, run.max_ranges));
  run_grid({pieces * static_cast<unsigned>(p.parts), static_cast<unsigned>(p.shape.kv_heads), 1}, Room<Dim, Warps>::kThreads, seed,
           [&] { sm70_attend<Dim, Warps>(p); });
}

}  // namespace

void run_kernel(const AttentionSm70Run& run, unsigned seed) {
  const cuda::AttentionSm70Params p{run.step,  run.q,     run.y,    run.q_stride, run.y_stride, run.scale,
                                    run.shape, run.keys, run.values, 1};
  if (run.shape.head_dim == 64) return run_kernel_of<64, 4>(p, run, seed);
  if (run.shape.head_dim == 128) return run_kernel_of<128, 4>(p, run, seed);
  // of cards with more shared memory and with less
  seed % 2 == 0 ? run_kernel_of<256, 6>(p, run, seed) : run_kernel_of<256, 2>(p, run, seed);
}

}  // namespace nibble::test
