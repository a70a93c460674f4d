#include "tools/parity_report.h"

#include <fmt/format.h>

#include <cmath>

#include "tools/table.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

std::string count(std::int64_t n) { return format_count(static_cast<std::uint64_t>(n)); }

std::string device_line(const char* name, const ParityDevice& d) {
  return fmt::format("{}  {}: profile {}, kernels {}, {} threads, {}\n", name, one_line(d.text), d.profile,
                     d.kernels, d.threads, one_line(d.name));
}

std::string work_line(const ParityWork& w) {
  return fmt::format(
      "compared  {} op outputs with {} elements ({} of them logits) and {} elements of state\n"
      "          in {} prompt rows ({} steps) and {} decode steps\n",
      w.ops, count(w.elements), count(w.logits), count(w.state_elements), w.prefill_rows, w.prefill_steps,
      w.decode_steps);
}

// Nine digits tell any two floats apart.
std::string value(float v, std::uint32_t bits) { return fmt::format("{:<16.9g} 0x{:08x}", v, bits); }

std::string error_text(double e) { return std::isinf(e) ? "infinite" : fmt::format("{:.3g}", e); }
// JSON has no infinity.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json(std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"); }

std::string place(const std::string& program, std::int64_t index, std::int64_t step) {
  if (step < 0) return "after the last step";
  const std::string in = fmt::format("step {}", step);
  return index < 0 ? fmt::format("{}, {}", program, in) : fmt::format("op {} of {}, {}", index, program, in);
}

Json device_json(const ParityDevice& d) {
  return Json::Object{{"device", d.text},     {"backend", d.backend}, {"name", d.name},
                      {"profile", d.profile}, {"kernels", d.kernels}, {"threads", d.threads}};
}

void add_work(Json::Object& out, const ParityWork& w) {
  out.emplace_back("prefill_rows", w.prefill_rows);
  out.emplace_back("prefill_steps", w.prefill_steps);
  out.emplace_back("decode_steps", w.decode_steps);
  out.emplace_back("ops", w.ops);
  out.emplace_back("elements", w.elements);
  out.emplace_back("logits", w.logits);
  out.emplace_back("state_elements", w.state_elements);
  out.emplace_back("tokens", Json::Array(w.tokens.begin(), w.tokens.end()));
}

}  // namespace

std::string parity_text(const Console& console, const ParityReport& r) {
  Table table({{"kind"},
               {"ops", true},
               {"elements", true},
               {"ops differing", true},
               {"elements differing", true},
               {"largest |a - b|", true}});
  for (const auto& k : r.kinds) {
    table.add({k.kind, std::to_string(k.ops), count(k.elements), std::to_string(k.ops_differing),
               count(k.elements_differing), error_text(k.largest)});
  }
  std::string out = fmt::format("{}{}\n{}\n{}", device_line("A", r.a), device_line("B", r.b),
                                table.aligned(), work_line(r.work));
  if (r.equal()) return out + console.bold("equal     every bit") + "\n";
  const ParityDifference& d = *r.first;
  out += fmt::format("{}\n  op       {} ({}), {}\n  element  row {}, column {}", console.bold("differs   first at"),
                     one_line(d.op), d.kind, place(d.program, d.index, d.step), d.row, d.column);
  if (d.position >= 0) out += fmt::format(", position {} of the sequence", d.position);
  out += fmt::format("\n  A        {}\n  B        {}\n", value(d.a, d.a_bits), value(d.b, d.b_bits));
  return out;
}

std::string parity_text(const Console& console, const Float64Report& r) {
  Table table({{"kind"},
               {"ops", true},
               {"elements", true},
               {"largest error", true},
               {"above bound", true},
               {"largest at"}});
  for (const auto& k : r.kinds) {
    table.add({k.kind, std::to_string(k.ops), count(k.elements), error_text(k.largest),
               std::to_string(k.ops_above), fmt::format("{}, {}", one_line(k.op), place(k.program, -1, k.step))});
  }
  return fmt::format("{}\n{}\n{}{}\n", device_line("A", r.device), table.aligned(), work_line(r.work),
                     console.bold(fmt::format("{}    every op within {:g} of float64 (relative L2){}",
                                              r.within() ? "within" : "beyond", r.bound,
                                              r.within() ? "" : ": no")));
}

Json parity_json(const ParityReport& r) {
  Json::Object out{{"equal", r.equal()}, {"a", device_json(r.a)}, {"b", device_json(r.b)}};
  add_work(out, r.work);
  if (r.first) {
    const ParityDifference& d = *r.first;
    out.emplace_back("first", Json::Object{{"op", d.op},
                                           {"kind", d.kind},
                                           {"index", d.index},
                                           {"program", d.program},
                                           {"step", d.step},
                                           {"row", d.row},
                                           {"column", d.column},
                                           {"position", d.position},
                                           {"a", number(d.a)},
                                           {"b", number(d.b)},
                                           {"a_bits", fmt::format("0x{:08x}", d.a_bits)},
                                           {"b_bits", fmt::format("0x{:08x}", d.b_bits)}});
  }
  Json::Array kinds;
  for (const auto& k : r.kinds) {
    kinds.push_back(Json::Object{{"kind", k.kind},
                                 {"ops", k.ops},
                                 {"elements", k.elements},
                                 {"ops_differing", k.ops_differing},
                                 {"elements_differing", k.elements_differing},
                                 {"largest", number(k.largest)}});
  }
  out.emplace_back("kinds", std::move(kinds));
  return out;
}

Json parity_json(const Float64Report& r) {
  Json::Object out{{"within", r.within()}, {"bound", r.bound}, {"a", device_json(r.device)}};
  add_work(out, r.work);
  Json::Array kinds;
  for (const auto& k : r.kinds) {
    kinds.push_back(Json::Object{{"kind", k.kind},
                                 {"ops", k.ops},
                                 {"elements", k.elements},
                                 {"largest", number(k.largest)},
                                 {"op", k.op},
                                 {"program", k.program},
                                 {"step", k.step},
                                 {"ops_above", k.ops_above}});
  }
  out.emplace_back("kinds", std::move(kinds));
  return out;
}

}  // namespace nibble::tool
