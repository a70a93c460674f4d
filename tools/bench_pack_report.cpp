#include "tools/bench_pack_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/rows_report.h"
#include "tools/table.h"

namespace nibble::tool {
namespace {

// Per cent over the op by itself.
double over(const LaunchTimes& t, const PackBenchRow& r) { return 100 * (t.median / r.alone.median - 1); }

Json::Object header(const PackBench& b) {
  return {{"nibble", version()},  {"op", "pack"},           {"device", b.device},
          {"kernels", b.kernels}, {"profile", b.profile},   {"complete", b.complete}};
}

Json::Object fields(const PackBenchRow& r) {
  return {{"made_by", r.shape.op},
          {"cols", r.shape.cols},
          {"group", r.shape.group},
          {"format", r.format},
          {"rows", r.rows},
          {"alone_seconds", r.alone.median},
          {"alone_spread", r.alone.spread},
          {"two_seconds", r.two.median},
          {"two_spread", r.two.spread},
          {"fused_seconds", r.fused.median},
          {"fused_spread", r.fused.spread},
          {"two_over_alone", r.two.median / r.alone.median},
          {"fused_over_alone", r.fused.median / r.alone.median},
          {"kernel", r.kernel}};
}

}  // namespace

std::string pack_markdown(const PackBench& bench) {
  std::string out = fmt::format("nibble {}: a norm or SwiGLU by itself, with quantize behind it, and fused\n"
                                "device: {}, kernels {}, profile {}\n\n",
                                version(), bench.device, bench.kernels, bench.profile);
  Table table({{"op"}, {"columns", true}, {"packed"}, {"T", true}, {"alone us", true}, {"two ops us", true},
               {"fused us", true}, {"two over alone", true}, {"fused over alone", true}, {"fused kernel"}});
  for (const PackBenchRow& r : bench.rows) {
    table.add({r.shape.op, std::to_string(r.shape.cols), r.format, std::to_string(r.rows), micros(r.alone),
               micros(r.two), micros(r.fused), fmt::format("{:+.1f} %", over(r.two, r)),
               fmt::format("{:+.1f} %", over(r.fused, r)), r.kernel});
  }
  return out + table.markdown();
}

std::string pack_json(const PackBench& bench) {
  std::vector<Json::Object> rows;
  for (const PackBenchRow& r : bench.rows) {
    Json::Object row = fields(r);
    row.emplace_back("alone_samples", samples_json(r.alone));
    row.emplace_back("two_samples", samples_json(r.two));
    row.emplace_back("fused_samples", samples_json(r.fused));
    rows.push_back(std::move(row));
  }
  return rows_json(header(bench), std::move(rows));
}

std::string pack_csv(const PackBench& bench) {
  std::vector<Json::Object> rows;
  for (const PackBenchRow& r : bench.rows) rows.push_back(fields(r));
  return rows_csv(header(bench), rows);
}

}  // namespace nibble::tool
