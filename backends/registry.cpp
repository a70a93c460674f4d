#include "backends/registry.h"

#include "backends/cpu/cpu_backend.h"

namespace nibble {
namespace {

std::unique_ptr<Backend> make_cpu(const BackendOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options);
}

constexpr BackendEntry kBackends[] = {
    {"cpu", [] { return std::string(); }, make_cpu},
};

}  // namespace

std::span<const BackendEntry> backend_registry() {
  return kBackends;
}

}  // namespace nibble
