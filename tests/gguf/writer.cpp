#include "tests/gguf/writer.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace nibble::test {
namespace {

template <class T>
std::string raw(T v) {
  std::string out(sizeof v, '\0');
  std::memcpy(out.data(), &v, sizeof v);
  return out;
}

std::string string_of(const std::string& text) {
  return raw<std::uint64_t>(text.size()) + text;
}

std::string list(std::uint32_t type, std::size_t count) {
  return raw(type) + raw<std::uint64_t>(count);
}

void pad(std::string& out) {
  out.resize((out.size() + 31) / 32 * 32);
}

constexpr std::uint32_t kU16 = 2, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

}  // namespace

GgufWriter& GgufWriter::put(const std::string& key, std::uint32_t type, const std::string& value) {
  const std::string typed = raw(type) + value;
  for (Pair& p : pairs_) {
    if (p.key == key) {
      p.value = typed;
      return *this;
    }
  }
  pairs_.push_back({key, typed});
  return *this;
}

GgufWriter& GgufWriter::text(const std::string& key, const std::string& value) {
  return put(key, kString, string_of(value));
}
GgufWriter& GgufWriter::u32(const std::string& key, std::uint32_t value) {
  return put(key, kU32, raw(value));
}
GgufWriter& GgufWriter::u16(const std::string& key, std::uint16_t value) {
  return put(key, kU16, raw(value));
}
GgufWriter& GgufWriter::i32(const std::string& key, std::int32_t value) {
  return put(key, kI32, raw(value));
}
GgufWriter& GgufWriter::f32(const std::string& key, float value) {
  return put(key, kF32, raw(value));
}
GgufWriter& GgufWriter::flag(const std::string& key, bool value) {
  return put(key, kBool, raw<std::uint8_t>(value));
}

GgufWriter& GgufWriter::texts(const std::string& key, const std::vector<std::string>& values) {
  std::string all = list(kString, values.size());
  for (const std::string& v : values) all += string_of(v);
  return put(key, kArray, all);
}

GgufWriter& GgufWriter::i32s(const std::string& key, const std::vector<std::int32_t>& values) {
  std::string all = list(kI32, values.size());
  for (const std::int32_t v : values) all += raw(v);
  return put(key, kArray, all);
}

GgufWriter& GgufWriter::flags(const std::string& key, const std::vector<bool>& values) {
  std::string all = list(kBool, values.size());
  for (const bool v : values) all += raw<std::uint8_t>(v);
  return put(key, kArray, all);
}

GgufWriter& GgufWriter::remove(const std::string& key) {
  std::erase_if(pairs_, [&](const Pair& p) { return p.key == key; });
  return *this;
}

GgufWriter::Tensor& GgufWriter::tensor(const std::string& name) {
  const auto at =
      std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  if (at == tensors.end()) throw std::runtime_error("no tensor " + name);
  return *at;
}

void GgufWriter::drop_tensor(const std::string& name) {
  std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
}

std::string GgufWriter::bytes() const {
  std::string out = "GGUF" + raw<std::uint32_t>(3) + raw<std::uint64_t>(tensors.size()) +
                    raw<std::uint64_t>(pairs_.size());
  for (const Pair& p : pairs_) out += string_of(p.key) + p.value;
  std::string data;
  for (const Tensor& t : tensors) {
    out += string_of(t.name) + raw<std::uint32_t>(static_cast<std::uint32_t>(t.dims.size()));
    for (const std::int64_t d : t.dims) out += raw(d);
    out += raw(t.type) + raw<std::uint64_t>(data.size());
    data += t.bytes;
    pad(data);
  }
  pad(out);
  return out + data;
}

void GgufWriter::write(const std::filesystem::path& path) const {
  std::ofstream(path, std::ios::binary) << bytes();
}

std::filesystem::path GgufWriter::write_shards(const std::filesystem::path& folder,
                                               std::size_t count) const {
  const auto five = [](std::size_t n) {
    const std::string digits = std::to_string(n);
    return std::string(5 - digits.size(), '0') + digits;
  };
  std::filesystem::path first;
  for (std::size_t n = 0; n < count; ++n) {
    GgufWriter shard;
    if (n == 0) shard.pairs_ = pairs_;
    shard.u16("split.no", static_cast<std::uint16_t>(n))
        .u16("split.count", static_cast<std::uint16_t>(count));
    shard.i32("split.tensors.count", static_cast<std::int32_t>(tensors.size()));
    const std::size_t begin = tensors.size() * n / count, end = tensors.size() * (n + 1) / count;
    shard.tensors.assign(tensors.begin() + static_cast<std::ptrdiff_t>(begin),
                         tensors.begin() + static_cast<std::ptrdiff_t>(end));
    const auto path = folder / ("m-" + five(n + 1) + "-of-" + five(count) + ".gguf");
    shard.write(path);
    if (n == 0) first = path;
  }
  return first;
}

}  // namespace nibble::test
