#include "tools/bench_ops_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/rows_report.h"
#include "tools/table.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

std::string shape_text(const LinearBenchRow& r) {
  return r.together.empty() ? fmt::format("{}x{}", r.shape.n, r.shape.k) : fmt::format("all {}", r.together.size());
}
double tera(const LinearBenchRow& r) { return r.flops() / r.ours.median * 1e-12; }
double giga_bytes(const LinearBenchRow& r) { return static_cast<double>(r.bytes) / r.ours.median * 1e-9; }

Json::Object header(const LinearBench& b) {
  return {{"nibble", version()},  {"op", "linear"},       {"device", b.device},       {"kernels", b.kernels},
          {"profile", b.profile}, {"l2_bytes", b.l2_bytes}, {"complete", b.complete}, {"has_peer", b.has_peer},
          {"peer", b.peer},       {"copy_bytes_per_second", b.copy_bytes_per_second},
          {"peer_flops_per_second", b.peer_flops_per_second}};
}

// Of a row; null where there is no peer.
Json::Object fields(const LinearBench& bench, const LinearBenchRow& r) {
  const auto of_peer = [&](auto value) { return r.peer.samples.empty() ? Json() : Json(value); };
  return {{"format", r.format},
          {"n", r.shape.n},
          {"k", r.shape.k},
          {"together", static_cast<std::int64_t>(r.together.size())},
          {"rows", r.rows},
          {"kernel", r.kernel},
          {"tile", r.tile},
          {"cold", r.cold},
          {"weight_bytes", r.weight_bytes},
          {"bytes", r.bytes},
          {"seconds", r.ours.median},
          {"spread", r.ours.spread},
          {"flops_per_second", tera(r) * 1e12},
          {"bytes_per_second", giga_bytes(r) * 1e9},
          {"roof_part", bench.roof_seconds(r) / r.ours.median},
          {"peer_seconds", of_peer(r.peer.median)},
          {"peer_spread", of_peer(r.peer.spread)},
          {"peer_cold", of_peer(r.peer_cold)},
          {"peer_ratio", of_peer(r.peer.median / r.ours.median)}};
}

// Neighbours that differ in T alone share a paragraph.
std::string explanation(const LinearBench& bench) {
  std::string out;
  for (std::size_t i = 0; i < bench.rows.size();) {
    const LinearBenchRow& first = bench.rows[i];
    std::string rows;
    for (; i < bench.rows.size(); ++i) {
      const LinearBenchRow& r = bench.rows[i];
      if (r.format != first.format || shape_text(r) != shape_text(first) || r.choices != first.choices) break;
      rows += fmt::format("{}{}", rows.empty() ? "" : ", ", r.rows);
    }
    out += fmt::format("\n{} {}, T {}\n", first.format, shape_text(first), rows);
    for (const auto& [kernel, why] : first.choices) out += fmt::format("  {}: {}\n", kernel, why);
  }
  return out;
}

}  // namespace

std::string ops_markdown(const LinearBench& bench, bool explain) {
  std::string out = fmt::format(
      "nibble {}: linear, y[T, N] = x[T, K] w[N, K]^T\n"
      "device: {}, kernels {}, profile {}, L2 {}\n"
      "peer: {}\n"
      "roofs, measured in this run: {:.1f} GB/s copies (read + written), {}\n\n",
      version(), bench.device, bench.kernels, bench.profile, format_bytes(bench.l2_bytes),
      bench.has_peer ? bench.peer + ", bf16, float32 sums" : "none: " + bench.peer,
      bench.copy_bytes_per_second * 1e-9,
      bench.has_peer ? fmt::format("{:.1f} TFLOP/s bf16 ({})", bench.peer_flops_per_second * 1e-12, bench.peer)
                     : "no rate of operations without a peer");
  Table table({{"weight"}, {"N x K"}, {"T", true}, {"us", true}, {"TFLOP/s", true}, {"GB/s", true},
               {"of roof", true}, {"L2"}, {"kernel"}, {"peer us", true}, {"peer/ours", true}});
  for (const LinearBenchRow& r : bench.rows) {
    const bool peer = !r.peer.samples.empty();
    table.add({r.format, shape_text(r), std::to_string(r.rows),
               fmt::format("{:.2f} ± {:.2f}", r.ours.median * 1e6, r.ours.spread * 1e6),
               fmt::format("{:.2f}", tera(r)), fmt::format("{:.1f}", giga_bytes(r)),
               fmt::format("{:.1f} %", 100 * bench.roof_seconds(r) / r.ours.median), r.cold ? "cold" : "as is",
               r.tile.empty() ? r.kernel : r.tile,
               peer ? fmt::format("{:.2f} ± {:.2f}", r.peer.median * 1e6, r.peer.spread * 1e6) : "-",
               peer ? fmt::format("{:.3f}", r.peer.median / r.ours.median) : "-"});
  }
  out += table.markdown();
  return explain ? out + explanation(bench) : out;
}

std::string ops_json(const LinearBench& bench, bool explain) {
  std::vector<Json::Object> rows;
  for (const LinearBenchRow& r : bench.rows) {
    Json::Object row = fields(bench, r);
    row.emplace_back("samples", samples_json(r.ours));
    row.emplace_back("peer_samples", samples_json(r.peer));
    if (explain) row.emplace_back("choices", choices_json(r.choices));
    rows.push_back(std::move(row));
  }
  return rows_json(header(bench), std::move(rows));
}

std::string ops_csv(const LinearBench& bench) {
  std::vector<Json::Object> rows;
  for (const LinearBenchRow& r : bench.rows) rows.push_back(fields(bench, r));
  return rows_csv(header(bench), rows);
}

}  // namespace nibble::tool
