#include "tools/bench_delta_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/rows_report.h"
#include "tools/table.h"

namespace nibble::tool {
namespace {

Json::Object header(const DeltaBench& b) {
  return {{"nibble", version()},
          {"op", "delta"},
          {"device", b.device},
          {"kernels", b.kernels},
          {"profile", b.profile},
          {"copy_bytes_per_second", b.copy_bytes_per_second},
          {"complete", b.complete}};
}

Json::Object fields(const DeltaBench& b, const DeltaBenchRow& r) {
  return {{"key_heads", r.shape.key_heads},
          {"value_heads", r.shape.value_heads},
          {"key_dim", r.shape.key_dim},
          {"value_dim", r.shape.value_dim},
          {"sequences", r.sequences},
          {"rows", r.rows},
          {"kernel", r.kernel},
          {"seconds", r.times.median},
          {"spread", r.times.spread},
          {"bytes", r.bytes},
          {"copy_seconds", static_cast<double>(r.bytes) / b.copy_bytes_per_second},
          {"plain_seconds", r.has_plain ? Json(r.plain.median) : Json()},
          {"plain_spread", r.has_plain ? Json(r.plain.spread) : Json()}};
}

}  // namespace

std::string delta_markdown(const DeltaBench& bench) {
  std::string out = fmt::format("nibble {}: the gated delta rule of one layer\n"
                                "device: {}, kernels {}, profile {}; copies {:.0f} GB/s\n\n",
                                version(), bench.device, bench.kernels, bench.profile,
                                bench.copy_bytes_per_second * 1e-9);
  Table table({{"heads"}, {"head sizes"}, {"sequences", true}, {"T of each", true}, {"us", true}, {"copy of its bytes us", true},
               {"float32 kernel us", true}, {"kernel"}});
  for (const DeltaBenchRow& r : bench.rows) {
    table.add({fmt::format("{}/{}", r.shape.key_heads, r.shape.value_heads),
               fmt::format("{}x{}", r.shape.key_dim, r.shape.value_dim), std::to_string(r.sequences),
               std::to_string(r.rows), micros(r.times),
               fmt::format("{:.2f}", 1e6 * static_cast<double>(r.bytes) / bench.copy_bytes_per_second),
               r.has_plain ? micros(r.plain) : "", r.kernel});
  }
  return out + table.markdown();
}

std::string delta_json(const DeltaBench& bench) {
  std::vector<Json::Object> rows;
  for (const DeltaBenchRow& r : bench.rows) {
    Json::Object row = fields(bench, r);
    row.emplace_back("samples", samples_json(r.times));
    rows.push_back(std::move(row));
  }
  return rows_json(header(bench), std::move(rows));
}

std::string delta_csv(const DeltaBench& bench) {
  std::vector<Json::Object> rows;
  for (const DeltaBenchRow& r : bench.rows) rows.push_back(fields(bench, r));
  return rows_csv(header(bench), rows);
}

}  // namespace nibble::tool
