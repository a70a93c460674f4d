// mapped_file.h: a read-only memory-mapped file.
#pragma once

#include <cstddef>
#include <filesystem>

#include "core/base/bytes.h"

namespace nibble {

// Move-only. Throws Error(not_found) for an absent file, Error(bad_file) for what is no regular
// file. An empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  Bytes bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace nibble
