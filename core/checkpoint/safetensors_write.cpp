#include <algorithm>
#include <fstream>
#include <set>

#include "core/base/json.h"
#include "core/checkpoint/safetensors.h"
#include "nibble/error.h"

namespace nibble {
namespace {

void check(std::span<const TensorInfo> tensors) {
  std::set<std::string_view> names;
  for (const TensorInfo& t : tensors) {
    const std::string who = "[write_safetensors] tensor " + show_name(t.name) + ": ";
    if (t.name == "__metadata__") {
      throw Error(ErrorCode::invalid_argument, who + "this name is the format's own");
    }
    if (!names.insert(t.name).second) {
      throw Error(ErrorCode::invalid_argument, who + "name given twice");
    }
    const auto size = tensor_bytes(t.dtype, t.shape);
    if (!size || *size != t.bytes.size()) {
      throw Error(ErrorCode::invalid_argument, who + tensor_text(t) + " does not fit its " +
                                                   std::to_string(t.bytes.size()) + " bytes");
    }
  }
}

std::string header_of(const std::vector<const TensorInfo*>& order,
                      const SafetensorsMetadata& metadata) {
  Json::Object header;
  if (!metadata.empty()) {
    Json::Object entries;
    for (const auto& [key, value] : metadata) entries.emplace_back(key, value);
    header.emplace_back("__metadata__", std::move(entries));
  }
  std::uint64_t at = 0;
  for (const TensorInfo* t : order) {
    Json::Array shape;
    for (const std::int64_t dim : t->shape) shape.emplace_back(dim);
    Json::Array offsets{Json(at), Json(at + t->bytes.size())};
    at += t->bytes.size();
    header.emplace_back(t->name, Json::Object{{"dtype", dtype_name(t->dtype)},
                                              {"shape", std::move(shape)},
                                              {"data_offsets", std::move(offsets)}});
  }
  std::string text = Json(std::move(header)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorInfo> tensors,
                       const SafetensorsMetadata& metadata) {
  check(tensors);
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return dtype_bits(a->dtype) > dtype_bits(b->dtype);
  });
  const std::string header = header_of(order, metadata);
  const std::uint64_t length = header.size();

  const std::filesystem::path temporary = path.string() + ".part";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const TensorInfo* t : order) {
    out.write(reinterpret_cast<const char*>(t->bytes.data()),
              static_cast<std::streamsize>(t->bytes.size()));
  }
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(temporary, path, failed);
  if (!out || failed) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw Error(ErrorCode::bad_file, "[write_safetensors] " + path.string() + ": cannot write" +
                                         (failed ? ": " + failed.message() : std::string()));
  }
}

}  // namespace nibble
