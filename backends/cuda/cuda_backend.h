// cuda_backend.h: one NVIDIA card with the arenas of one model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/cuda/arch_path.h"

namespace nibble::cuda {

struct Loaded;
class Tracer;

class CudaBackend final : public Backend {
 public:
  // Throws Error(no_device) for a card that is not there or that this build has no code for,
  // Error(invalid_argument) for a path that there is not and for options that only the CPU has.
  explicit CudaBackend(const BackendOptions& options);
  ~CudaBackend() override;

  const DeviceInfo& device() const override { return device_; }
  MemoryPlan plan(const ModelSpec& spec, const StateSizes& sizes) const override;
  // When it throws, whatever was prepared before stays as it was.
  void prepare(ModelSpec spec, const StateSizes& sizes,
               const std::function<bool(std::uint64_t)>& loaded) override;
  // Through the program's captured graph; op by op where there is an observer.
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
  struct Stream;
  Loaded& loaded(const char* who) const;
  Loaded& loaded(const char* who, std::int32_t slot) const;
  void select() const;  // the card, for the calling thread
  void wait(const char* what) const;

  int index_;
  bool graphs_;
  bool fused_linears_ = false;
  ArchPath path_ = ArchPath::sm90;
  int multiprocessors_ = 0;
  DeviceInfo device_;
  StepStats stats_;
  std::uint64_t arenas_made_ = 0;  // by prepare(), and by any step that should not have
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Loaded> loaded_;
  std::unique_ptr<Tracer> tracer_;
  std::vector<std::size_t> traced_;  // program of each run since the trace began
};

}  // namespace nibble::cuda
