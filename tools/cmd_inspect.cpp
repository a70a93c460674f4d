// cmd_inspect.cpp: `nibble inspect`: what a checkpoint is and what loading it would take.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "tools/args.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"
#include "tools/table.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(Nothing is loaded: headers are read and the memory is planned for the options given here; with
--activations a8 the 4-bit matrices are read too, and what re-encoding them to FP8 loses is printed. A
checkpoint that nibble refuses ends with status 3 and the reason.

Examples:
  nibble inspect models/qwen
  nibble inspect models/qwen --memory --kv-tokens 131072 --max-sequences 4
  nibble inspect models/qwen --tensors --json
  nibble inspect models/qwen-Q8_0.gguf)";

std::string layers_text(const ModelInfo& info) {
  std::string out;
  if (const auto& a = info.attention; a.layers > 0) {
    out += fmt::format(
        "attention     {} layers, {} heads of {}, {} KV heads, rotary {} of {}, theta {:g}{}\n", a.layers,
        a.heads, a.head_dim, a.kv_heads, a.rotary_dim, a.head_dim, a.rope_theta,
        a.rope_scaling == "none" ? "" : ", scaled: " + a.rope_scaling);
  }
  if (const auto& d = info.delta_net; d.layers > 0) {
    out += fmt::format(
        "delta net     {} layers, {} key heads of {}, {} value heads of {}, convolution over {}\n",
        d.layers, d.key_heads, d.key_dim, d.value_heads, d.value_dim, d.conv_kernel);
  }
  if (const auto& e = info.experts; e.layers > 0) {
    std::int64_t all = 0;
    for (const auto& row : info.formats) all += row.parameters;
    const auto count = [](std::int64_t n) { return format_count(static_cast<std::uint64_t>(n)); };
    out += fmt::format("experts       {} layers, {} of {} for a token, {} wide; {} parameters, {} active\n", e.layers,
                       e.per_token, e.experts, e.intermediate, count(e.parameters), count(e.active_parameters));
    out += fmt::format("parameters    {} in all, {} active (linear layers that serve a token)\n", count(all),
                       count(info.body.parameters + info.head.parameters));
  }
  return out + fmt::format("norms, head   eps {:g}, head {}\n", info.rms_eps,
                           info.tied_head ? "tied to the embedding" : "of its own");
}

// Where the parts come from: what is declared of their formats, files, text side.
std::string sources_text(const ModelInfo& info) {
  constexpr std::size_t kMost = 4;  // module names in the text; --json has all
  const auto& q = info.quantisation;
  std::string out = fmt::format("declared      {}\n", q.method);
  for (const std::string& group : q.groups) out += fmt::format("              {}\n", one_line(group));
  if (!q.ignored.empty()) {
    const std::vector<std::string> some(q.ignored.begin(),
                                        q.ignored.begin() + static_cast<std::ptrdiff_t>(
                                                                std::min(kMost, q.ignored.size())));
    out += fmt::format("left alone    {} names: {}{}\n", q.ignored.size(),
                       one_line(fmt::format("{}", fmt::join(some, ", "))),
                       q.ignored.size() > kMost ? ", ... (--json has all)" : "");
  }
  for (const auto& file : info.files) {
    out += fmt::format("file          {}: {} tensors, {}\n", one_line(file.name), file.tensors,
                       format_bytes(file.bytes));
  }
  out += info.tokenizer.empty()
             ? "tokenizer     none\n"
             : fmt::format("tokenizer     {}, {} ids\n", info.tokenizer, info.tokenizer_size);
  return out + fmt::format("text          chat template: {}, stop tokens: {}\n",
                           info.chat_template ? "yes" : "none",
                           info.stop_tokens.empty()
                               ? "none"
                               : fmt::format("{}", fmt::join(info.stop_tokens, ", ")));
}

std::string summary(const ModelInfo& info) {
  return fmt::format(
      "architecture  {}\n"
      "size          {} layers, hidden {}, vocabulary {}, {} positions\n"
      "{}"
      "runs on       {} ({}), {} threads, kernels {}\n"
      "arithmetic    profile {}, activations {}{}\n",
      info.architecture, info.layers, info.hidden, info.vocab, info.max_positions, layers_text(info),
      info.backend, info.device, info.threads, info.kernels, info.profile, info.activations,
      info.kv_cache_dtype == "fp8" ? ", keys and values in fp8" : "");
}

std::string formats_table(const ModelInfo& info) {
  Table table(
      {{"format"}, {"tensors", true}, {"parameters", true}, {"size", true}, {"bits each", true}});
  const auto add = [&](const std::string& name, std::int64_t tensors, std::int64_t parameters,
                       std::uint64_t bytes) {
    const double bits =
        parameters > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters) : 0;
    table.add({name, std::to_string(tensors), format_count(static_cast<std::uint64_t>(parameters)),
               format_bytes(bytes), fmt::format("{:.2f}", bits)});
  };
  ModelInfo::FormatRow sum;
  for (const auto& row : info.formats) {
    add(row.format, row.tensors, row.parameters, row.bytes);
    sum.tensors += row.tensors;
    sum.parameters += row.parameters;
    sum.bytes += row.bytes;
  }
  add("all", sum.tensors, sum.parameters, sum.bytes);
  return table.aligned();
}

std::string memory_table(const ModelInfo& info) {
  Table table({{"memory"}, {"size", true}, {"bytes", true}});
  const auto add = [&](const char* name, std::uint64_t bytes) {
    table.add({name, format_bytes(bytes), std::to_string(bytes)});
  };
  add(info.packing ? "weights" : "weights that are packed, scales", info.weight_bytes);
  add("constants (norms, decays)", info.constant_bytes);
  add(info.kv_cache_dtype == "fp8" ? "KV cache, fp8" : "KV cache", info.kv_bytes);
  add("delta and conv state", info.delta_bytes);
  add("token counts (penalty)", info.count_bytes);
  add("scratch (largest program)", info.scratch_bytes);
  add("all", info.total_bytes());
  if (!info.packing) add("weights read in mapped files, beside", info.mapped_bytes);
  add("peak while loading", info.total_bytes() + info.loading_bytes);
  std::string out = table.aligned();
  if (info.programs.empty()) return out;
  Table programs({{"program"}, {"ops", true}, {"scratch", true}});
  for (const auto& row : info.programs) {
    programs.add({row.name, std::to_string(row.ops), format_bytes(row.scratch_bytes)});
  }
  out += '\n';
  return out + programs.aligned();
}

std::string tensor_table(const std::vector<TensorRow>& tensors) {
  Table table({{"tensor"}, {"format"}, {"shape", true}, {"size", true}, {"activations"}});
  for (const TensorRow& t : tensors) {
    table.add({t.name, t.format, fmt::format("{}", fmt::join(t.shape, " x ")), format_bytes(t.bytes),
               t.matrix ? t.activations : "-"});
  }
  return table.aligned();
}

// Mode a8: what re-encoding loses, against the NVFP4 values.
std::string reencoded_table(const ModelInfo& info) {
  Table table({{"re-encoded to FP8"}, {"shape", true}, {"scale", true}, {"changed", true}, {"relative L2", true}});
  const auto add = [&](const std::string& name, const std::string& shape, const std::string& scale, double inexact,
                       double elements, double error2, double size2) {
    table.add({name, shape, scale, fmt::format("{:.1f} %", 100 * inexact / elements),
               fmt::format("{:.3f} %", size2 > 0 ? 100 * std::sqrt(error2 / size2) : 0.0)});
  };
  ModelInfo::ReencodedRow sum;
  std::int64_t elements = 0;
  for (const auto& row : info.reencoded) {
    add(one_line(row.name), fmt::format("{} x {}", row.rows, row.cols), fmt::format("6 * 2^{}", row.exponent),
        static_cast<double>(row.inexact), static_cast<double>(row.rows * row.cols), row.error2, row.size2);
    sum.inexact += row.inexact;
    sum.error2 += row.error2;
    sum.size2 += row.size2;
    elements += row.rows * row.cols;
  }
  add("all", fmt::format("{}", format_count(static_cast<std::uint64_t>(elements))), "-",
      static_cast<double>(sum.inexact), static_cast<double>(elements), sum.error2, sum.size2);
  return table.aligned();
}

// What nibble_model_info() gives, and the tensors when asked for.
Json as_json(const ModelInfo& info, const std::vector<TensorRow>* tensors) {
  Json out = Json::parse(info.json(), "model info");
  if (tensors == nullptr) return out;
  Json::Array rows;
  for (const TensorRow& t : *tensors) {
    rows.push_back(Json::Object{{"name", t.name},
                                {"kind", t.matrix ? "matrix" : "vector"},
                                {"format", t.format},
                                {"shape", Json::Array(t.shape.begin(), t.shape.end())},
                                {"bytes", t.bytes},
                                {"activations", t.matrix ? Json(t.activations) : Json()}});
  }
  out.as_object().emplace_back("tensors", std::move(rows));
  return out;
}

class Inspect final : public Command {
 public:
  explicit Inspect(CLI::App& root)
      : Command(root, "inspect", "what a checkpoint is, what loading it takes", kFooter) {
    model_.add_path(app());
    app().add_flag("--memory", memory_, "the plan of every arena and program")->group("Output");
    app()
        .add_flag("--tensors", tensors_,
                  "every matrix, then every vector (norms, convolutions, ...), with format and shape")
        ->group("Output");
    app()
        .add_flag("--json", json_, "one JSON object with all of it (--tensors adds them)")
        ->group("Output");
    model_.add_device(app());
    model_.add_sizes(app());
    add_int(app(), "--max-sequences", model_.max_sequences, 1, limits::max_sequences,
            "sessions that hold state at once")
        ->group("Memory");
    model_.output.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(model_.output.verbosity());
    const auto folder = model_path(model_.path);
    ModelInfo info;
    std::vector<TensorRow> rows;
    as_load_failure([&] {
      info = Model::inspect(folder, tensors_ ? &rows : nullptr, model_.device(),
                            model_.load_options());
    });
    if (json_) {
      console.out(as_json(info, tensors_ ? &rows : nullptr).dump(2) + "\n");
      return kOk;
    }
    std::string out =
        fmt::format("{}\n{}\n{}", summary(info), sources_text(info), formats_table(info));
    if (memory_) {
      out += fmt::format("\n{}", memory_table(info));
    } else {
      out += fmt::format("\nmemory        {} in all (--memory says for what)\n",
                         format_bytes(info.total_bytes()));
    }
    if (!info.reencoded.empty()) out += fmt::format("\n{}", reencoded_table(info));
    if (tensors_) out += fmt::format("\n{}", tensor_table(rows));
    if (!info.notes.empty()) out += '\n';
    for (const std::string& line : info.notes) out += fmt::format("note: {}\n", one_line(line));
    console.out(out);
    return kOk;
  }

 private:
  ModelArgs model_;
  bool memory_ = false, tensors_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect(CLI::App& root) {
  return std::make_unique<Inspect>(root);
}

}  // namespace nibble::tool
