#include "tools/load.h"

#include <fmt/format.h>

#include <chrono>
#include <new>
#include <optional>
#include <system_error>

#include "core/base/quote.h"
#include "nibble/error.h"
#include "tools/failure.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected =
    "expected a folder with config.json, *.safetensors and tokenizer.json (or a path to one of "
    "these files), or a GGUF file";

ExitCode load_exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::out_of_memory:
      return kNoMemory;
    case ErrorCode::cancelled:
      return kInterrupted;
    case ErrorCode::invalid_argument:  // an option that the model or device cannot have
    case ErrorCode::no_device:         // the command line named it, not the model
      return kUsage;
    case ErrorCode::internal:
      return kFailed;
    default:
      return kBadModel;
  }
}

}  // namespace

fs::path model_path(const std::string& path) {
  if (path.empty()) throw usage_error(fmt::format("no MODEL given: {}", kExpected));
  std::error_code ignored, failed;
  const fs::path given(path);
  const fs::file_status status = fs::status(given, failed);
  const auto unreadable = [&](const std::string& what, const std::error_code& why) {
    return Failure(kBadModel, fmt::format("model {}: {}, found {}: {}", in_quotes(path, kShownPath), kExpected,
                                          what, why.message()));
  };
  if (fs::is_directory(status)) {
    const fs::file_status config = fs::status(given / "config.json", failed);
    if (fs::exists(config)) return given;
    if (config.type() != fs::file_type::not_found) {
      throw unreadable("a folder whose config.json cannot be reached", failed);
    }
    throw Failure(kBadModel, fmt::format("model {}: {}, found a folder without config.json",
                                         in_quotes(path, kShownPath), kExpected));
  }
  if (status.type() == fs::file_type::none) {
    throw unreadable("a path that cannot be followed", failed);
  }
  if (!fs::exists(status)) {
    throw Failure(kBadModel, fmt::format("model {}: {}, found nothing at this path",
                                         in_quotes(path, kShownPath), kExpected));
  }
  const fs::path folder = given.has_parent_path() ? given.parent_path() : fs::path(".");
  const std::string extension = given.extension().string();
  if (extension == ".gguf") return given;
  const bool of_checkpoint =
      extension == ".json" || extension == ".safetensors" || extension == ".jinja";
  if (of_checkpoint && fs::exists(folder / "config.json", ignored)) return folder;
  throw Failure(kBadModel, fmt::format("model {}: {}, found a file {}", in_quotes(path, kShownPath), kExpected,
                                       of_checkpoint ? "with no config.json beside it"
                                                     : "that is no part of such a folder"));
}

void as_load_failure(const std::function<void()>& work, const char* meanwhile) {
  try {
    work();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::cancelled) throw Interrupted{};
    throw Failure(load_exit_code(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    throw Failure(kNoMemory, std::string("out of memory while ") + meanwhile);
  }
}

Loaded load_with(Console& console, const LoadOptions& options,
                 const std::function<Model(const LoadOptions&)>& load) {
  const auto start = std::chrono::steady_clock::now();
  LoadOptions how = options;
  how.on_progress = [&](const LoadProgress& p) {
    const double part =
        p.total > 0 ? static_cast<double>(p.done) / static_cast<double>(p.total) : 0;
    console.progress(p.stage, part,
                     fmt::format("{} of {}", format_bytes(p.done), format_bytes(p.total)));
    return !interrupted();
  };
  how.on_message = [&](std::string_view message) { console.note(message); };
  std::optional<Model> model;
  as_load_failure([&] { model.emplace(load(how)); });
  console.clear_progress();
  if (interrupted()) throw Interrupted{};
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  const ModelInfo& info = model->info();
  console.detail(fmt::format(
      "{}: {} on {} ({}), {} threads, kernels {}, profile {}, activations {}, loaded in {}, memory {} "
      "(at most {} while loading)",
      info.architecture, weights_text(info), info.backend, info.device, info.threads,
      info.kernels, info.profile, info.activations, format_seconds(seconds),
      format_bytes(info.total_bytes()), format_bytes(info.total_bytes() + info.loading_bytes)));
  return {*std::move(model), seconds};
}

std::string weights_text(const ModelInfo& info) {
  const std::string packed = format_bytes(info.weight_bytes) + " packed";
  return info.packing ? packed : format_bytes(info.mapped_bytes) + " read in mapped files, " + packed;
}

const Tokenizer& tokenizer_of(const Model& model) {
  if (!model.has_tokenizer()) {
    throw Failure(kBadModel, "expected a model with tokenizer.json, found none in its folder (or in the metadata of a GGUF file)");
  }
  return model.tokenizer();
}

Loaded load_model(Console& console, const ModelArgs& args) {
  const fs::path folder = model_path(args.path);
  return load_with(console, args.load_options(),
                   [&](const LoadOptions& how) { return Model::load(folder, args.device(), how); });
}

}  // namespace nibble::tool
