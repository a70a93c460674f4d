// trace.h: what a device did, when, and for which op.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/export.h"

namespace nibble {

struct TraceEvent {
  enum class Kind : std::uint8_t { op, kernel, copy, set };
  Kind kind = Kind::op;
  std::string name;  // of the kernel; "copy to device"; of the op's kind on the CPU
  std::string op;    // where in the model, empty when it belongs to no op
  std::string op_kind;  // that op's: "linear", "attention"
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint64_t bytes = 0;  // copies and sets
  std::int32_t step = -1;   // index into Trace::steps; -1: of none
};

// What times are summed by: "linear", "attention", "delta net", "norms", "sampling", "other". An op's kind belongs to
// one; the empty kind, and one that there is not, to "other".
NIBBLE_API std::span<const std::string_view> op_classes();
NIBBLE_API std::string_view op_class(std::string_view op_kind);

struct NIBBLE_API Trace {
  std::vector<TraceEvent> events;  // by start
  std::int64_t start_ns = 0, end_ns = 0;  // of the whole, on the events' clock
  struct Step {
    std::int64_t start_ns = 0, end_ns = 0;  // of its first event and its last
    bool prompt = false;  // it may have rows of prompts; otherwise it decodes
  };
  std::vector<Step> steps;  // as they ran

  double seconds() const { return static_cast<double>(end_ns - start_ns) * 1e-9; }
  // Share of the time in which a kernel (or op) ran: the union of their intervals over the whole.
  double busy_share() const;
  // Pauses between kernels that last longer, in order.
  struct Stall {
    std::int64_t start_ns, end_ns;
  };
  std::vector<Stall> stalls(std::int64_t longer_than_ns = 2'000'000) const;
  // The events of steps `first` to before `last`, from the first one's start to the end of the last: what lies before,
  // behind and beside them is left out.
  Trace of_steps(std::size_t first, std::size_t last) const;
  // The busy time, shared out by class of op, in op_classes()' order. Where kernels overlap (one may begin early, to
  // wait for another) the time is that of the one that began first.
  std::vector<std::pair<std::string_view, double>> class_seconds() const;
  // For chrome://tracing and Perfetto: an object with traceEvents, times in microseconds.
  std::string chrome_json() const;
};

}  // namespace nibble
