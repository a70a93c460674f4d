#include "tools/bench_grouped_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/rows_report.h"
#include "tools/table.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

std::string experts_text(const GroupedShape& s) {
  return fmt::format("{}/{} {}x{} by {}", s.per_token, s.experts, s.n, s.k, s.by_place ? "place" : "token");
}
double tera(const GroupedBenchRow& r) { return r.flops() / r.ours.median * 1e-12; }
double giga_bytes(const GroupedBenchRow& r) { return static_cast<double>(r.bytes) / r.ours.median * 1e-9; }
Json::Object header(const GroupedBench& b) {
  return {{"nibble", version()},  {"op", "grouped"},        {"device", b.device},       {"kernels", b.kernels},
          {"profile", b.profile}, {"l2_bytes", b.l2_bytes}, {"complete", b.complete},   {"has_peer", b.has_peer},
          {"peer", b.peer},       {"copy_bytes_per_second", b.copy_bytes_per_second},
          {"peer_flops_per_second", b.peer_flops_per_second}};
}

Json::Object fields(const GroupedBench& bench, const GroupedBenchRow& r) {
  return {{"format", r.format},
          {"experts", r.shape.experts},
          {"experts_per_token", r.shape.per_token},
          {"n", r.shape.n},
          {"k", r.shape.k},
          {"by_place", r.shape.by_place},
          {"rows", r.rows},
          {"kernel", r.kernel},
          {"tile", r.tile},
          {"touched", r.touched},
          {"cold", r.cold},
          {"bytes", r.bytes},
          {"seconds", r.ours.median},
          {"spread", r.ours.spread},
          {"flops_per_second", tera(r) * 1e12},
          {"bytes_per_second", giga_bytes(r) * 1e9},
          {"roof_part", bench.roof_seconds(r) / r.ours.median},
          {"plain_kernel", r.plain_kernel},
          {"plain_seconds", r.plain.median},
          {"plain_spread", r.plain.spread},
          {"plain_ratio", r.plain.median / r.ours.median}};
}

}  // namespace

std::string grouped_markdown(const GroupedBench& bench, bool explain) {
  std::string out = fmt::format(
      "nibble {}: the linear layer of a mixture of experts, k of E experts of N x K\n"
      "device: {}, kernels {}, profile {}, L2 {}\n"
      "roofs, measured in this run: {:.1f} GB/s copies (read + written), {}\n\n",
      version(), bench.device, bench.kernels, bench.profile, format_bytes(bench.l2_bytes),
      bench.copy_bytes_per_second * 1e-9,
      bench.has_peer ? fmt::format("{:.1f} TFLOP/s bf16 ({})", bench.peer_flops_per_second * 1e-12, bench.peer)
                     : "no rate of operations: " + bench.peer);
  Table table({{"weight"}, {"experts"}, {"T", true}, {"touched", true}, {"us", true}, {"TFLOP/s", true}, {"GB/s", true},
               {"of roof", true}, {"L2"}, {"kernel"}, {"plain us", true}, {"plain/ours", true}});
  for (const GroupedBenchRow& r : bench.rows) {
    table.add({r.format, experts_text(r.shape), std::to_string(r.rows), fmt::format("{:.1f}", r.touched), micros(r.ours),
               fmt::format("{:.2f}", tera(r)), fmt::format("{:.1f}", giga_bytes(r)),
               fmt::format("{:.1f} %", 100 * bench.roof_seconds(r) / r.ours.median), r.cold ? "cold" : "as is",
               r.tile.empty() ? r.kernel : r.tile, micros(r.plain),
               fmt::format("{:.3f}", r.plain.median / r.ours.median)});
  }
  out += table.markdown();
  if (!explain) return out;
  for (const GroupedBenchRow& r : bench.rows) {
    if (!r.tile.empty()) continue;
    out += fmt::format("\n{} {}, T {}\n", r.format, experts_text(r.shape), r.rows);
    for (const auto& [kernel, why] : r.choices) out += fmt::format("  {}: {}\n", kernel, why);
  }
  return out;
}

std::string grouped_json(const GroupedBench& bench, bool explain) {
  std::vector<Json::Object> rows;
  for (const GroupedBenchRow& r : bench.rows) {
    Json::Object row = fields(bench, r);
    row.emplace_back("samples", samples_json(r.ours));
    row.emplace_back("plain_samples", samples_json(r.plain));
    if (explain) row.emplace_back("choices", choices_json(r.choices));
    rows.push_back(std::move(row));
  }
  return rows_json(header(bench), std::move(rows));
}

std::string grouped_csv(const GroupedBench& bench) {
  std::vector<Json::Object> rows;
  for (const GroupedBenchRow& r : bench.rows) rows.push_back(fields(bench, r));
  return rows_csv(header(bench), rows);
}

}  // namespace nibble::tool
