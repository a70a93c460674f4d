#include "tools/bench_delta_report.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/checkpoint/safetensors.h"
#include "nibble/error.h"
#include "nibble/version.h"
#include "tools/failure.h"
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
          {"state_bytes", r.state_bytes},
          {"net_seconds", r.has_net ? Json(r.net.median) : Json()},
          {"net_spread", r.has_net ? Json(r.net.spread) : Json()},
          {"net_kernel", r.net_kernel},
          {"plain_seconds", r.has_plain ? Json(r.plain.median) : Json()},
          {"plain_spread", r.has_plain ? Json(r.plain.spread) : Json()}};
}

}  // namespace

std::string delta_markdown(const DeltaBench& bench) {
  std::string out = fmt::format("nibble {}: the gated delta rule of one layer, and its net: convolution, gates, rule, gated norm\n"
                                "device: {}, kernels {}, profile {}; copies {:.0f} GB/s\n\n",
                                version(), bench.device, bench.kernels, bench.profile,
                                bench.copy_bytes_per_second * 1e-9);
  Table table({{"heads"}, {"head sizes"}, {"sequences", true}, {"T of each", true}, {"us", true}, {"copy of its bytes us", true},
               {"whole net us", true}, {"copy of S us", true}, {"float32 kernel us", true}, {"kernel"}});
  for (const DeltaBenchRow& r : bench.rows) {
    table.add({fmt::format("{}/{}", r.shape.key_heads, r.shape.value_heads),
               fmt::format("{}x{}", r.shape.key_dim, r.shape.value_dim), std::to_string(r.sequences),
               std::to_string(r.rows), micros(r.times),
               fmt::format("{:.2f}", 1e6 * static_cast<double>(r.bytes) / bench.copy_bytes_per_second),
               r.has_net ? micros(r.net) : "",
               fmt::format("{:.2f}", 1e6 * static_cast<double>(r.state_bytes) / bench.copy_bytes_per_second),
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

decltype(DeltaBenchOptions::on_result) delta_saver(const std::string& folder) {
  std::error_code failed;
  if (std::filesystem::exists(folder, failed) && !std::filesystem::is_directory(folder, failed)) {
    throw usage_error(fmt::format("--save: expected a folder or a place for one, found {}", in_quotes(folder)));
  }
  return [folder](const DeltaBenchShape& s, std::int32_t sequences, std::int64_t rows, std::span<const std::uint16_t> qkv,
                  std::span<const float> g, std::span<const float> beta, std::span<const std::uint16_t> y) {
    std::error_code made;
    std::filesystem::create_directories(folder, made);
    if (made) throw Error(ErrorCode::bad_file, "[bench ops] --save: " + in_quotes(folder) + ": " + made.message());
    const std::int64_t keys = std::int64_t{s.key_heads} * s.key_dim, values = std::int64_t{s.value_heads} * s.value_dim;
    std::vector<std::uint16_t> parts[3];
    for (std::int64_t row = 0; row < sequences * rows; ++row) {
      const auto from = qkv.begin() + row * (2 * keys + values);
      parts[0].insert(parts[0].end(), from, from + keys);
      parts[1].insert(parts[1].end(), from + keys, from + 2 * keys);
      parts[2].insert(parts[2].end(), from + 2 * keys, from + 2 * keys + values);
    }
    const auto tensor = [&](const char* name, DType type, std::vector<std::int64_t> of_row, auto data) {
      of_row.insert(of_row.begin(), {sequences, rows});
      return TensorInfo{name, type, std::move(of_row), std::as_bytes(std::span(data.data(), data.size()))};
    };
    const TensorInfo all[] = {tensor("q", DType::bf16, {s.key_heads, s.key_dim}, std::span(parts[0])),
                              tensor("k", DType::bf16, {s.key_heads, s.key_dim}, std::span(parts[1])),
                              tensor("v", DType::bf16, {s.value_heads, s.value_dim}, std::span(parts[2])),
                              tensor("g", DType::f32, {s.value_heads}, g),
                              tensor("beta", DType::f32, {s.value_heads}, beta),
                              tensor("y", DType::bf16, {s.value_heads, s.value_dim}, y)};
    write_safetensors(std::filesystem::path(folder) / fmt::format("delta-{}-{}-{}x{}.safetensors", s.key_heads, s.value_heads, sequences, rows), all);
  };
}

}  // namespace nibble::tool
