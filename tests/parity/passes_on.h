// passes_on.h: a backend that hands everything to another one; tests override what is to be different.
#pragma once

#include <memory>
#include <utility>

#include "backends/backend.h"

namespace nibble::test {

class PassesOn : public Backend {
 public:
  explicit PassesOn(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  const DeviceInfo& device() const override { return inner_->device(); }
  MemoryPlan plan(const ModelSpec& spec, const StateSizes& sizes) const override { return inner_->plan(spec, sizes); }
  void prepare(ModelSpec spec, const StateSizes& sizes, const std::function<bool(std::uint64_t)>& loaded) override {
    inner_->prepare(std::move(spec), sizes, loaded);
  }
  void start(std::size_t index, const Batch& batch, const Observer& observer) override {
    inner_->start(index, batch, observer);
  }
  void finish(StepOutput& out) override { inner_->finish(out); }
  void reset_slot(std::int32_t slot) override { inner_->reset_slot(slot); }
  std::shared_ptr<const Snapshot> save_slot(std::int32_t slot, std::int32_t keep) override {
    return inner_->save_slot(slot, keep);
  }
  void load_slot(std::int32_t slot, const Snapshot& s) override { inner_->load_slot(slot, s); }
  HostState export_state(std::int32_t slot, std::int32_t keep, std::span<const std::int32_t> pages,
                         std::int64_t positions) override {
    return inner_->export_state(slot, keep, pages, positions);
  }
  const StepStats& stats() const override { return inner_->stats(); }
  void start_trace() override { inner_->start_trace(); }
  nibble::Trace stop_trace() override { return inner_->stop_trace(); }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace nibble::test
