// safetensors.h: reads and writes one .safetensors file.
//
// Layout: u64 header length (little-endian), JSON header, data. The header maps names to
// {dtype, shape, data_offsets [begin, end) inside the data}; together the tensors cover the data
// without gap or overlap. Every one of these rules is checked before a tensor is handed out.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/tensor_info.h"

namespace nibble {

using SafetensorsMetadata = std::map<std::string, std::string>;

class SafetensorsFile {
 public:
  // Maps the file. Throws Error(not_found) or Error(bad_file).
  explicit SafetensorsFile(const std::filesystem::path& path);
  // Reads from memory that `owner` keeps alive; `source` is what errors call it.
  SafetensorsFile(Bytes file, const std::string& source, std::shared_ptr<const void> owner);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their data
  const std::optional<SafetensorsMetadata>& metadata() const { return metadata_; }
  const TensorInfo* find(std::string_view name) const { return index_.find(tensors_, name); }
  const std::shared_ptr<const void>& owner() const { return owner_; }  // keeps all bytes alive

 private:
  void read(Bytes file, const std::string& source);

  std::vector<TensorInfo> tensors_;
  std::optional<SafetensorsMetadata> metadata_;
  NameIndex index_;
  std::shared_ptr<const void> owner_;
};

// Writes the tensors, widest elements first so that all of them are aligned, under a temporary name
// and renames it at the end. Throws Error(invalid_argument) for a tensor whose bytes do not fit its
// shape and for a name used twice, Error(bad_file) when the disk refuses.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorInfo> tensors,
                       const SafetensorsMetadata& metadata = {});

// Bytes of a tensor; nothing when the product overflows or does not fill whole bytes.
std::optional<std::uint64_t> tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape);

}  // namespace nibble
