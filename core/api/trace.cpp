#include "nibble/trace.h"

#include <algorithm>
#include <array>

#include "core/base/json.h"

namespace nibble {
namespace {

bool computes(const TraceEvent& e) {
  return e.kind == TraceEvent::Kind::op || e.kind == TraceEvent::Kind::kernel;
}

// Calls gap(end of what ran so far, start of what runs next) and ran(event, its time that no earlier one had).
template <class Gap, class Ran>
void sweep(const Trace& t, Gap gap, Ran ran) {
  std::int64_t until = t.start_ns;
  for (const TraceEvent& e : t.events) {
    if (!computes(e) || e.end_ns <= until) continue;
    if (e.start_ns > until) gap(until, e.start_ns);
    ran(e, e.end_ns - std::max(e.start_ns, until));
    until = e.end_ns;
  }
  if (t.end_ns > until) gap(until, t.end_ns);
}

enum Class : std::size_t { kLinear, kAttention, kDeltaNet, kNorms, kSampling, kOther, kClasses };
constexpr std::array<std::string_view, kClasses> kClassNames = {"linear", "attention", "delta net",
                                                                "norms",  "sampling",  "other"};

// The parts of a mixer count with it, whether they are ops of their own or fused.
constexpr std::pair<std::string_view, Class> kClassOf[] = {
    {"linear", kLinear},
    {"grouped_linear", kLinear},
    {"linear_swiglu", kLinear},
    {"qk_norm_rope", kAttention},
    {"attention", kAttention},
    {"sigmoid_gate", kAttention},
    {"gated_attention", kAttention},
    {"delta_conv", kDeltaNet},
    {"delta_gates", kDeltaNet},
    {"delta_rule", kDeltaNet},
    {"delta_net", kDeltaNet},
    {"gated_rms_norm", kDeltaNet},
    {"gated_rms_norm_pack", kDeltaNet},
    {"rms_norm", kNorms},
    {"rms_norm_pack", kNorms},
    {"add_rms_norm", kNorms},
    {"add_rms_norm_pack", kNorms},
    {"sample", kSampling},
    {"token_logprob", kSampling},
    {"embed", kOther},
    {"quantize", kOther},
    {"swiglu", kOther},
    {"swiglu_pack", kOther},
    {"add", kOther},
    {"gather_rows", kOther},
    {"expert_route", kOther},
    {"expert_combine", kOther},
};

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

std::span<const std::string_view> op_classes() { return kClassNames; }

std::string_view op_class(std::string_view op_kind) {
  for (const auto& [kind, one] : kClassOf) {
    if (kind == op_kind) return kClassNames[one];
  }
  return kClassNames[kOther];
}

double Trace::busy_share() const {
  if (end_ns <= start_ns) return 0;
  std::int64_t busy = 0;
  sweep(*this, [](std::int64_t, std::int64_t) {}, [&](const TraceEvent&, std::int64_t ns) { busy += ns; });
  return static_cast<double>(busy) / static_cast<double>(end_ns - start_ns);
}

std::vector<Trace::Stall> Trace::stalls(std::int64_t longer_than_ns) const {
  std::vector<Stall> found;
  const auto gap = [&](std::int64_t from, std::int64_t to) {
    if (to - from > longer_than_ns) found.push_back({from, to});
  };
  sweep(*this, gap, [](const TraceEvent&, std::int64_t) {});
  return found;
}

Trace Trace::of_steps(std::size_t first, std::size_t last) const {
  Trace part;
  last = std::min(last, steps.size());
  if (first >= last) return part;
  part.steps.assign(steps.begin() + static_cast<std::ptrdiff_t>(first), steps.begin() + static_cast<std::ptrdiff_t>(last));
  part.start_ns = part.steps.front().start_ns;
  part.end_ns = part.start_ns;
  for (const Step& step : part.steps) part.end_ns = std::max(part.end_ns, step.end_ns);
  for (const TraceEvent& e : events) {
    if (e.step < 0) continue;
    const auto step = static_cast<std::size_t>(e.step);
    if (step < first || step >= last) continue;
    part.events.push_back(e);
    part.events.back().step -= static_cast<std::int32_t>(first);
  }
  return part;
}

std::vector<std::pair<std::string_view, double>> Trace::class_seconds() const {
  std::vector<std::pair<std::string_view, double>> sums;
  for (const std::string_view name : op_classes()) sums.emplace_back(name, 0.0);
  const auto ran = [&](const TraceEvent& e, std::int64_t ns) {
    const std::string_view name = op_class(e.op_kind);
    const auto sum = std::find_if(sums.begin(), sums.end(), [&](const auto& s) { return s.first == name; });
    sum->second += static_cast<double>(ns) * 1e-9;
  };
  sweep(*this, [](std::int64_t, std::int64_t) {}, ran);
  return sums;
}

std::string Trace::chrome_json() const {
  Json::Array rows;
  rows.reserve(events.size());
  for (const TraceEvent& e : events) {
    Json::Object args;
    if (!e.op.empty()) args.emplace_back("op", e.op);
    if (!e.op_kind.empty()) args.emplace_back("kind", e.op_kind);
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
