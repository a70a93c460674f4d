#include "core/checkpoint/safetensors.h"

#include <algorithm>

#include "core/base/mapped_file.h"
#include "core/checkpoint/json_file.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::uint64_t kMostHeader = 100'000'000;  // as the format's own reader

struct Entry {
  TensorInfo tensor;
  std::uint64_t begin = 0, end = 0;
};

class HeaderReader {
 public:
  explicit HeaderReader(const std::string& source) : source_(source) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::bad_file, "[safetensors] " + source_ + ": " + what);
  }

  SafetensorsMetadata metadata(const Json& value) const {
    if (!value.is_object()) {
      fail(std::string("__metadata__: expected an object of strings, found ") + value.type_name());
    }
    SafetensorsMetadata out;
    for (const auto& [key, text] : value.as_object()) {
      if (!text.is_string()) {
        fail("__metadata__: " + show_name(key) + ": expected a string, found " + text.type_name());
      }
      out.emplace(key, text.as_string());
    }
    return out;
  }

  Entry entry(const std::string& name, const Json& value, std::uint64_t data_size) const {
    const std::string who = "header: tensor " + show_name(name) + ": ";
    if (!value.is_object()) {
      fail(who + "expected an object, found " + value.type_name());
    }
    const Json *dtype = nullptr, *shape = nullptr, *offsets = nullptr;
    for (const auto& [key, field] : value.as_object()) {
      if (key == "dtype") {
        dtype = &field;
      } else if (key == "shape") {
        shape = &field;
      } else if (key == "data_offsets") {
        offsets = &field;
      } else {
        fail(who + "extra field " + show_name(key));
      }
    }
    Entry out;
    out.tensor.name = name;
    out.tensor.dtype = dtype_of(dtype, who);
    out.tensor.shape = shape_of(shape, who);
    const auto size = tensor_bytes(out.tensor.dtype, out.tensor.shape);
    if (!size) {
      fail(who + "shape " + shape_text(out.tensor.shape) + " of " + dtype_name(out.tensor.dtype) +
           " does not fill whole bytes, or its size overflows");
    }
    out.begin = offset_of(offsets, 0, who);
    out.end = offset_of(offsets, 1, who);
    const std::string range =
        std::string("[") + std::to_string(out.begin) + ", " + std::to_string(out.end) + "]";
    if (out.begin > out.end) fail(who + "data_offsets " + range + " run backwards");
    if (out.end > data_size) {
      fail(who + "data_offsets " + range +
           " end beyond the data: the file is truncated, it holds " + std::to_string(data_size) +
           " bytes of data");
    }
    if (out.end - out.begin != *size) {
      fail(who + "data_offsets " + range + " hold " + std::to_string(out.end - out.begin) +
           " bytes, " + tensor_text(out.tensor) + " needs " + std::to_string(*size));
    }
    return out;
  }

 private:
  DType dtype_of(const Json* value, const std::string& who) const {
    if (value == nullptr) fail(who + "dtype is missing");
    if (!value->is_string()) {
      fail(who + "dtype: expected a string, found " + value->type_name());
    }
    const auto dtype = dtype_from_name(value->as_string());
    if (!dtype) fail(who + "unknown dtype " + show_name(value->as_string()));
    return *dtype;
  }

  std::vector<std::int64_t> shape_of(const Json* value, const std::string& who) const {
    if (value == nullptr) fail(who + "shape is missing");
    if (!value->is_array()) fail(who + "shape: expected an array, found " + value->type_name());
    std::vector<std::int64_t> shape;
    for (const Json& dim : value->as_array()) {
      if (!dim.is_integer() || dim.as_double() < 0 || dim.as_double() >= 0x1p63) {
        fail(who + "shape: expected integers from 0 to 2^63 - 1, found " + short_text(dim));
      }
      shape.push_back(dim.as_int());
    }
    return shape;
  }

  std::uint64_t offset_of(const Json* value, std::size_t which, const std::string& who) const {
    if (value == nullptr) fail(who + "data_offsets are missing");
    if (!value->is_array() || value->as_array().size() != 2) {
      fail(who + "data_offsets: expected two integers, found " + short_text(*value));
    }
    const Json& v = value->as_array()[which];
    if (!v.is_integer() || v.as_double() < 0) {
      fail(who + "data_offsets: expected two integers of at least 0, found " + short_text(*value));
    }
    return v.as_uint();
  }

  static std::string short_text(const Json& v) {
    if (v.is_object()) return "an object";
    if (v.is_array() && (v.as_array().size() > 4)) return "an array of another length";
    std::string text = v.dump();
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }

  const std::string& source_;
};

}  // namespace

std::optional<std::uint64_t> tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    const auto next = checked_mul(count, static_cast<std::uint64_t>(dim));
    if (!next) return std::nullopt;
    count = *next;
  }
  const auto bits = checked_mul(count, static_cast<std::uint64_t>(dtype_bits(dtype)));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) {
  auto file = std::make_shared<MappedFile>(path);
  const Bytes bytes = file->bytes();
  owner_ = std::move(file);
  read(bytes, path.string());
}

SafetensorsFile::SafetensorsFile(Bytes file, const std::string& source,
                                 std::shared_ptr<const void> owner)
    : owner_(std::move(owner)) {
  read(file, source);
}

void SafetensorsFile::read(Bytes file, const std::string& source) {
  const HeaderReader reader(source);
  if (file.size() < 8) {
    reader.fail("truncated: expected a header length of 8 bytes, the file has " +
                std::to_string(file.size()));
  }
  const auto length = load_le<std::uint64_t>(file, 0);
  if (length > file.size() - 8) {
    reader.fail("header length " + std::to_string(length) +
                " reaches beyond the end of the file (" + std::to_string(file.size()) +
                " bytes), which is truncated or no safetensors file");
  }
  if (length > kMostHeader) {
    reader.fail("header length " + std::to_string(length) + " exceeds " +
                std::to_string(kMostHeader));
  }
  const Bytes data = file.subspan(8 + length);
  const std::string_view text(reinterpret_cast<const char*>(file.data() + 8), length);
  if (!text.starts_with('{')) reader.fail("header: expected a JSON object to begin at byte 8");
  const Json header = parse_json_object(text, "[safetensors] " + source + ": header");

  std::vector<Entry> entries;
  entries.reserve(header.as_object().size());
  for (const auto& [name, value] : header.as_object()) {
    if (name == "__metadata__") {
      metadata_ = reader.metadata(value);
    } else {
      entries.push_back(reader.entry(name, value, data.size()));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t reached = 0;
  for (const Entry& e : entries) {
    if (e.begin != reached) {
      reader.fail("header: tensor " + show_name(e.tensor.name) + ": data_offsets begin at " +
                  std::to_string(e.begin) + ", the tensors before it end at " +
                  std::to_string(reached) + (e.begin < reached ? ": overlap" : ": gap"));
    }
    reached = e.end;
  }
  if (reached != data.size()) {
    reader.fail("the tensors' data_offsets end at " + std::to_string(reached) +
                ", the file holds " + std::to_string(data.size()) + " bytes of data: " +
                std::to_string(data.size() - reached) + " trailing bytes are not covered");
  }
  tensors_.reserve(entries.size());
  for (Entry& e : entries) {
    e.tensor.bytes = data.subspan(e.begin, e.end - e.begin);
    tensors_.push_back(std::move(e.tensor));
  }
  index_ = NameIndex(tensors_);
}

}  // namespace nibble
