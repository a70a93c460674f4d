// trace.h: what a device did, when, and for which op.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nibble/export.h"

namespace nibble {

struct TraceEvent {
  enum class Kind : std::uint8_t { op, kernel, copy, set };
  Kind kind = Kind::op;
  std::string name;  // of the kernel; "copy to device"; of the op's kind on the CPU
  std::string op;    // where in the model, empty when it belongs to no op
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint64_t bytes = 0;  // copies and sets
};

struct NIBBLE_API Trace {
  std::vector<TraceEvent> events;  // by start
  std::int64_t start_ns = 0, end_ns = 0;  // of the whole, on the events' clock

  double seconds() const { return static_cast<double>(end_ns - start_ns) * 1e-9; }
  // Share of the time in which a kernel (or op) ran: the union of their intervals over the whole.
  double busy_share() const;
  // Pauses between kernels that last longer, in order.
  struct Stall {
    std::int64_t start_ns, end_ns;
  };
  std::vector<Stall> stalls(std::int64_t longer_than_ns = 2'000'000) const;
  // For chrome://tracing and Perfetto: an object with traceEvents, times in microseconds.
  std::string chrome_json() const;
};

}  // namespace nibble
