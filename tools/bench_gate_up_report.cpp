#include "tools/bench_gate_up_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/rows_report.h"
#include "tools/table.h"

namespace nibble::tool {
namespace {

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
  std::vector<Json::Object> rows;
  for (const GateUpBenchRow& r : bench.rows) {
    Json::Object row = fields(r);
    row.emplace_back("linears_samples", samples_json(r.linears));
    row.emplace_back("three_samples", samples_json(r.three));
    row.emplace_back("fused_samples", samples_json(r.fused));
    rows.push_back(std::move(row));
  }
  return rows_json(header(bench), std::move(rows));
}

std::string gate_up_csv(const GateUpBench& bench) {
  std::vector<Json::Object> rows;
  for (const GateUpBenchRow& r : bench.rows) rows.push_back(fields(r));
  return rows_csv(header(bench), rows);
}

}  // namespace nibble::tool
