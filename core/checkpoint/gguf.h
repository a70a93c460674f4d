// gguf.h: reads one GGUF file (versions 2 and 3, little-endian).
//
// Layout: "GGUF", u32 version, u64 tensors, u64 pairs; the pairs of metadata (key, type, value);
// the tensors' descriptions (name, u32 dims, u64 each, u32 type, u64 offset inside the data);
// padding to general.alignment; the data, in which tensors follow one another, each padded.
// Every one of these rules is checked before anything is handed out.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/json.h"
#include "core/checkpoint/gguf_types.h"

namespace nibble {

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<std::int64_t> dims;  // as the file has them: innermost first
  Bytes bytes;                     // whole blocks; may be unaligned
};

class GgufFile {
 public:
  // Maps the file. Throws Error(not_found) or Error(bad_file).
  explicit GgufFile(const std::filesystem::path& path);
  // Reads from memory that `owner` keeps alive; `source` is what errors call it.
  GgufFile(Bytes file, const std::string& source, std::shared_ptr<const void> owner);

  const Json& metadata() const { return metadata_; }                   // an object, in file order
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  void read(Bytes file, const std::string& source);

  Json metadata_;
  std::vector<GgufTensor> tensors_;
  std::shared_ptr<const void> owner_;
};

}  // namespace nibble
