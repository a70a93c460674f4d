#include "tools/bench_report.h"

#include <fmt/format.h>

#include "core/base/json.h"
#include "nibble/version.h"
#include "tools/load.h"
#include "tools/table.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

bool is_decode(const BenchResult& r) {
  return r.what.kind == BenchCase::Kind::decode;
}

std::uint64_t step_bytes(const ModelInfo& info) {
  return info.body.bytes + info.head.bytes;
}

}  // namespace

double BenchReport::roof_part(const BenchResult& r) const {
  if (!has_roof) return 0;
  if (is_decode(r)) {
    // One step makes a token for each sequence and reads every weight once.
    const double steps = r.mean / r.what.batch;
    return steps * static_cast<double>(step_bytes(info)) / roof.read_bytes_per_second;
  }
  const double rows = static_cast<double>(info.body.parameters) * r.mean;
  const double heads =
      static_cast<double>(info.head.parameters) * r.mean / static_cast<double>(r.what.tokens);
  return 2 * (rows + heads) / roof.linear_flops_per_second();
}

std::string BenchReport::markdown() const {
  std::string out = fmt::format(
      "nibble {}: {}, {}\n"
      "device: {} ({}), kernels {}, {} threads, profile {}, activations {}\n"
      "weights: {}, {} ({} parameters) read by a decode step\n",
      version(), model, info.architecture, info.backend, info.device, info.kernels, info.threads,
      info.profile, info.activations, weights_text(info),
      format_bytes(step_bytes(info)),
      format_count(static_cast<std::uint64_t>(info.body.parameters + info.head.parameters)));
  if (has_roof) {
    out += fmt::format(
        "roofs, medians of this run on {} threads: {:.1f} GB/s reads ({} buffer), {:.1f} GFLOP/s "
        "float32 ({}){}\n",
        roof.threads, roof.read_bytes_per_second / 1e9,
        format_bytes(static_cast<std::uint64_t>(roof.buffer_bytes)),
        roof.float_flops_per_second / 1e9, roof.instructions,
        roof.bf16_flops_per_second > 0 ? fmt::format(", {:.1f} GFLOP/s bf16 ({})", roof.bf16_flops_per_second / 1e9,
                                                     roof.bf16_instructions)
                                       : "");
  }
  Table table(
      {{"test"}, {"batch", true}, {"tokens/s", true}, {"ms", true}, {"of roof", true}, {"roof"}});
  for (const BenchResult& r : results) {
    const double step =
        is_decode(r) ? r.what.batch / r.mean : static_cast<double>(r.what.tokens) / r.mean;
    table.add({r.what.name(), std::to_string(r.what.batch),
               r.samples.size() > 1 ? fmt::format("{:.2f} ± {:.2f}", r.mean, r.deviation)
                                    : fmt::format("{:.2f}", r.mean),
               fmt::format("{:.3f}", step * 1e3),
               has_roof ? fmt::format("{:.1f} %", 100 * roof_part(r)) : "-",
               !has_roof      ? "-"
               : is_decode(r) ? "weight bytes / reads"
               : roof.bf16_flops_per_second > 0 ? "linear layers / bf16"
                                                : "linear layers / float32"});
  }
  out += '\n';
  out += table.markdown();
  if (has_roof && static_cast<double>(step_bytes(info)) < 128.0 * (1 << 20)) {
    out +=
        "\nThe weights are small enough for a cache: decode may pass the read roof of the "
        "memory.\n";
  }
  return out;
}

std::string BenchReport::json() const {
  Json::Object header{{"nibble", version()},
                      {"model", model},
                      {"architecture", info.architecture},
                      {"layers", info.layers},
                      {"backend", info.backend},
                      {"device", info.device},
                      {"kernels", info.kernels},
                      {"threads", info.threads},
                      {"profile", info.profile},
                      {"activations", info.activations},
                      {"packing", info.packing},
                      {"weight_bytes", info.weight_bytes},
                      {"mapped_bytes", info.mapped_bytes},
                      {"step_weight_bytes", step_bytes(info)},
                      {"body_parameters", info.body.parameters},
                      {"head_parameters", info.head.parameters},
                      {"repetitions", repetitions}};
  if (has_roof) {
    header.emplace_back("roof",
                        Json::Object{{"threads", roof.threads},
                                     {"read_bytes_per_second", roof.read_bytes_per_second},
                                     {"buffer_bytes", roof.buffer_bytes},
                                     {"float_flops_per_second", roof.float_flops_per_second},
                                     {"instructions", roof.instructions}});
    if (roof.bf16_flops_per_second > 0) {
      header.emplace_back("bf16_roof", Json::Object{{"flops_per_second", roof.bf16_flops_per_second},
                                                    {"instructions", roof.bf16_instructions}});
    }
  }
  Json::Array rows;
  for (const BenchResult& r : results) {
    Json::Object row{
        {"test", r.what.name()},    {"kind", is_decode(r) ? "decode" : "prefill"},
        {"tokens", r.what.tokens},  {"depth", r.what.depth},
        {"batch", r.what.batch},    {"tokens_per_second", r.mean},
        {"deviation", r.deviation}, {"samples", Json::Array(r.samples.begin(), r.samples.end())}};
    if (has_roof) row.emplace_back("roof_part", roof_part(r));
    rows.emplace_back(std::move(row));
  }
  return Json(Json::Object{{"header", std::move(header)}, {"rows", std::move(rows)}}).dump(2) +
         "\n";
}

std::string BenchReport::csv() const {
  Table table({{"model"},
               {"backend"},
               {"device"},
               {"kernels"},
               {"profile"},
               {"threads"},
               {"activations"},
               {"packing"},
               {"weight_bytes"},
               {"mapped_bytes"},
               {"step_weight_bytes"},
               {"test"},
               {"kind"},
               {"tokens"},
               {"depth"},
               {"batch"},
               {"tokens_per_second"},
               {"deviation"},
               {"repetitions"},
               {"read_bytes_per_second"},
               {"float_flops_per_second"},
               {"bf16_flops_per_second"},
               {"roof_part"}});
  for (const BenchResult& r : results) {
    table.add({model, info.backend, info.device, info.kernels, info.profile, std::to_string(info.threads),
               info.activations, info.packing ? "on" : "off", std::to_string(info.weight_bytes),
               std::to_string(info.mapped_bytes),
               std::to_string(step_bytes(info)), r.what.name(), is_decode(r) ? "decode" : "prefill",
               std::to_string(r.what.tokens), std::to_string(r.what.depth),
               std::to_string(r.what.batch), fmt::format("{:.6g}", r.mean),
               fmt::format("{:.6g}", r.deviation), std::to_string(r.samples.size()),
               has_roof ? fmt::format("{:.6g}", roof.read_bytes_per_second) : "",
               has_roof ? fmt::format("{:.6g}", roof.float_flops_per_second) : "",
               roof.bf16_flops_per_second > 0 ? fmt::format("{:.6g}", roof.bf16_flops_per_second) : "",
               has_roof ? fmt::format("{:.4f}", roof_part(r)) : ""});
  }
  return table.csv();
}

}  // namespace nibble::tool
