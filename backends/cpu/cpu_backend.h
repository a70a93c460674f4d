// cpu_backend.h: one processor with the arenas of one model, profile f32 or the mirror of another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "backends/backend.h"
#include "backends/cpu/bf16_unit.h"
#include "backends/cpu/mirror.h"
#include "backends/cpu/parallel.h"

namespace nibble::cpu {

struct Loaded;

class CpuBackend final : public Backend {
 public:
  // Throws Error(no_device) for kernels that this processor has not and for a profile that has no
  // mirror, Error(invalid_argument) for options that only a card has, Error(invalid_argument |
  // out_of_memory) for a number of threads that is out of range or that the system does not allow.
  explicit CpuBackend(const BackendOptions& options);
  ~CpuBackend() override;

  const DeviceInfo& device() const override { return device_; }
  MemoryPlan plan(const ModelSpec& spec, const StateSizes& sizes) const override;
  // When it throws, whatever was prepared before stays as it was.
  void prepare(ModelSpec spec, const StateSizes& sizes,
               const std::function<bool(std::uint64_t)>& loaded) override;
  // Runs the whole step; finish() hands out what it made.
  void start(std::size_t index, const Batch& batch, const Observer& observer) override;
  void finish(StepOutput& out) override;
  void reset_slot(std::int32_t slot) override;
  std::shared_ptr<const Snapshot> save_slot(std::int32_t slot, std::int32_t keep) override;
  void load_slot(std::int32_t slot, const Snapshot& snapshot) override;
  HostState export_state(std::int32_t slot, std::int32_t keep, std::span<const std::int32_t> pages,
                         std::int64_t positions) override;
  const StepStats& stats() const override { return stats_; }
  void start_trace() override;
  Trace stop_trace() override;

 private:
  bool mirrors() const { return operand_type(profile_) != DType::f32; }
  Loaded& loaded(const char* who) const;
  Loaded& loaded(const char* who, std::int32_t slot) const;

  Layout layout_of(const Weight& weight) const;

  Profile profile_;
  Kernels kernels_;
  mutable Parallel parallel_;
  DeviceInfo device_;
  StepStats stats_;
  std::uint64_t arenas_made_ = 0;  // by prepare(), and by any step that should not have
  std::unique_ptr<Loaded> loaded_;
  bool tracing_ = false;
  Trace trace_;
};

}  // namespace nibble::cpu
