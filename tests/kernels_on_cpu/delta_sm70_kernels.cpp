#include "tests/kernels_on_cpu/delta_sm70_kernels.h"

#include <cuda_runtime_api.h>

#include "backends/cuda/ops/delta_sm70_pass.cuh"
#include "backends/cuda/ops/delta_sm70_prepare.cuh"

namespace nibble::test {
namespace {

template <int KeyDim>
void run_kernels_of(const cuda::DeltaSm70Params& p, const DeltaSm70Run& run, unsigned seed) {
  const DeltaShape& d = p.state.shape;
  const int parts = (d.value_heads / d.key_heads + cuda::sm70::preparing::kHeads - 1) / cuda::sm70::preparing::kHeads;
  const auto u = [](std::int64_t n) { return static_cast<unsigned>(n); };
  run_grid({u(cuda::most_records(run.max_rows, run.max_ranges)), u(d.key_heads * parts), 1},
           cuda::sm70::preparing::kThreads, seed, [&] { cuda::sm70::preparing::sm70_prepare<KeyDim>(p, parts); });
  constexpr int kColumns = cuda::sm70::passing::kColumns;
  run_grid({u((d.value_dim + kColumns - 1) / kColumns), u(d.value_heads), u(run.max_ranges)},
           cuda::sm70::passing::kThreads, seed, [&] { cuda::sm70::passing::sm70_pass<KeyDim>(p); });
}

}  // namespace

std::size_t record_bytes(const DeltaSm70Run& run) {
  return static_cast<std::size_t>(cuda::most_records(run.max_rows, run.max_ranges) * cuda::sm70_chunk_bytes(run.state.shape));
}

void run_kernels(const DeltaSm70Run& run, unsigned seed) {
  const cuda::DeltaSm70Params p{run.step,
                                {run.qkv, run.qkv_stride},
                                {run.g, run.g_stride},
                                {run.beta, run.g_stride},
                                {run.y, run.y_stride},
                                run.state,
                                Section::prefill,
                                run.records};
  run.state.shape.key_dim == 32 ? run_kernels_of<32>(p, run, seed) : run_kernels_of<128>(p, run, seed);
}

}  // namespace nibble::test
