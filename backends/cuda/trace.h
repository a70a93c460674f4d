// trace.h: activity records of the card through CUPTI, which is looked for when a trace is asked
// for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nibble/trace.h"

namespace nibble::cuda {

// One at a time in a process.
class Tracer {
 public:
  // Throws Error(unsupported) without CUPTI, Error(invalid_argument) when another one runs.
  Tracer();
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // What the calling thread launches between the two belongs to this run.
  void begin_run(std::uint64_t run);
  void end_run();

  struct Record {
    TraceEvent event;
    std::uint64_t run = 0;  // 0: of none
  };
  // All records since the start, by start; the device must be idle.
  struct Result {
    std::vector<Record> records;
    std::int64_t start_ns = 0, end_ns = 0;
  };
  Result finish();

 private:
  struct Api;
  std::unique_ptr<Api> api_;
  std::int64_t start_ns_ = 0;
};

}  // namespace nibble::cuda
