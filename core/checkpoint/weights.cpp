#include "core/checkpoint/weights.h"

#include <cmath>

#include "core/checkpoint/finite.h"
#include "core/checkpoint/weights_shared.h"
#include "core/checkpoint/widen.h"
#include "nibble/error.h"

namespace nibble {
namespace {

std::string join(std::string_view scope, std::string_view name) {
  if (scope.empty()) return std::string(name);
  if (name.empty()) return std::string(scope);
  return std::string(scope) + "." + std::string(name);
}

// Tensors that a text model leaves alone.
struct SkipGroup {
  const char* what;
  bool (*holds)(std::string_view name);
};

constexpr SkipGroup kSkipped[] = {
    {"vision tensors (visual.*)",
     [](std::string_view n) { return n.starts_with("model.visual.") || n.starts_with("visual."); }},
    {"MTP tensors (mtp.*): nobody asked for drafts",
     [](std::string_view n) {
       return n.starts_with("mtp.") || n.starts_with("language_model.mtp.");
     }},
    {"KV cache scales (k_scale, v_scale, kv_scale)",
     [](std::string_view n) {
       return n.ends_with(".k_scale") || n.ends_with(".v_scale") || n.ends_with(".kv_scale");
     }},
};

void apply(Fold fold, std::vector<float>& values) {
  for (float& v : values) {
    if (fold == Fold::one_plus) v = 1.0f + v;
    if (fold == Fold::neg_exp) v = static_cast<float>(-std::exp(static_cast<double>(v)));
  }
}

}  // namespace

std::string Weights::Shared::resolve(const std::string& logical) const {
  if (logical == "model" || logical.starts_with("model.")) return model_prefix + logical.substr(5);
  if (outer_prefix.empty() || logical.empty()) return logical;
  const std::string inside = outer_prefix + logical;
  return source->has(inside) ? inside : logical;
}

Weights::Weights(std::shared_ptr<Shared> shared, std::string logical)
    : shared_(std::move(shared)), logical_(std::move(logical)), path_(shared_->resolve(logical_)) {}

Weights Weights::root(std::shared_ptr<const TensorSource> source, QuantConfig config) {
  auto shared = std::make_shared<Shared>();
  shared->model_prefix = "model";
  if (!source->synthetic()) {
    if (source->has("model.language_model")) {
      shared->model_prefix = "model.language_model";
    } else if (source->has("language_model.model")) {
      shared->model_prefix = "language_model.model";
      shared->outer_prefix = "language_model.";
    }
  }
  shared->source = std::move(source);
  shared->config = std::move(config);
  return Weights(std::move(shared), "");
}

Weights Weights::operator/(std::string_view name) const {
  return Weights(shared_, join(logical_, name));
}

Weights Weights::operator/(int index) const {
  return *this / std::to_string(index);
}

bool Weights::has(std::string_view name) const {
  return shared_->source->has(shared_->resolve(join(logical_, name)));
}

const TensorInfo* Weights::find(std::string_view suffix) const {
  return shared_->source->find(path_ + std::string(suffix));
}

void Weights::bind(const std::string& name, bool shared) const {
  const std::lock_guard lock(shared_->mutex);
  auto& entry = shared_->bound[name];
  ++(shared ? entry.sharers : entry.owners);
}

std::vector<float> Weights::tensor(const std::vector<std::int64_t>& shape, Fold fold) const {
  if (auto made = shared_->source->make_tensor(path_, shape, fold != Fold::none)) {
    bind(path_, false);
    apply(fold, *made);
    return std::move(*made);
  }
  const TensorInfo* t = find("");
  if (t == nullptr) t = find(".weight");
  if (t == nullptr) missing({"", ".weight"});
  expect(*t, {DType::f32, DType::f16, DType::bf16}, shape);
  bind(t->name, false);
  std::vector<float> values = widen(*t);
  if (const std::string bad = first_not_finite(values, t->shape); !bad.empty()) {
    wrong(*t, "finite values", bad);
  }
  shared_->source->reorder(*t, values);
  if (!shared_->source->folded(*t)) apply(fold, values);
  const std::lock_guard lock(shared_->mutex);
  shared_->vectors.push_back(t);
  return values;
}

std::vector<const TensorInfo*> Weights::vectors() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->vectors;
}

void Weights::expect(const TensorInfo& t, std::initializer_list<DType> dtypes,
                     const std::vector<std::int64_t>& shape) const {
  bool known = false;
  std::string names;
  for (const DType dtype : dtypes) {
    known = known || t.dtype == dtype;
    names += (names.empty() ? "" : " or ") + std::string(dtype_name(dtype));
  }
  if (!known || t.shape != shape) wrong(t, names + " " + shape_text(shape));
}

void Weights::wrong(const TensorInfo& t, const std::string& expected) const {
  wrong(t, expected, shared_->source->stored(t));
}

void Weights::wrong(const TensorInfo& t, const std::string& expected,
                    const std::string& found) const {
  throw Error(ErrorCode::bad_file,
              "[weights] " + origin(t) + ": expected " + expected + ", found " + found);
}

std::string Weights::origin(const TensorInfo& t) const {
  return shared_->source->file_of(t) + ": tensor " + show_name(shared_->source->spelled(t.name));
}

void Weights::missing(std::initializer_list<std::string_view> suffixes) const {
  std::string names;
  for (const std::string_view suffix : suffixes) {
    const std::string name = shared_->source->spelled(path_ + std::string(suffix));
    names += (names.empty() ? "" : ", ") + show_name(name);
  }
  throw Error(ErrorCode::not_found, "[weights] " + shared_->source->describe() +
                                        ": expected tensor " + show_name(path_) +
                                        ", found none of " + names);
}

void Weights::lacks(const TensorInfo& beside,
                    std::initializer_list<std::string_view> suffixes) const {
  std::string names;
  for (const std::string_view suffix : suffixes) {
    const std::string name = shared_->source->spelled(path_ + std::string(suffix));
    names += (names.empty() ? "" : " or ") + show_name(name);
  }
  throw Error(ErrorCode::not_found, "[weights] " + shared_->source->describe() +
                                        ": expected tensor " + names + " beside " +
                                        show_name(shared_->source->spelled(beside.name)) +
                                        ", found none");
}

BindReport Weights::report() const {
  BindReport out;
  const std::lock_guard lock(shared_->mutex);
  for (const auto& [name, count] : shared_->bound) {
    ++out.bound;
    if (count.owners > 1) out.twice.push_back(name);
  }
  std::size_t skipped[std::size(kSkipped)] = {};
  std::uint64_t bytes[std::size(kSkipped)] = {};
  for (const TensorInfo& t : shared_->source->tensors()) {
    if (shared_->bound.contains(t.name)) continue;
    std::size_t group = 0;
    while (group < std::size(kSkipped) && !kSkipped[group].holds(t.name)) ++group;
    if (group == std::size(kSkipped)) {
      out.unbound.push_back(t.name);
    } else {
      ++skipped[group];
      bytes[group] += t.bytes.size();
    }
  }
  for (std::size_t group = 0; group < std::size(kSkipped); ++group) {
    if (skipped[group] == 0) continue;
    out.skipped.push_back("skipped " + std::to_string(skipped[group]) + " " + kSkipped[group].what +
                          ", " + std::to_string(bytes[group]) + " bytes");
  }
  return out;
}

std::vector<std::string> Weights::finish() const {
  BindReport found = report();
  if (found.unbound.empty()) {
    std::vector<std::string> notes = std::move(found.skipped);
    if (const auto& unscaled = shared_->unscaled; !unscaled.empty()) {
      notes.push_back("inputs of " + show_name(unscaled.front()) +
                      (unscaled.size() > 1 ? " and " + std::to_string(unscaled.size() - 1) + " more" : "") +
                      " are declared static: expected a scale of theirs, found none: they stay as they are");
    }
    return notes;
  }
  std::string names;
  for (std::size_t i = 0; i < found.unbound.size() && i < 5; ++i) {
    names += (i == 0 ? "" : ", ") + show_name(shared_->source->spelled(found.unbound[i]));
  }
  const std::size_t count = found.unbound.size();
  throw Error(ErrorCode::bad_file,
              "[weights] " + shared_->source->describe() + ": expected only tensors of this model, " +
                  "found " + std::to_string(count) +
                  (count == 1 ? " that it does not know, " : " that it does not know, such as ") +
                  names);
}

}  // namespace nibble
