#include "tools/bench_gate_up_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/table.h"

namespace nibble::tool {
namespace {

std::string micros(const LaunchTimes& t) { return fmt::format("{:.2f} ± {:.2f}", t.median * 1e6, t.spread * 1e6); }

Json::Object header(const GateUpBench& b) {
  return {{"nibble", version()},  {"op", "gate-up"},      {"device", b.device},
          {"kernels", b.kernels}, {"profile", b.profile}, {"complete", b.complete}};
}

Json::Object fields(const GateUpBenchRow& r) {
  return {{"format", r.format},
          {"n", r.shape.n},
          {"k", r.shape.k},
          {"rows", r.rows},
          {"kernel", r.kernel},
          {"cold", r.cold},
          {"weight_bytes", r.weight_bytes},
          {"linears_seconds", r.linears.median},
          {"linears_spread", r.linears.spread},
          {"three_seconds", r.three.median},
          {"three_spread", r.three.spread},
          {"fused_seconds", r.fused.median},
          {"fused_spread", r.fused.spread},
          {"fused_over_three", r.fused.median / r.three.median}};
}

}  // namespace

std::string gate_up_markdown(const GateUpBench& bench) {
  std::string out = fmt::format(
      "nibble {}: linear layers of gate and up, with SwiGLU behind them, and all three as one\n"
      "device: {}, kernels {}, profile {}\n\n",
      version(), bench.device, bench.kernels, bench.profile);
  Table table({{"weights"}, {"N x K of each"}, {"T", true}, {"linears us", true}, {"three ops us", true},
               {"fused us", true}, {"fused over three", true}, {"L2"}, {"kernel"}});
  for (const GateUpBenchRow& r : bench.rows) {
    table.add({r.format, fmt::format("{}x{}", r.shape.n, r.shape.k), std::to_string(r.rows), micros(r.linears),
               micros(r.three), micros(r.fused), fmt::format("{:+.1f} %", 100 * (r.fused.median / r.three.median - 1)),
               r.cold ? "cold" : "as is", r.kernel});
  }
  return out + table.markdown();
}

std::string gate_up_json(const GateUpBench& bench) {
  const auto samples = [](const LaunchTimes& t) { return Json::Array(t.samples.begin(), t.samples.end()); };
  Json::Array rows;
  for (const GateUpBenchRow& r : bench.rows) {
    Json::Object row = fields(r);
    row.emplace_back("linears_samples", samples(r.linears));
    row.emplace_back("three_samples", samples(r.three));
    row.emplace_back("fused_samples", samples(r.fused));
    rows.emplace_back(std::move(row));
  }
  return Json(Json::Object{{"header", header(bench)}, {"rows", std::move(rows)}}).dump(2) + "\n";
}

std::string gate_up_csv(const GateUpBench& bench) {
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> lines;
  for (const GateUpBenchRow& r : bench.rows) {
    Json::Object all = header(bench), row = fields(r);
    all.insert(all.end(), row.begin(), row.end());
    columns.clear();
    lines.emplace_back();
    for (const auto& [key, value] : all) {
      columns.push_back({key});
      lines.back().push_back(value.is_string() ? value.as_string() : value.dump());
    }
  }
  Table table(columns);
  for (std::vector<std::string>& line : lines) table.add(std::move(line));
  return table.csv();
}

}  // namespace nibble::tool
