// gguf_model.h: a model in GGUF form: one file, or shards NAME-00001-of-0000N.gguf of which the
// first holds the metadata.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/gguf.h"

namespace nibble {

class GgufModel {
 public:
  // Whether a path is to be read as GGUF: by its name, so that a file of another kind is refused
  // for what is wrong with it.
  static bool names(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

  // Any file of a set of shards opens the set. Throws Error(not_found) or Error(bad_file).
  explicit GgufModel(const std::filesystem::path& path);
  explicit GgufModel(GgufFile file, std::string source);  // from memory, one file

  const std::string& source() const { return files_.front().source; }  // for errors
  JsonView metadata() const { return {metadata_, source()}; }
  std::string architecture() const { return metadata().string("general.architecture"); }

  struct Stored {
    GgufTensor tensor;
    std::size_t file = 0;
  };
  const std::vector<Stored>& tensors() const { return tensors_; }  // shard by shard
  const GgufTensor* find(std::string_view name) const;
  const std::string& file_of(const Stored& t) const { return files_[t.file].source; }
  const std::shared_ptr<const void>& owner(const Stored& t) const { return files_[t.file].owner; }

 private:
  struct File {
    std::string source;
    std::shared_ptr<const void> owner;
  };
  void add(GgufFile file, std::string source);

  Json metadata_;
  std::vector<File> files_;
  std::vector<Stored> tensors_;
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace nibble
