#include "core/checkpoint/gguf_source.h"

#include <algorithm>
#include <map>

#include "core/checkpoint/gguf_decode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// How the list of tensors shows a type; U8 and I8 are blocks that only decoded_at_load reads.
std::optional<DType> dtype_of(const GgufType& type) {
  switch (type.id) {
    case gguf::kF32:
      return DType::f32;
    case gguf::kF16:
      return DType::f16;
    case gguf::kBF16:
      return DType::bf16;
    case gguf::kNvfp4:
      return DType::u8;
    case gguf::kQ8_0:
      return DType::i8;
    default:
      return std::nullopt;
  }
}

WeightFormat format_of(const GgufType& type) {
  switch (type.id) {
    case gguf::kF16:
      return WeightFormat::f16;
    case gguf::kBF16:
      return WeightFormat::bf16;
    case gguf::kNvfp4:
      return WeightFormat::nvfp4;
    default:
      return WeightFormat::f32;
  }
}

std::vector<std::int64_t> shape_of(const GgufTensor& t, bool middle_axis) {
  std::vector<std::int64_t> shape(t.dims.rbegin(), t.dims.rend());
  if (middle_axis && shape.size() == 2) shape.insert(shape.begin() + 1, 1);
  return shape;
}

// Whoever moves heads later relies on this.
void check_heads(const GgufBinding& b, const GgufTensor& t, const std::string& who) {
  const GgufHeads& h = b.heads;
  if (!h.moves()) return;
  const bool columns = h.axis == GgufHeads::Axis::columns;
  const std::int64_t extent = h.first + h.unit * h.keys * h.each;
  const std::int64_t found = t.dims.empty() ? 1 : columns ? t.dims.front() : t.dims.back();
  if (found != extent) {
    throw Error(ErrorCode::bad_file, who + "expected " + std::to_string(extent) +
                                         (columns ? " columns" : " rows") +
                                         " in heads, found dims " + shape_text(t.dims));
  }
  if (columns && t.type->id == gguf::kNvfp4 && (h.unit % 16 != 0 || h.first % 16 != 0)) {
    throw Error(ErrorCode::unsupported, who + "expected heads of a multiple of 16 columns, found " +
                                            std::to_string(h.unit) +
                                            ": their order cannot be undone in NVFP4");
  }
}

}  // namespace

std::int64_t GgufHeads::stored(std::int64_t at) const {
  const std::int64_t head = (at - first) / unit, inside = (at - first) % unit;
  return first + (head % each * keys + head / each) * unit + inside;
}

GgufSource::GgufSource(std::shared_ptr<const GgufModel> model, std::vector<GgufBinding> bindings)
    : model_(std::move(model)), bindings_(std::move(bindings)) {
  std::unordered_map<std::string_view, std::size_t> by_stored;
  for (std::size_t b = 0; b < bindings_.size(); ++b) {
    by_stored.emplace(bindings_[b].stored, b);
    by_name_.emplace(bindings_[b].name, b);
  }
  for (const GgufModel::Stored& s : model_->tensors()) {
    const GgufTensor& t = s.tensor;
    const std::string who = "[gguf] " + model_->file_of(s) + ": tensor " + show_name(t.name) + ": ";
    const auto at = by_stored.find(t.name);
    if (at == by_stored.end()) {
      throw Error(ErrorCode::bad_file, who + "expected a tensor of a " + model_->architecture() +
                                           " model, found one that it does not know");
    }
    const auto dtype = dtype_of(*t.type);
    if (!dtype) {
      throw Error(ErrorCode::unsupported,
                  who + "expected F32, F16, BF16, Q8_0 or NVFP4, found " + t.type->name);
    }
    const GgufBinding& b = bindings_[at->second];
    check_heads(b, t, who);
    infos_.push_back({b.name, *dtype, shape_of(t, b.middle_axis), t.bytes});
    of_.push_back(at->second);
  }
  index_ = NameIndex(infos_);
}

std::shared_ptr<const void> GgufSource::owner(const TensorInfo& t) const {
  return model_->owner(in_file(t));
}

std::string GgufSource::file_of(const TensorInfo& t) const {
  return model_->file_of(in_file(t));
}

std::string GgufSource::spelled(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? std::string(name) : bindings_[at->second].stored;
}

std::string GgufSource::stored(const TensorInfo& t) const {
  return std::string(in_file(t).tensor.type->name) + " " + shape_text(t.shape);
}

void GgufSource::reorder(const TensorInfo& t, std::vector<float>& values) const {
  const GgufHeads& heads = binding(t).heads;
  if (!heads.moves()) return;
  const std::vector<float> from = values;
  const std::int64_t rows = t.shape.front(), width = static_cast<std::int64_t>(from.size()) / rows;
  for (std::int64_t n = heads.first; n < rows; ++n) {
    std::copy_n(from.begin() + heads.stored(n) * width, width, values.begin() + n * width);
  }
}

bool GgufSource::decoded_at_load(const TensorInfo& t, Weight& out) const {
  const GgufModel::Stored& s = in_file(t);
  const GgufHeads heads = binding(t).heads.moves() ? binding(t).heads : GgufHeads{};
  const bool as_stored = s.tensor.type->id != gguf::kNvfp4 && s.tensor.type->id != gguf::kQ8_0;
  if (as_stored && heads.axis == GgufHeads::Axis::none) return false;
  out.format = format_of(*s.tensor.type);
  out.codes = {};
  out.scales_origin = out.codes_origin;  // in the same blocks
  out.materialize = [model = model_, &tensor = s.tensor, heads](Weight& made) {
    decode_gguf_matrix(tensor, heads, made);
  };
  return true;
}

std::vector<std::string> GgufSource::formats() const {
  std::map<std::uint32_t, std::size_t> counts;
  for (const GgufModel::Stored& s : model_->tensors()) ++counts[s.tensor.type->id];
  std::vector<std::string> out;
  for (const auto& [id, count] : counts) {
    out.push_back(std::string(gguf_type(id)->name) + ": " + std::to_string(count) +
                  (count == 1 ? " tensor" : " tensors"));
  }
  return out;
}

std::vector<std::string> GgufSource::notes() const {
  std::size_t count = 0;
  std::uint64_t stored = 0, decoded = 0;
  for (const GgufModel::Stored& s : model_->tensors()) {
    if (s.tensor.type->id != gguf::kQ8_0) continue;
    ++count;
    stored += s.tensor.bytes.size();
    decoded += s.tensor.bytes.size() / 34 * 128;
  }
  if (count == 0) return {};
  return {"Q8_0 is decoded to float32 at load, exactly: " + std::to_string(count) +
          (count == 1 ? " matrix, " : " matrices, ") + std::to_string(stored) +
          " bytes in the file, " + std::to_string(decoded) + " decoded"};
}

}  // namespace nibble
