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

// "4,242.0 GB/s ..." or why there is none.
std::string rate_text(double rate, double unit, const char* name, const std::string& text) {
  return rate > 0 ? fmt::format("{:.1f} {} ({})", rate / unit, name, text) : fmt::format("{} not measured: {}", name, text);
}

std::string card_text(const DeviceRoofs& rates, int samples, bool fp8) {
  std::string out = fmt::format("roofs, medians of {} samples in this run: {}; {}", samples,
                                rate_text(rates.copy_bytes_per_second, 1e9, "GB/s", rates.copy),
                                rate_text(rates.matrix_flops_per_second, 1e12, "TFLOP/s bf16", rates.matrix));
  if (fp8) out += "; " + rate_text(rates.fp8_flops_per_second, 1e12, "TFLOP/s fp8", rates.fp8);
  return out + "\n";
}

std::string cell(double value, const char* format) { return value > 0 ? fmt::format(fmt::runtime(format), value) : ""; }

}  // namespace

RowRoof BenchReport::roof_of(const BenchResult& r) const {
  if (card) return tool::roof_of(info, r.what, work_of(info, r.what, kv_position_bytes, step_tokens), *card);
  if (!has_roof) return {};
  if (is_decode(r)) {
    // One step makes a token for each sequence and reads every weight once.
    return {r.what.batch * roof.read_bytes_per_second / static_cast<double>(step_bytes(info)), "weight bytes / reads"};
  }
  const double row = static_cast<double>(info.body.parameters) +
                     static_cast<double>(info.head.parameters) / static_cast<double>(r.what.tokens);
  return {roof.linear_flops_per_second() / (2 * row),
          roof.bf16_flops_per_second > 0 ? "linear layers / bf16" : "linear layers / float32"};
}

double BenchReport::roof_part(const BenchResult& r) const {
  const RowRoof of = roof_of(r);
  return of.tokens_per_second > 0 ? r.mean / of.tokens_per_second : 0;
}

std::string BenchReport::markdown() const {
  std::string out = fmt::format(
      "nibble {}: {}, {}\n"
      "device: {} ({}), kernels {}, {} threads, profile {}, activations {}{}\n"
      "weights: {}, {} ({} parameters) read by a decode step\n",
      version(), mix.empty() ? model : fmt::format("{} with weights {}", model, mix), info.architecture, info.backend, info.device, info.kernels, info.threads,
      info.profile, info.activations, info.kv_cache_dtype == "fp8" ? ", keys and values in fp8" : "", weights_text(info),
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
  if (card) out += card_text(*card, roof_samples, runs_fp8(info));
  for (const std::string& row : left_out) out += "left out: " + row + "\n";
  Table table({{"test"}, {"batch", true}, {"tokens/s", true}, {"ms", true}, {"roof tokens/s", true}, {"of roof", true}, {"roof"}});
  for (const BenchResult& r : results) {
    const RowRoof of = roof_of(r);
    const double step =
        is_decode(r) ? r.what.batch / r.mean : static_cast<double>(r.what.tokens) / r.mean;
    table.add({r.what.name(), std::to_string(r.what.batch),
               r.samples.size() > 1 ? fmt::format("{:.2f} ± {:.2f}", r.mean, r.deviation)
                                    : fmt::format("{:.2f}", r.mean),
               fmt::format("{:.3f}", step * 1e3),
               of.tokens_per_second > 0 ? format_rate(of.tokens_per_second) : "-",
               of.tokens_per_second > 0 ? fmt::format("{:.1f} %", 100 * roof_part(r)) : "-",
               of.text.empty() ? "-" : of.text});
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
                      {"kv_cache_dtype", info.kv_cache_dtype},
                      {"packing", info.packing},
                      {"weight_bytes", info.weight_bytes},
                      {"mapped_bytes", info.mapped_bytes},
                      {"step_weight_bytes", step_bytes(info)},
                      {"body_parameters", info.body.parameters},
                      {"head_parameters", info.head.parameters},
                      {"repetitions", repetitions}};
  if (!mix.empty()) header.emplace_back("mix", mix);
  if (!left_out.empty()) header.emplace_back("left_out", Json::Array(left_out.begin(), left_out.end()));
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
  if (card) {
    const auto rate = [](double value) { return value > 0 ? Json(value) : Json(); };
    header.emplace_back("card_roofs", Json::Object{{"samples", roof_samples},
                                                   {"copy_bytes_per_second", rate(card->copy_bytes_per_second)},
                                                   {"copy", card->copy},
                                                   {"matrix_flops_per_second", rate(card->matrix_flops_per_second)},
                                                   {"matrix", card->matrix},
                                                   {"fp8_flops_per_second", rate(card->fp8_flops_per_second)},
                                                   {"fp8", card->fp8}});
  }
  Json::Array rows;
  for (const BenchResult& r : results) {
    Json::Object row{
        {"test", r.what.name()},    {"kind", is_decode(r) ? "decode" : "prefill"},
        {"tokens", r.what.tokens},  {"depth", r.what.depth},
        {"batch", r.what.batch},    {"tokens_per_second", r.mean},
        {"deviation", r.deviation}, {"samples", Json::Array(r.samples.begin(), r.samples.end())}};
    if (const RowRoof of = roof_of(r); of.tokens_per_second > 0) {
      row.emplace_back("roof_part", roof_part(r));
      row.emplace_back("roof_tokens_per_second", of.tokens_per_second);
      row.emplace_back("roof", of.text);
    } else if (!of.text.empty()) {
      row.emplace_back("no_roof", of.text);
    }
    if (r.traced) row.emplace_back("trace", summary_json(*r.traced));
    rows.emplace_back(std::move(row));
  }
  return Json(Json::Object{{"header", std::move(header)}, {"rows", std::move(rows)}}).dump(2) +
         "\n";
}

std::string BenchReport::csv() const {
  std::vector<Column> columns = {{"model"},
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
               {"roof_part"},
               {"mix"},
               {"copy_bytes_per_second"},
               {"matrix_flops_per_second"},
               {"fp8_flops_per_second"},
               {"roof_tokens_per_second"},
               {"roof"},
               {"busy_share"},
               {"kernels_per_step"},
               {"longest_stall_seconds"},
               {"to_device_bytes"},
               {"to_host_bytes"}};
  for (const std::string_view name : op_classes()) columns.push_back({class_key(name) + "_share"});
  columns.push_back({"kv_cache_dtype"});
  Table table(columns);
  for (const BenchResult& r : results) {
    const RowRoof of = roof_of(r);
    std::vector<std::string> cells = {model, info.backend, info.device, info.kernels, info.profile, std::to_string(info.threads),
               info.activations, info.packing ? "on" : "off", std::to_string(info.weight_bytes),
               std::to_string(info.mapped_bytes),
               std::to_string(step_bytes(info)), r.what.name(), is_decode(r) ? "decode" : "prefill",
               std::to_string(r.what.tokens), std::to_string(r.what.depth),
               std::to_string(r.what.batch), fmt::format("{:.6g}", r.mean),
               fmt::format("{:.6g}", r.deviation), std::to_string(r.samples.size()),
               has_roof ? fmt::format("{:.6g}", roof.read_bytes_per_second) : "",
               has_roof ? fmt::format("{:.6g}", roof.float_flops_per_second) : "",
               roof.bf16_flops_per_second > 0 ? fmt::format("{:.6g}", roof.bf16_flops_per_second) : "",
               cell(roof_part(r), "{:.4f}"), mix};
    const DeviceRoofs rates = card.value_or(DeviceRoofs{});
    for (const double rate : {rates.copy_bytes_per_second, rates.matrix_flops_per_second, rates.fp8_flops_per_second,
                              of.tokens_per_second}) {
      cells.push_back(cell(rate, "{:.6g}"));
    }
    cells.push_back(of.tokens_per_second > 0 ? of.text : "");
    if (r.traced) {
      const TraceSummary& t = *r.traced;
      cells.insert(cells.end(), {fmt::format("{:.4f}", t.busy_share), fmt::format("{:.6g}", t.kernels_per_step),
                                 fmt::format("{:.6g}", t.longest_stall_seconds), std::to_string(t.to_device_bytes),
                                 std::to_string(t.to_host_bytes)});
      for (const auto& [name, share] : t.class_shares) cells.push_back(fmt::format("{:.4f}", share));
    }
    cells.resize(columns.size() - 1);
    cells.push_back(info.kv_cache_dtype);
    table.add(std::move(cells));
  }
  return table.csv();
}

}  // namespace nibble::tool
