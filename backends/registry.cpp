#include "backends/registry.h"

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/pack_bench.h"
#if defined(NIBBLE_HAS_CUDA)
#include "backends/cuda/bench/attention_bench.h"
#include "backends/cuda/bench/delta_bench.h"
#include "backends/cuda/bench/gate_up_bench.h"
#include "backends/cuda/bench/grouped_bench.h"
#include "backends/cuda/bench/linear_bench.h"
#include "backends/cuda/bench/pack_bench.h"
#include "backends/cuda/bench/roofs.h"
#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/device_info.h"
#endif

namespace nibble {
namespace {

std::unique_ptr<Backend> make_cpu(const BackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

#if defined(NIBBLE_HAS_CUDA)
std::unique_ptr<Backend> make_cuda(const BackendOptions& options) {
  return std::make_unique<cuda::CudaBackend>(options);
}
#else
std::string no_cuda() { return "this build has no CUDA backend: no CUDA toolkit was found when it was made"; }
std::unique_ptr<Backend> make_cuda(const BackendOptions&) { return nullptr; }  // refused before
#endif

constexpr BackendEntry kBackends[] = {
#if defined(NIBBLE_HAS_CUDA)
    {"cuda", cuda::refusal, make_cuda, cuda::bench_linear, cuda::bench_pack, cuda::bench_grouped,
     cuda::bench_gate_up, cuda::bench_delta, cuda::bench_attention, cuda::measure_roofs},
    {"cpu", [] { return std::string(); }, make_cpu, nullptr, cpu::bench_pack},
#else
    {"cpu", [] { return std::string(); }, make_cpu, nullptr, cpu::bench_pack},
    {"cuda", no_cuda, make_cuda},
#endif
};

}  // namespace

std::span<const BackendEntry> backend_registry() {
  return kBackends;
}

}  // namespace nibble
