#include "tools/bench_attention_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/rows_report.h"
#include "tools/table.h"

namespace nibble::tool {
namespace {

double flops_per_second(const AttentionBenchRow& r) { return r.flops() / r.times.median; }
double bytes_per_second(const AttentionBenchRow& r) { return static_cast<double>(r.kv_bytes) / r.times.median; }

Json::Object header(const AttentionBench& b) {
  return {{"nibble", version()},
          {"op", "attention"},
          {"device", b.device},
          {"kernels", b.kernels},
          {"profile", b.profile},
          {"copy_bytes_per_second", b.copy_bytes_per_second},
          {"has_peer", b.has_peer},
          {"peer", b.peer},
          {"peer_flops_per_second", b.peer_flops_per_second},
          {"complete", b.complete}};
}

Json::Object fields(const AttentionBench& b, const AttentionBenchRow& r) {
  return {{"heads", r.shape.heads},
          {"kv_heads", r.shape.kv_heads},
          {"head_dim", r.shape.head_dim},
          {"kind", r.depth > 0 ? "decode" : "prompt"},
          {"sequences", r.sequences},
          {"rows", r.rows},
          {"depth", r.depth},
          {"kernel", r.kernel},
          {"cold", r.cold},
          {"seconds", r.times.median},
          {"spread", r.times.spread},
          {"flops_per_second", flops_per_second(r)},
          {"matrix_part", b.has_peer ? Json(flops_per_second(r) / b.peer_flops_per_second) : Json()},
          {"kv_bytes", r.kv_bytes},
          {"kv_bytes_per_second", bytes_per_second(r)},
          {"copy_part", bytes_per_second(r) / b.copy_bytes_per_second}};
}

}  // namespace

std::string attention_markdown(const AttentionBench& bench) {
  std::string out = fmt::format(
      "nibble {}: the attention of one layer\n"
      "device: {}, kernels {}, profile {}\n"
      "roofs, measured in this run: {:.1f} GB/s copies (read + written), {}\n\n",
      version(), bench.device, bench.kernels, bench.profile, bench.copy_bytes_per_second * 1e-9,
      bench.has_peer ? fmt::format("{:.1f} TFLOP/s bf16 ({})", bench.peer_flops_per_second * 1e-12, bench.peer)
                     : "no rate of products: " + bench.peer);
  Table table({{"heads"}, {"head size", true}, {"sequences", true}, {"T", true}, {"depth", true}, {"us", true},
               {"TFLOP/s", true}, {"of products", true}, {"GB/s of KV", true}, {"of copies", true}, {"L2"}, {"kernel"}});
  for (const AttentionBenchRow& r : bench.rows) {
    // What limits a prompt is operations, a step of decoding the keys and values.
    const bool decode = r.depth > 0;
    table.add({fmt::format("{}/{}", r.shape.heads, r.shape.kv_heads), std::to_string(r.shape.head_dim),
               std::to_string(r.sequences), std::to_string(r.rows), decode ? std::to_string(r.depth) : "-", micros(r.times),
               fmt::format("{:.2f}", flops_per_second(r) * 1e-12),
               !decode && bench.has_peer
                   ? fmt::format("{:.1f} %", 100 * flops_per_second(r) / bench.peer_flops_per_second)
                   : "-",
               decode ? fmt::format("{:.1f}", bytes_per_second(r) * 1e-9) : "-",
               decode ? fmt::format("{:.1f} %", 100 * bytes_per_second(r) / bench.copy_bytes_per_second) : "-",
               r.cold ? "cold" : "as is", r.kernel});
  }
  return out + table.markdown();
}

std::string attention_json(const AttentionBench& bench) {
  std::vector<Json::Object> rows;
  for (const AttentionBenchRow& r : bench.rows) {
    Json::Object row = fields(bench, r);
    row.emplace_back("samples", samples_json(r.times));
    rows.push_back(std::move(row));
  }
  return rows_json(header(bench), std::move(rows));
}

std::string attention_csv(const AttentionBench& bench) {
  std::vector<Json::Object> rows;
  for (const AttentionBenchRow& r : bench.rows) rows.push_back(fields(bench, r));
  return rows_csv(header(bench), rows);
}

}  // namespace nibble::tool
