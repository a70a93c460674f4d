#include "models/config_keys.h"

#include <limits>

#include "core/checkpoint/tensor_info.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr double kLeast = std::numeric_limits<float>::min(),
                 kMost = std::numeric_limits<float>::max();
constexpr double kMostFactor = 1e6;

RopeScaling read_scaling(const JsonView& rope) {
  using Kind = RopeScaling::Kind;
  // Files made before 2024 call it type.
  const char* key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  const std::string type = rope.string_or(key, "default");
  if (rope.has("rope_type") && rope.has("type") && rope.string_or("type", "") != type) {
    rope.fail("type", "expected rope_type's " + show_name(type) + ", found " + show_name(rope.string_or("type", "")));
  }
  RopeScaling s;
  if (!rope.has(key) && rope.has("factor")) rope.fail(key, "missing, expected linear or llama3 beside a factor");
  if (type == "default") return s;  // a factor beside it is the file's own decision to have none
  if (type != "linear" && type != "llama3") {
    unsupported(rope, key, "expected default, linear or llama3, found " + show_name(type));
  }
  s.kind = type == "linear" ? Kind::linear : Kind::llama3;
  s.factor = rope.number("factor", 1, kMostFactor);
  if (s.kind == Kind::linear) return s;
  s.low = rope.number("low_freq_factor", kLeast, kMostFactor);
  s.high = rope.number("high_freq_factor", kLeast, kMostFactor);
  if (s.high <= s.low) {
    rope.fail("high_freq_factor", "expected more than low_freq_factor " + Json(s.low).dump() +
                                      ", found " + Json(s.high).dump());
  }
  s.original = static_cast<double>(rope.integer("original_max_position_embeddings", 1, 1ll << 31));
  return s;
}

}  // namespace

void unsupported(const JsonView& at, const char* key, const std::string& what) {
  const char* joint = at.path().find(": ") == std::string::npos ? ": " : ".";
  throw Error(ErrorCode::unsupported, at.path() + joint + key + ": " + what);
}

std::string found_text(const Json& v) {
  if (v.is_string()) return show_name(v.as_string());
  return v.is_array() || v.is_object() ? std::string(v.type_name()) : v.dump();
}

std::vector<std::int32_t> token_ids(const JsonView& at, const char* key, std::int64_t vocab) {
  std::vector<std::int32_t> ids;
  if (!at.has(key)) return ids;
  const auto add = [&](const Json& id) {
    if (!id.is_integer() || id.as_double() < 0 || id.as_double() >= static_cast<double>(vocab)) {
      at.fail(key, "expected token ids below vocab_size " + std::to_string(vocab) + ", found " +
                       found_text(id));
    }
    ids.push_back(static_cast<std::int32_t>(id.as_int()));
  };
  const Json& value = at.at(key).json();
  if (!value.is_array()) {
    add(value);
    return ids;
  }
  for (const Json& id : value.as_array()) add(id);
  return ids;
}

RopeConfig read_rope_config(const JsonView& t, std::int64_t head_dim) {
  if (head_dim % 2 != 0) {
    t.fail("head_dim", "expected an even number, as rotary embeddings turn pairs, found " +
                           std::to_string(head_dim));
  }
  const bool nested = t.has("rope_parameters");
  if (nested && t.has("rope_scaling")) {
    t.fail("rope_scaling", "expected null beside rope_parameters, found " +
                               std::string(t.at("rope_scaling").json().type_name()));
  }
  RopeConfig rope;
  rope.rotary_dim = static_cast<std::int32_t>(head_dim);
  const JsonView outer = nested ? t.object("rope_parameters") : t;
  // A default would be another model's.
  if (!nested && !t.has("rope_theta")) {
    t.fail("rope_theta", "missing, and no rope_parameters either");
  }
  const JsonView& of_theta = outer.has("rope_theta") || !t.has("rope_theta") ? outer : t;
  rope.theta = of_theta.number("rope_theta", kLeast, kMost);
  if (nested) rope.scaling = read_scaling(outer);
  if (!nested && t.has("rope_scaling")) rope.scaling = read_scaling(t.object("rope_scaling"));
  for (const JsonView* at : {&outer, &t}) {
    if (const double part = at->number_or("partial_rotary_factor", 1, 0, 1); part != 1) {
      unsupported(*at, "partial_rotary_factor", "expected 1, found " + Json(part).dump());
    }
  }
  return rope;
}

}  // namespace nibble
