#include "tools/trace_summary.h"

#include <algorithm>

namespace nibble::tool {

TraceSummary summary_of(const Trace& trace) {
  TraceSummary s;
  s.steps = trace.steps.size();
  s.seconds = trace.seconds();
  s.busy_share = trace.busy_share();
  s.stalls = trace.stalls().size();
  for (const Trace::Stall& stall : trace.stalls(0)) {
    s.longest_stall_seconds = std::max(s.longest_stall_seconds, static_cast<double>(stall.end_ns - stall.start_ns) * 1e-9);
  }
  std::uint64_t kernels = 0;
  for (const TraceEvent& e : trace.events) {
    if (e.kind == TraceEvent::Kind::op || e.kind == TraceEvent::Kind::kernel) ++kernels;
    if (e.kind != TraceEvent::Kind::copy) continue;
    if (e.name == "copy to device") s.to_device_bytes += e.bytes;
    if (e.name == "copy to host") s.to_host_bytes += e.bytes;
  }
  if (s.steps > 0) s.kernels_per_step = static_cast<double>(kernels) / static_cast<double>(s.steps);
  const double busy = s.busy_share * s.seconds;
  for (const auto& [name, seconds] : trace.class_seconds()) s.class_shares.emplace_back(name, busy > 0 ? seconds / busy : 0);
  return s;
}

std::size_t prompt_steps(const Trace& trace) {
  const auto decodes = std::find_if(trace.steps.begin(), trace.steps.end(), [](const Trace::Step& s) { return !s.prompt; });
  return static_cast<std::size_t>(decodes - trace.steps.begin());
}

std::string class_key(std::string_view name) {
  std::string key(name);
  std::replace(key.begin(), key.end(), ' ', '_');
  return key;
}

Json::Object summary_json(const TraceSummary& s) {
  Json::Object shares;
  for (const auto& [name, share] : s.class_shares) shares.emplace_back(class_key(name), share);
  return {{"steps", static_cast<std::int64_t>(s.steps)},
          {"seconds", s.seconds},
          {"busy_share", s.busy_share},
          {"kernels_per_step", s.kernels_per_step},
          {"longest_stall_seconds", s.longest_stall_seconds},
          {"stalls_over_2ms", static_cast<std::int64_t>(s.stalls)},
          {"to_device_bytes", s.to_device_bytes},
          {"to_host_bytes", s.to_host_bytes},
          {"class_shares", std::move(shares)}};
}

}  // namespace nibble::tool
