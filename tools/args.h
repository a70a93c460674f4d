// args.h: options that several commands share, and checks that say what was expected and found.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "nibble/options.h"
#include "tools/console.h"

namespace nibble::tool {

CLI::Option* add_int(CLI::App& app, const std::string& flags, int& value, int low, int high,
                     const std::string& help);
CLI::Option* add_int64(CLI::App& app, const std::string& flags, std::int64_t& value,
                       std::int64_t low, std::int64_t high, const std::string& help);
CLI::Option* add_float(CLI::App& app, const std::string& flags, float& value, double low,
                       double high, const std::string& help);
CLI::Option* add_choice(CLI::App& app, const std::string& flags, std::string& value,
                        const std::vector<std::string>& choices, const std::string& help);
// For an option that means something else when it is absent: an empty value is refused.
CLI::Option* not_empty(CLI::Option* option);
// Whole numbers separated by commas.
CLI::Option* add_list(CLI::App& app, const std::string& flags, std::string& value,
                      const std::string& help);
std::vector<std::int64_t> parse_list(const std::string& flag, const std::string& text,
                                     std::int64_t low, std::int64_t high);

struct OutputArgs {
  bool quiet = false, verbose = false;
  void add(CLI::App& app);
  Verbosity verbosity() const;
};

// Where the model is and how it is loaded.
struct ModelArgs {
  std::string path, on, kernels, arch_path, profile, packing = "on", activations = "a16", run_ahead, kv_cache_dtype = "auto";
  int threads = 0, step_tokens = 2048, max_sequences = 1;
  std::int64_t kv_tokens = 8192;
  OutputArgs output;

  void add_path(CLI::App& app);
  void add_device(CLI::App& app);  // --device, --threads, --kernels, --packing, --activations and the rest
  void add_sizes(CLI::App& app);   // --kv-tokens and the following
  void add_step_tokens(CLI::App& app);  // --step-tokens, --kv-cache-dtype
  CLI::Option* add_kv_cache_dtype(CLI::App& app);
  Device device() const;
  LoadOptions load_options() const;  // without callbacks

 private:
  const CLI::Option *threads_flag_ = nullptr, *kernels_flag_ = nullptr, *arch_path_flag_ = nullptr,
                     *profile_flag_ = nullptr, *packing_flag_ = nullptr;
};

struct SamplingArgs {
  int max_new_tokens = 512, top_k = 0;
  float temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  std::string seed;
  std::vector<std::string> stop;
  bool ignore_stop_tokens = false;

  void add(CLI::App& app);
  // Draws a seed when sampling is random and none was given.
  Sampling sampling() const;
};

// -p TEXT, -f FILE, or standard input.
struct TextArgs {
  std::optional<std::string> text;
  std::string file;

  void add(CLI::App& app, const std::string& what);
  // `strip_newline` drops one final newline of a file or of standard input.
  std::string read(Console& console, bool strip_newline) const;
};

}  // namespace nibble::tool
