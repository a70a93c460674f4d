// model_files.h: what a path leads to: the folder of a Hugging Face checkpoint, or a GGUF file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/base/json.h"
#include "core/checkpoint/gguf_model.h"
#include "core/checkpoint/quant_config.h"
#include "core/checkpoint/tensor_source.h"
#include "core/text/tokenizer.h"
#include "nibble/model.h"

namespace nibble {

class ModelFiles {
 public:
  // Throws Error(not_found | bad_file); a GGUF file is read up to its tensors' data.
  explicit ModelFiles(const std::filesystem::path& path);

  struct Described {
    Json config;         // as config.json
    std::string source;  // what errors call it
    QuantConfig quant;
    std::shared_ptr<const TensorSource> tensors;
    JsonView view() const { return {config, source}; }
  };
  // Throws as Model::load does.
  Described describe() const;

  std::optional<BpeTokenizer> tokenizer() const;  // nothing where there is none
  // Tokenizer, chat template and stop tokens, each if present.
  void read_text(Model::Impl& model) const;

 private:
  Described describe_folder() const;
  Described describe_gguf() const;
  void read_folder_text(Model::Impl& model) const;
  void read_gguf_text(Model::Impl& model) const;

  std::filesystem::path path_;
  std::shared_ptr<const GgufModel> gguf_;  // null for a folder
};

}  // namespace nibble
