// load.h: from the MODEL argument to a loaded model.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "nibble/model.h"
#include "tools/args.h"
#include "tools/console.h"

namespace nibble::tool {

// What MODEL names: a folder, the one around a file of the checkpoint, or a GGUF file.
std::filesystem::path model_path(const std::string& path);

struct Loaded {
  Model model;
  double seconds;
};

// With a bar and notes on stderr. Throws Failure with the exit code that fits.
Loaded load_model(Console& console, const ModelArgs& args);
Loaded load_with(Console& console, const LoadOptions& how,
                 const std::function<Model(const LoadOptions&)>& load);

// How many bytes are packed, how many stay in mapped files: "1.68 GiB packed".
std::string weights_text(const ModelInfo& info);

// Throws Failure(kBadModel) for a model without one.
const Tokenizer& tokenizer_of(const Model& model);

// Runs `work`; an Error of the library becomes a Failure of "cannot be loaded" and its relatives.
void as_load_failure(const std::function<void()>& work, const char* meanwhile = "loading the model");

}  // namespace nibble::tool
