#include "tools/args.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <random>

#include "core/base/quote.h"
#include "core/text/utf8_repair.h"
#include "tools/failure.h"

namespace nibble::tool {
namespace {

template <class T>
bool parse_whole(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return !text.empty() && result.ec == std::errc{} && result.ptr == end;
}

bool parse_real(const std::string& text, double& value) {
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) return false;
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() && std::isfinite(value);
}

// The check runs before CLI11 converts, so the conversion never fails with a text of its own.
void check_with(CLI::Option* option, const std::string& type,
                std::function<std::string(const std::string&)> check) {
  option->type_name(type);
  option->check(
      CLI::Validator([check = std::move(check)](std::string& text) { return check(text); }, ""));
}

std::string whole_error(const std::string& text, std::int64_t low, std::int64_t high) {
  std::int64_t v = 0;
  if (parse_whole(text, v) && v >= low && v <= high) return {};
  return fmt::format("expected a whole number from {} to {}, found {}", low, high, in_quotes(text));
}

// Does the device's text ("cpu:threads=2,kernels=avx2") set this key?
bool names(const std::string& device, const std::string& key) {
  return device.find(":" + key + "=") != std::string::npos || device.find("," + key + "=") != std::string::npos;
}

}  // namespace

CLI::Option* add_int(CLI::App& app, const std::string& flags, int& value, int low, int high,
                     const std::string& help) {
  CLI::Option* option = app.add_option(flags, value, help)->capture_default_str();
  check_with(option, "N", [=](const std::string& text) { return whole_error(text, low, high); });
  return option;
}

CLI::Option* add_int64(CLI::App& app, const std::string& flags, std::int64_t& value,
                       std::int64_t low, std::int64_t high, const std::string& help) {
  CLI::Option* option = app.add_option(flags, value, help)->capture_default_str();
  check_with(option, "N", [=](const std::string& text) { return whole_error(text, low, high); });
  return option;
}

CLI::Option* add_float(CLI::App& app, const std::string& flags, float& value, double low,
                       double high, const std::string& help) {
  CLI::Option* option = app.add_option(flags, value, help)->capture_default_str();
  check_with(option, "X", [=](const std::string& text) -> std::string {
    double v = 0;
    if (parse_real(text, v) && v >= low && v <= high) {
      if (v == 0 || static_cast<float>(v) != 0) return {};
      return fmt::format("expected 0 or a number of at least 1.5e-45, found {}", in_quotes(text));
    }
    return fmt::format("expected a number from {} to {}, found {}", low, high, in_quotes(text));
  });
  return option;
}

CLI::Option* add_choice(CLI::App& app, const std::string& flags, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help) {
  CLI::Option* option = app.add_option(flags, value, help)->capture_default_str();
  check_with(option, fmt::format("{}", fmt::join(choices, "|")),
             [=](const std::string& text) -> std::string {
               for (const std::string& choice : choices) {
                 if (text == choice) return {};
               }
               return fmt::format("expected one of {}, found {}", fmt::join(choices, ", "),
                                  in_quotes(text));
             });
  return option;
}

CLI::Option* not_empty(CLI::Option* option) {
  option->check(CLI::Validator(
      [](std::string& text) -> std::string {
        return text.empty() ? "expected a value that is not empty, found \"\"" : "";
      },
      ""));
  return option;
}

CLI::Option* add_list(CLI::App& app, const std::string& flags, std::string& value,
                      const std::string& help) {
  return app.add_option(flags, value, help)->capture_default_str()->type_name("N,N,...");
}

std::vector<std::int64_t> parse_list(const std::string& flag, const std::string& text,
                                     std::int64_t low, std::int64_t high) {
  std::vector<std::int64_t> out;
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::int64_t v = 0;
    if (!parse_whole(text.substr(at, end - at), v) || v < low || v > high) {
      throw usage_error(
          fmt::format("{}: expected whole numbers from {} to {} separated by commas, found {}",
                      flag, low, high, in_quotes(text)));
    }
    out.push_back(v);
    at = end + 1;
  }
  return out;
}

void OutputArgs::add(CLI::App& app) {
  app.add_flag("-q,--quiet", quiet, "no progress and no notes, errors only")->group("Messages");
  app.add_flag("-v,--verbose", verbose, "say more about what happens, on stderr")
      ->group("Messages");
}

Verbosity OutputArgs::verbosity() const {
  if (quiet && verbose) throw usage_error("expected --quiet or --verbose, found both");
  return quiet ? Verbosity::quiet : verbose ? Verbosity::verbose : Verbosity::normal;
}

void ModelArgs::add_path(CLI::App& app) {
  app.add_option("MODEL", path,
                 "folder of a checkpoint: config.json, *.safetensors, tokenizer.json (or one of "
                 "these files), or a GGUF file")
      ->type_name("");
}

void ModelArgs::add_device(CLI::App& app) {
  const char* group = "Device";
  not_empty(app.add_option(
      "--device,--backend", on,
      "where to run: cpu, cuda, cuda:1, cpu:mirror=sm90 (default: the best that is there)"))
      ->type_name("NAME")
      ->group(group);
  threads_flag_ = add_int(app, "--threads", threads, 0, std::numeric_limits<int>::max(),
          "CPU threads; 0: all; at most 256 or twice the processors")
                      ->group(group);
  kernels_flag_ = not_empty(app.add_option("--kernels", kernels,
                                           "CPU: amx or avx512_bf16 (profile bf16), avx512, avx2, neon, portable (default: the best)"))
                      ->type_name("NAME")
                      ->group(group);
  profile_flag_ = add_choice(app, "--profile", profile, {"f32", "bf16"},
                             "CPU: float32 throughout (default), or bf16 in linear layers (several times faster prompts where there is AMX)")
                      ->group(group);
  packing_flag_ = add_choice(app, "--packing", packing, {"on", "off"},
                             "CPU: copy weights into an image for the kernels, or read them from the mapped file (sooner "
                             "first token, slower after it, same bits)")
                      ->group(group);
  arch_path_flag_ =
      not_empty(app.add_option(
                    "--arch-path", arch_path,
                    "CUDA: run the kernels of sm70, sm90 or sm120, emulated where the card lacks the instruction"))
          ->type_name("NAME")
          ->group(group);
  add_choice(app, "--activations", activations, {"a16", "declared", "a8"},
             "inputs of linear layers: not quantised, as the checkpoint declares, or FP8 with 4-bit weights re-encoded "
             "to FP8 (a8: lossy)")
      ->group(group);
  add_choice(app, "--run-ahead", run_ahead, {"on", "off"},
             "start a step before the tokens of the one before are read (default: on a card); same answers")
      ->group(group);
}

void ModelArgs::add_sizes(CLI::App& app) {
  const char* group = "Memory";
  add_int64(app, "--kv-tokens", kv_tokens, 1, limits::kv_tokens,
            "positions of KV cache to reserve (rounded up to 64)")
      ->group(group);
  add_step_tokens(app);
}

CLI::Option* ModelArgs::add_kv_cache_dtype(CLI::App& app) {
  return add_choice(app, "--kv-cache-dtype", kv_cache_dtype, {"auto", "fp8"},
                    "keys and values as the profile has them, or e4m3 with a scale for each position of a head (lossy, half "
                    "the memory on a card)")
      ->group("Memory");
}

void ModelArgs::add_step_tokens(CLI::App& app) {
  add_kv_cache_dtype(app);
  CLI::Option* step =
      add_int(app, "--step-tokens", step_tokens, limits::least_step_tokens, limits::step_tokens,
              "rows of the largest step, a multiple of 64 from 128 on");
  step->group("Memory");
  step->check(CLI::Validator(
      [](std::string& text) -> std::string {
        int v = 0;
        if (!parse_whole(text, v) || v % 64 == 0) return {};
        return fmt::format("expected a multiple of 64, found {}", in_quotes(text));
      },
      ""));
}

Device ModelArgs::device() const {
  Device device = Device::best();
  if (!on.empty()) device = Device::parse(on);
  // What is said twice must be said alike: whichever won, the other was meant too.
  const auto set = [&](const CLI::Option* flag, const char* key, auto& value, const auto& flagged) {
    if (flag == nullptr || flag->count() == 0) return;
    if (names(on, key) && value != flagged) {
      const auto text = [](const auto& v) { return shortened(fmt::format("{}", v)); };
      throw usage_error(fmt::format("{}: expected {}, which --device {} names, found {}", flag->get_name(),
                                    text(value), in_quotes(on), text(flagged)));
    }
    value = flagged;
  };
  set(threads_flag_, "threads", device.threads, threads);
  set(kernels_flag_, "kernels", device.kernels, kernels);
  set(profile_flag_, "profile", device.profile, profile);
  set(arch_path_flag_, "arch-path", device.arch_path, arch_path);
  std::string said = device.packing ? "on" : "off";
  set(packing_flag_, "packing", said, packing);
  device.packing = said == "on";
  return device;
}

LoadOptions ModelArgs::load_options() const {
  LoadOptions options;
  options.activations = activations_from_name(activations);
  options.kv_cache_dtype = kv_cache_dtype_from_name(kv_cache_dtype);
  options.max_sequences = max_sequences;
  options.kv_tokens = (kv_tokens + 63) / 64 * 64;
  options.step_tokens = step_tokens;
  if (!run_ahead.empty()) options.run_ahead = run_ahead == "on";
  return options;
}

void SamplingArgs::add(CLI::App& app) {
  const char* group = "Sampling";
  add_int(app, "-n,--max-new-tokens", max_new_tokens, 0, std::numeric_limits<int>::max(),
          "length of the answer at most")
      ->group(group);
  add_float(app, "--temperature", temperature, 0, limits::temperature, "0: always the likeliest token")
      ->group(group);
  add_int(app, "--top-k", top_k, 0, std::numeric_limits<int>::max(),
          "only the K likeliest tokens; 0: all")
      ->group(group);
  CLI::Option* option = app.add_option("--top-p", top_p, "only the likeliest tokens that sum to P")
                            ->capture_default_str();
  option->group(group);
  check_with(option, "X", [](const std::string& text) -> std::string {
    double v = 0;
    if (parse_real(text, v) && static_cast<float>(v) > 0 && v <= 1) return {};
    return "expected a number over 0 and up to 1, found " + in_quotes(text);
  });
  add_float(app, "--min-p", min_p, 0, 1, "only tokens of at least P times the likeliest")
      ->group(group);
  add_float(app, "--repetition-penalty", repetition_penalty, 0.01, 100,
            "over 1: tokens that occurred before get less likely")
      ->group(group);
  option =
      app.add_option("--seed", seed, "same seed, same text (default: drawn, see --stats)");
  option->group(group);
  check_with(option, "N", [](const std::string& text) -> std::string {
    std::uint64_t v = 0;
    if (parse_whole(text, v)) return {};
    return fmt::format("expected a whole number from 0 to {}, found {}",
                       std::numeric_limits<std::uint64_t>::max(), in_quotes(text));
  });
  option =
      app.add_option("--stop", stop, "text that ends the answer and is not part of it; repeatable");
  option->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  check_with(option, "TEXT", [](const std::string& text) -> std::string {
    if (text.empty()) return "expected a text that is not empty, found \"\"";
    const auto at = utf8_error(text);
    return at ? fmt::format("expected UTF-8, found a text that is none at byte {}", *at) : "";
  });
  app.add_flag("--ignore-stop-tokens", ignore_stop_tokens, "go on after the model's end tokens")
      ->group(group);
}

Sampling SamplingArgs::sampling() const {
  Sampling s;
  s.temperature = temperature;
  s.top_k = top_k;
  s.top_p = top_p;
  s.min_p = min_p;
  s.repetition_penalty = repetition_penalty;
  s.max_new_tokens = max_new_tokens;
  s.stop = stop;
  s.ignore_model_stop_tokens = ignore_stop_tokens;
  if (!seed.empty()) {
    parse_whole(seed, s.seed);
  } else if (temperature > 0) {
    s.seed = std::random_device{}();
  }
  return s;
}

}  // namespace nibble::tool
