#include "core/checkpoint/tensor_info.h"

#include <algorithm>
#include <numeric>

namespace nibble {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 16) return text + ", ...]";
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string tensor_text(const TensorInfo& t) {
  return std::string(dtype_name(t.dtype)) + " " + shape_text(t.shape);
}

std::string show_name(std::string_view name) {
  static constexpr char kHex[] = "0123456789abcdef";
  constexpr std::size_t kMost = 160;
  std::string text = "\"";
  for (const char c : name.substr(0, kMost)) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7f) {
      text += "\\x";
      text += kHex[u >> 4];
      text += kHex[u & 15];
    } else {
      text += c;
    }
  }
  if (name.size() > kMost) text += "...";
  return text + "\"";
}

NameIndex::NameIndex(const std::vector<TensorInfo>& tensors) : order_(tensors.size()) {
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
}

std::vector<std::uint32_t>::const_iterator NameIndex::lower(const std::vector<TensorInfo>& tensors,
                                                            std::string_view name) const {
  return std::lower_bound(order_.begin(), order_.end(), name,
                          [&](std::uint32_t i, std::string_view n) { return tensors[i].name < n; });
}

const TensorInfo* NameIndex::find(const std::vector<TensorInfo>& tensors,
                                  std::string_view name) const {
  const auto at = lower(tensors, name);
  return at != order_.end() && tensors[*at].name == name ? &tensors[*at] : nullptr;
}

bool NameIndex::has(const std::vector<TensorInfo>& tensors, std::string_view scope) const {
  if (find(tensors, scope) != nullptr) return true;
  const std::string inside = std::string(scope) + ".";
  const auto at = lower(tensors, inside);
  return at != order_.end() && tensors[*at].name.starts_with(inside);
}

}  // namespace nibble
