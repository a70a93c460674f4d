#include "core/checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_set>

#include "core/base/mapped_file.h"
#include "core/checkpoint/tensor_info.h"
#include "core/text/utf8_repair.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// Elements of all arrays together: a vocabulary has three arrays of a few hundred thousand, and an
// element takes forty times the memory that it may take in the file.
constexpr std::uint64_t kMostElements = 1u << 22;
constexpr std::uint64_t kMostAlignment = 1u << 30;
constexpr std::uint32_t kMostDims = 4;
constexpr std::uint64_t kMostPairs = 1u << 16, kMostTensors = 1u << 20;
constexpr std::uint64_t kLeastPair = 8 + 1 + 4 + 1, kLeastTensor = 8 + 1 + 4 + 4 + 8;

enum Type : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kFloat64,
  kTypes
};
constexpr std::uint64_t kSizes[kTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // at least

class Reader {
 public:
  Reader(Bytes file, const std::string& source) : file_(file), source_(source) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::bad_file, "[gguf] " + source_ + ": " + what);
  }

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return file_.size() - at_; }

  template <class T>
  T number(const std::string& what) {
    if (left() < sizeof(T)) {
      fail(what + ": expected " + std::to_string(sizeof(T)) + " bytes at " + std::to_string(at_) +
           ", found the end of the file: truncated");
    }
    const T v = load_le<T>(file_, at_);
    at_ += sizeof(T);
    return v;
  }

  std::string string(const std::string& what) {
    const auto length = number<std::uint64_t>(what + ": length");
    if (length > left()) {
      fail(what + ": length " + std::to_string(length) +
           " of a string reaches beyond the end of the file, " + std::to_string(left()) +
           " bytes are left");
    }
    std::string text(reinterpret_cast<const char*>(file_.data() + at_), length);
    at_ += length;
    if (const auto bad = utf8_error(text)) {
      fail(what + ": expected UTF-8, found " + show_name(text) + ", which is none at byte " +
           std::to_string(*bad));
    }
    return text;
  }

  Json value(std::uint32_t type, const std::string& what) {
    switch (type) {
      case kU8:
        return std::int64_t{number<std::uint8_t>(what)};
      case kI8:
        return std::int64_t{number<std::int8_t>(what)};
      case kU16:
        return std::int64_t{number<std::uint16_t>(what)};
      case kI16:
        return std::int64_t{number<std::int16_t>(what)};
      case kU32:
        return std::int64_t{number<std::uint32_t>(what)};
      case kI32:
        return std::int64_t{number<std::int32_t>(what)};
      case kU64:
        return number<std::uint64_t>(what);
      case kI64:
        return number<std::int64_t>(what);
      case kFloat32:
        return static_cast<double>(number<float>(what));
      case kFloat64:
        return number<double>(what);
      case kBool:
        return boolean(what);
      case kString:
        return string(what);
      case kArray:
        return array(what);
      default:
        fail(what + ": expected a type from 0 to 12, found type " + std::to_string(type));
    }
  }

 private:
  bool boolean(const std::string& what) {
    const auto v = number<std::uint8_t>(what);
    if (v > 1) fail(what + ": expected a bool of 0 or 1, found " + std::to_string(v));
    return v == 1;
  }

  Json array(const std::string& what) {
    const auto type = number<std::uint32_t>(what + ": type of its elements");
    if (type == kArray) fail(what + ": expected an array of values, found nested arrays");
    if (type >= kTypes) {
      fail(what + ": expected an array of a type from 0 to 12, found type " + std::to_string(type));
    }
    const auto count = number<std::uint64_t>(what + ": length");
    if (count > left() / kSizes[type]) {
      fail(what + ": length " + std::to_string(count) +
           " of an array reaches beyond the end of the file, " + std::to_string(left()) +
           " bytes are left");
    }
    elements_ += count;
    if (elements_ > kMostElements) {
      fail(what + ": expected at most " + std::to_string(kMostElements) +
           " elements in arrays, found an array of length " + std::to_string(count));
    }
    Json::Array out;
    out.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) out.push_back(value(type, what));
    return out;
  }

  Bytes file_;
  const std::string& source_;
  std::uint64_t at_ = 0, elements_ = 0;
};

struct Counts {
  std::uint64_t tensors = 0, pairs = 0;
};

Counts read_header(Reader& r) {
  const auto magic = r.number<std::uint32_t>("header: magic");
  if (magic != 0x46554747u)
    r.fail("header: expected the magic \"GGUF\", found another: no GGUF file");
  const auto version = r.number<std::uint32_t>("header: version");
  if ((version & 0xffffu) == 0 && version != 0) {
    r.fail("header: expected a little-endian file, found version " + std::to_string(version) +
           ": its numbers are big-endian");
  }
  if (version != 2 && version != 3) {
    r.fail("header: expected version 2 or 3, found version " + std::to_string(version));
  }
  Counts out;
  out.tensors = r.number<std::uint64_t>("header: count of tensors");
  out.pairs = r.number<std::uint64_t>("header: count of metadata");
  const auto fits = [&](std::uint64_t count, std::uint64_t least, std::uint64_t most,
                        const char* what) {
    if (count > most && count <= r.left() / least) {
      r.fail(std::string("header: expected a count of at most ") + std::to_string(most) + " " +
             what + ", found " + std::to_string(count));
    }
    if (count > r.left() / least) {
      r.fail(std::string("header: count ") + std::to_string(count) + " of " + what +
             " reaches beyond the end of the file, " + std::to_string(r.left()) +
             " bytes are left");
    }
  };
  fits(out.pairs, kLeastPair, kMostPairs, "metadata pairs");
  fits(out.tensors, kLeastTensor, kMostTensors, "tensors");
  return out;
}

// The pairs; `alignment` is what they say of it.
Json::Object read_metadata(Reader& r, std::uint64_t count, std::uint64_t& alignment) {
  Json::Object out;
  std::unordered_set<std::string> seen;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key = r.string("metadata: key " + std::to_string(i));
    if (key.empty()) r.fail("metadata: key " + std::to_string(i) + " is empty");
    const std::string what = "metadata: " + show_name(key);
    if (!seen.insert(key).second) r.fail(what + ": duplicate key");
    const auto type = r.number<std::uint32_t>(what + ": type");
    Json value = r.value(type, what);
    if (key == "general.alignment") {
      const std::uint64_t v = type == kU32 ? value.as_uint() : 0;
      if (!std::has_single_bit(v) || v > kMostAlignment) {
        r.fail(what + ": expected a power of two of type u32, at most " +
               std::to_string(kMostAlignment) + ", found " + value.dump() + " of type " +
               std::to_string(type));
      }
      alignment = v;
    }
    out.emplace_back(std::move(key), std::move(value));
  }
  return out;
}

struct Described {
  GgufTensor tensor;
  std::uint64_t offset = 0, size = 0;
};

Described read_tensor(Reader& r, std::uint64_t number) {
  Described out;
  GgufTensor& t = out.tensor;
  t.name = r.string("tensor " + std::to_string(number) + ": name");
  const std::string who = "tensor " + show_name(t.name) + ": ";
  if (t.name.empty()) r.fail("tensor " + std::to_string(number) + ": its name is empty");
  const auto dims = r.number<std::uint32_t>(who + "count of dims");
  if (dims > kMostDims) {
    r.fail(who + "expected at most 4 dims, found " + std::to_string(dims));
  }
  for (std::uint32_t d = 0; d < dims; ++d) {
    const auto size = r.number<std::uint64_t>(who + "dims");
    if (size == 0 || size > INT64_MAX) {
      r.fail(who + "dims: expected 1 to 2^63 - 1, found " + std::to_string(size));
    }
    t.dims.push_back(static_cast<std::int64_t>(size));
  }
  const auto type = r.number<std::uint32_t>(who + "type");
  t.type = gguf_type(type);
  if (t.type == nullptr)
    r.fail(who + "expected a type that GGUF has, found type " + std::to_string(type));
  const std::int64_t row = t.dims.empty() ? 1 : t.dims.front();
  if (row % t.type->block != 0) {
    r.fail(who + "dims " + shape_text(t.dims) + ": expected a multiple of the block of " +
           std::to_string(t.type->block) + " of " + t.type->name + " in the first, found " +
           std::to_string(row));
  }
  auto size = std::optional<std::uint64_t>(static_cast<std::uint64_t>(t.type->block_bytes));
  for (std::size_t d = 0; d < t.dims.size() && size; ++d) {
    size = checked_mul(*size, static_cast<std::uint64_t>(d == 0 ? row / t.type->block : t.dims[d]));
  }
  if (!size || *size > INT64_MAX) {
    r.fail(who + "dims " + shape_text(t.dims) + " of " + t.type->name + ": the size overflows");
  }
  out.size = *size;
  out.offset = r.number<std::uint64_t>(who + "offset");
  return out;
}

// Tensors lie in the data one behind the other, each at the next multiple of the alignment.
void place(const Reader& r, std::vector<Described>& tensors, Bytes data, std::uint64_t alignment) {
  std::vector<Described*> order;
  for (Described& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(),
                   [](const Described* a, const Described* b) { return a->offset < b->offset; });
  std::uint64_t reached = 0;
  const Described* before = nullptr;
  for (Described* d : order) {
    const std::string who =
        "tensor " + show_name(d->tensor.name) + ": offset " + std::to_string(d->offset);
    if (d->offset % alignment != 0) {
      r.fail(who + ": expected a multiple of the alignment " + std::to_string(alignment));
    }
    const auto end = checked_add(d->offset, d->size);
    if (!end || *end > data.size()) {
      r.fail(who + " and " + std::to_string(d->size) +
             " bytes reach beyond the end of the data: the file is truncated, it holds " +
             std::to_string(data.size()) + " bytes of data");
    }
    if (before != nullptr && d->offset < before->offset + before->size) {
      r.fail(who + ": overlap with tensor " + show_name(before->tensor.name) + ", which ends at " +
             std::to_string(before->offset + before->size));
    }
    if (d->offset != reached) {
      r.fail(who + ": expected " + std::to_string(reached) +
             ", found a gap behind the tensors before it");
    }
    d->tensor.bytes = data.subspan(d->offset, d->size);
    reached = (*end + alignment - 1) / alignment * alignment;
    before = d;
  }
  if (data.size() > reached) {
    r.fail("the tensors end at " + std::to_string(reached) + " of the data, found " +
           std::to_string(data.size() - reached) + " trailing bytes");
  }
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) {
  auto file = std::make_shared<MappedFile>(path);
  const Bytes bytes = file->bytes();
  owner_ = std::move(file);
  read(bytes, path.string());
}

GgufFile::GgufFile(Bytes file, const std::string& source, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)) {
  read(file, source);
}

void GgufFile::read(Bytes file, const std::string& source) {
  Reader r(file, source);
  const Counts counts = read_header(r);
  std::uint64_t alignment = 32;
  metadata_ = read_metadata(r, counts.pairs, alignment);
  std::vector<Described> found;
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < counts.tensors; ++i) {
    found.push_back(read_tensor(r, i));
    const std::string& name = found.back().tensor.name;
    if (!names.insert(name).second) r.fail("tensor " + show_name(name) + ": duplicate name");
  }
  const std::uint64_t start = (r.at() + alignment - 1) / alignment * alignment;
  if (start > file.size() && !found.empty()) {
    r.fail("expected the data at " + std::to_string(start) + " (alignment " +
           std::to_string(alignment) + "), found the end of the file at " +
           std::to_string(file.size()) + ": truncated");
  }
  place(r, found, file.subspan(std::min<std::uint64_t>(start, file.size())), alignment);
  for (Described& d : found) tensors_.push_back(std::move(d.tensor));
}

}  // namespace nibble
