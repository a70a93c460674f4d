#include "core/checkpoint/gguf_model.h"

#include <charconv>
#include <optional>

#include "core/base/files.h"
#include "core/checkpoint/tensor_info.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kMostShards = 99'999;  // five digits

[[noreturn]] void fail(ErrorCode code, const std::string& source, const std::string& what) {
  throw Error(code, "[gguf] " + source + ": " + what);
}

struct ShardName {
  std::string stem;  // before "-00001-of-00003.gguf"
  std::int64_t number = 0, count = 0;

  std::string of(std::int64_t n) const {
    const auto five = [](std::int64_t v) {
      const std::string digits = std::to_string(v);
      return std::string(5 - digits.size(), '0') + digits;
    };
    return stem + "-" + five(n) + "-of-" + five(count) + ".gguf";
  }
};

std::optional<ShardName> shard_name(const std::string& file) {
  constexpr std::size_t kTail = 20;  // -00001-of-00003.gguf
  if (file.size() <= kTail) return std::nullopt;
  ShardName out{file.substr(0, file.size() - kTail), 0, 0};
  const std::string tail = file.substr(file.size() - kTail);
  const auto number = [](const char* from, std::int64_t& to) {
    const auto result = std::from_chars(from, from + 5, to);
    return result.ec == std::errc{} && result.ptr == from + 5;
  };
  if (!number(tail.data() + 1, out.number) || !number(tail.data() + 10, out.count))
    return std::nullopt;
  if (out.number < 1 || out.count < out.number || out.of(out.number) != file) return std::nullopt;
  return out;
}

}  // namespace

GgufModel::GgufModel(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  GgufFile file(path);
  const JsonView metadata(file.metadata(), path.string());
  const std::int64_t count = metadata.integer_or("split.count", 1, 0, kMostShards);
  if (count <= 1) {
    add(std::move(file), path.string());
    return;
  }
  const auto shard = shard_name(name);
  if (!shard || shard->count != count) {
    fail(ErrorCode::bad_file, path.string(),
         "metadata: split.count: expected a file called NAME-00001-of-NNNNN.gguf for a count of " +
             std::to_string(count) + ", found " + show_name(name));
  }
  std::int64_t expected = -1;
  for (std::int64_t n = 1; n <= count; ++n) {
    const auto at = path.parent_path() / shard->of(n);
    if (!file_present(at)) {
      fail(ErrorCode::not_found, at.string(),
           "shard " + std::to_string(n) + " of " + std::to_string(count) + " does not exist");
    }
    GgufFile one(at);
    const JsonView own(one.metadata(), at.string());
    own.integer("split.no", n - 1, n - 1);
    own.integer("split.count", count, count);
    const std::int64_t tensors = own.integer_or("split.tensors.count", expected, -1, 1 << 20);
    if (n > 1 && tensors != expected)
      own.fail("split.tensors.count", "expected " + std::to_string(expected) +
                                          " as in the first shard, found " +
                                          std::to_string(tensors));
    expected = tensors;
    add(std::move(one), at.string());
  }
  if (expected >= 0 && static_cast<std::int64_t>(tensors_.size()) != expected) {
    fail(ErrorCode::bad_file, source(),
         "metadata: split.tensors.count: expected " + std::to_string(expected) + " tensors in " +
             std::to_string(count) + " shards, found " + std::to_string(tensors_.size()));
  }
}

GgufModel::GgufModel(GgufFile file, std::string source) {
  add(std::move(file), std::move(source));
}

void GgufModel::add(GgufFile file, std::string source) {
  if (files_.empty()) metadata_ = file.metadata();
  for (const GgufTensor& t : file.tensors()) {
    const auto [at, added] = places_.emplace(t.name, tensors_.size());
    if (!added) {
      fail(ErrorCode::bad_file, source,
           "tensor " + show_name(t.name) + ": duplicate, it lies in " +
               file_of(tensors_[at->second]) + " too");
    }
    tensors_.push_back({t, files_.size()});
  }
  files_.push_back({std::move(source), file.owner()});
}

const GgufTensor* GgufModel::find(std::string_view name) const {
  const auto at = places_.find(std::string(name));
  return at == places_.end() ? nullptr : &tensors_[at->second].tensor;
}

}  // namespace nibble
