// folder.h: a copy of a shipped checkpoint that a test may change: one shard, tensors in memory.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/safetensors.h"

namespace nibble::test {

class Folder {
 public:
  // Everything of that folder under tests/data but its vision and draft-head tensors.
  explicit Folder(const std::string& of = "model/hf-nvfp4-ct");
  ~Folder();
  Folder(const Folder&) = delete;

  std::filesystem::path path;  // removed at the end
  Json config;

  struct Entry {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Entry> tensors;

  void rename(const std::string& from, const std::string& to);  // prefix of names
  void write() const;                                           // model.safetensors and config.json
  void put(const std::string& file, const std::string& text) const;
  std::string get(const std::string& file) const;
};

}  // namespace nibble::test
