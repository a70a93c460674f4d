// writer.h: writes GGUF files, for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble::test {

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::uint32_t type = 0;
    std::vector<std::int64_t> dims;  // innermost first
    std::string bytes;
  };
  std::vector<Tensor> tensors;

  // Each replaces a pair of the same key.
  GgufWriter& text(const std::string& key, const std::string& value);
  GgufWriter& u32(const std::string& key, std::uint32_t value);
  GgufWriter& u16(const std::string& key, std::uint16_t value);
  GgufWriter& i32(const std::string& key, std::int32_t value);
  GgufWriter& f32(const std::string& key, float value);
  GgufWriter& flag(const std::string& key, bool value);
  GgufWriter& texts(const std::string& key, const std::vector<std::string>& values);
  GgufWriter& i32s(const std::string& key, const std::vector<std::int32_t>& values);
  GgufWriter& flags(const std::string& key, const std::vector<bool>& values);
  GgufWriter& remove(const std::string& key);

  Tensor& tensor(const std::string& name);  // throws where there is none
  void drop_tensor(const std::string& name);

  std::string bytes() const;
  void write(const std::filesystem::path& path) const;
  // NAME-0000n-of-0000N.gguf in `folder`, as many tensors in each; returns the first.
  std::filesystem::path write_shards(const std::filesystem::path& folder, std::size_t count) const;

 private:
  struct Pair {
    std::string key, value;  // the value with its type before it
  };
  GgufWriter& put(const std::string& key, std::uint32_t type, const std::string& value);
  std::vector<Pair> pairs_;
};

}  // namespace nibble::test
