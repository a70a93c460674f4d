#include "nibble/trace.h"

#include <algorithm>

#include "core/base/json.h"

namespace nibble {
namespace {

bool computes(const TraceEvent& e) {
  return e.kind == TraceEvent::Kind::op || e.kind == TraceEvent::Kind::kernel;
}

// Calls gap(end of what ran so far, start of what runs next) and returns the time in which any ran.
template <class Gap>
std::int64_t sweep(const Trace& t, Gap gap) {
  std::int64_t busy = 0, until = t.start_ns;
  for (const TraceEvent& e : t.events) {
    if (!computes(e) || e.end_ns <= until) continue;
    if (e.start_ns > until) gap(until, e.start_ns);
    busy += e.end_ns - std::max(e.start_ns, until);
    until = e.end_ns;
  }
  if (t.end_ns > until) gap(until, t.end_ns);
  return busy;
}

const char* category(TraceEvent::Kind kind) {
  switch (kind) {
    case TraceEvent::Kind::op: return "op";
    case TraceEvent::Kind::kernel: return "kernel";
    case TraceEvent::Kind::copy: return "copy";
    case TraceEvent::Kind::set: return "set";
  }
  return "";
}

}  // namespace

double Trace::busy_share() const {
  if (end_ns <= start_ns) return 0;
  const std::int64_t busy = sweep(*this, [](std::int64_t, std::int64_t) {});
  return static_cast<double>(busy) / static_cast<double>(end_ns - start_ns);
}

std::vector<Trace::Stall> Trace::stalls(std::int64_t longer_than_ns) const {
  std::vector<Stall> found;
  sweep(*this, [&](std::int64_t from, std::int64_t to) {
    if (to - from > longer_than_ns) found.push_back({from, to});
  });
  return found;
}

std::string Trace::chrome_json() const {
  Json::Array rows;
  rows.reserve(events.size());
  for (const TraceEvent& e : events) {
    Json::Object args;
    if (!e.op.empty()) args.emplace_back("op", e.op);
    if (e.bytes > 0) args.emplace_back("bytes", e.bytes);
    rows.emplace_back(Json::Object{{"name", e.name},
                                   {"cat", category(e.kind)},
                                   {"ph", "X"},
                                   {"pid", 0},
                                   {"tid", computes(e) ? 0 : 1},
                                   {"ts", static_cast<double>(e.start_ns - start_ns) / 1000},
                                   {"dur", static_cast<double>(e.end_ns - e.start_ns) / 1000},
                                   {"args", std::move(args)}});
  }
  return Json(Json::Object{{"traceEvents", std::move(rows)}, {"displayTimeUnit", "ms"}}).dump();
}

}  // namespace nibble
