// golden.h: tensors of a safetensors file of golden values. Test data is trusted: a wrong name,
// type or file throws.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace nibble::test {

// The tests' data; NIBBLE_TEST_DATA in the environment where the build's own folder is not.
inline std::filesystem::path data_folder() {
  const char* const data = std::getenv("NIBBLE_TEST_DATA");
  return data != nullptr ? data : NIBBLE_TEST_DATA;
}

class Golden {
 public:
  explicit Golden(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    std::uint64_t header = 0;
    if (bytes_.size() >= 8) std::memcpy(&header, bytes_.data(), 8);
    if (bytes_.size() < 8 || header > bytes_.size() - 8)
      throw std::runtime_error("no golden file " + path.string());
    data_ = 8 + static_cast<std::size_t>(header);
    header_ = Json::parse({bytes_.data() + 8, static_cast<std::size_t>(header)}, path.string());
  }

  bool has(const std::string& name) const { return header_.find(name) != nullptr; }
  std::vector<std::int64_t> shape(const std::string& name) const {
    std::vector<std::int64_t> s;
    for (const Json& n : at(name).find("shape")->as_array()) s.push_back(n.as_int());
    return s;
  }
  std::vector<float> f32(const std::string& name) const { return read<float>(name, "F32"); }
  std::vector<double> f64(const std::string& name) const { return read<double>(name, "F64"); }
  std::vector<std::uint8_t> u8(const std::string& name) const {
    return read<std::uint8_t>(name, "U8");
  }
  std::vector<std::int32_t> i32(const std::string& name) const {
    return read<std::int32_t>(name, "I32");
  }

 private:
  const Json& at(const std::string& name) const {
    if (const Json* t = header_.find(name)) return *t;
    throw std::runtime_error("no golden tensor " + name);
  }
  template <class T>
  std::vector<T> read(const std::string& name, const std::string& dtype) const {
    const Json& t = at(name);
    if (t.find("dtype")->as_string() != dtype) throw std::runtime_error(name + " is not " + dtype);
    const auto& offsets = t.find("data_offsets")->as_array();
    const std::size_t begin = data_ + offsets[0].as_uint(), end = data_ + offsets[1].as_uint();
    std::vector<T> v((end - begin) / sizeof(T));
    std::memcpy(v.data(), bytes_.data() + begin, v.size() * sizeof(T));
    return v;
  }

  std::string bytes_;
  std::size_t data_ = 0;
  Json header_;
};

}  // namespace nibble::test
