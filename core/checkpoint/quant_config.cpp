#include "core/checkpoint/quant_config.h"

#include <algorithm>
#include <map>

#include "core/checkpoint/tensor_info.h"
#include "nibble/error.h"

namespace nibble {
namespace {

using Kind = ActivationFormat::Kind;

[[noreturn]] void unsupported(const JsonView& at, std::string_view key, const std::string& what) {
  const char* joint = at.path().find(": ") == std::string::npos ? ": " : ".";
  throw Error(ErrorCode::unsupported, at.path() + joint + std::string(key) + ": " + what);
}

std::vector<std::string> names_of(const JsonView& at, std::string_view key) {
  std::vector<std::string> names;
  if (!at.has(key)) return names;
  for (const Json& name : at.array(key)) {
    if (!name.is_string()) {
      at.fail(key, std::string("expected an array of strings, found one ") + name.type_name());
    }
    names.push_back(name.as_string());
  }
  return names;
}

// One side of a compressed-tensors group, or of ModelOpt's copy of that form.
struct Side {
  bool present = false;
  int bits = 0;
  bool dynamic = false;
  std::string strategy;
  static constexpr int kNoGroup = -2;
  int group = kNoGroup;

  std::string group_text() const { return group == kNoGroup ? "none" : std::to_string(group); }
};

Side read_side(const JsonView& at, std::string_view key) {
  Side side;
  if (!at.has(key)) return side;
  const JsonView v = at.object(key);
  side.present = true;
  if (const std::string type = v.string_or("type", "float"); type != "float") {
    unsupported(v, "type", "expected float, found " + type);
  }
  side.bits = static_cast<int>(v.integer("num_bits", 1, 64));
  if (side.bits != 4 && side.bits != 8) {
    unsupported(v, "num_bits", "expected 4 or 8, found " + std::to_string(side.bits));
  }
  if (!v.boolean_or("symmetric", true)) unsupported(v, "symmetric", "expected true, found false");
  side.strategy = v.string_or("strategy", "");
  side.group = static_cast<int>(v.integer_or("group_size", Side::kNoGroup, -1, 1 << 20));
  if (v.has("dynamic")) {
    const Json& dynamic = v.at("dynamic").json();
    if (!dynamic.is_bool() && !(dynamic.is_string() && dynamic.as_string() == "local")) {
      v.fail("dynamic", "expected true, false or \"local\", found " + dynamic.dump());
    }
    side.dynamic = dynamic.is_bool() && dynamic.as_bool();
  }
  if (side.bits == 4 && side.group != 16) {
    unsupported(v, "group_size",
                "expected 16 for 4-bit floats, found " + side.group_text());
  }
  if (side.bits == 4 && !side.strategy.empty() && side.strategy != "tensor_group") {
    unsupported(v, "strategy", "expected tensor_group for 4-bit floats, found " + side.strategy);
  }
  return side;
}

void check_weights(const JsonView& group, const Side& w) {
  if (w.bits != 8) return;
  const JsonView v = group.object("weights");
  if (w.strategy == "block") {
    const auto block = v.array("block_structure");
    if (block.size() != 2 || block[0] != Json(128) || block[1] != Json(128)) {
      unsupported(v, "block_structure", "expected [128, 128], found another block");
    }
  } else if (!w.strategy.empty() && w.strategy != "tensor" && w.strategy != "channel") {
    unsupported(v, "strategy",
                "expected tensor, channel or block for 8-bit floats, found " + w.strategy);
  }
}

Kind activation_of(const JsonView& group, const Side& w, const Side& a) {
  if (!a.present || !w.present) return Kind::none;
  const JsonView v = group.object("input_activations");
  if (a.bits != w.bits) {
    unsupported(
        v, "num_bits",
        "expected the weights' " + std::to_string(w.bits) + ", found " + std::to_string(a.bits));
  }
  if (a.bits == 4) return Kind::nvfp4_static;
  const bool per_tensor = a.strategy.empty() || a.strategy == "tensor";
  if (!a.dynamic) {
    if (per_tensor) return Kind::fp8_tensor_static;
    unsupported(v, "strategy", "expected tensor for static 8-bit floats, found " + a.strategy);
  }
  // A scale that nobody declared is taken per row, never over a batch.
  if (per_tensor || a.strategy == "token") return Kind::fp8_token;
  if (a.strategy == "group" && a.group == 128) return Kind::fp8_token_group128;
  unsupported(v, "strategy",
              "expected token, tensor, or group of 128 for dynamic 8-bit floats, found " +
                  a.strategy + (a.strategy == "group" ? " of " + a.group_text() : ""));
}

// Rotated or sparse weights decode to something else than their tensors say.
void check_no_transforms(const JsonView& q) {
  if (q.has("transform_config")) {
    const JsonView v = q.object("transform_config");
    if (v.has("config_groups") && !v.object("config_groups").json().as_object().empty()) {
      unsupported(q, "transform_config", "expected none, found transforms of weights");
    }
  }
  if (q.has("sparsity_config")) {
    const std::string format = q.object("sparsity_config").string_or("format", "dense");
    if (format != "dense") {
      unsupported(q, "sparsity_config", "expected format dense, found " + show_name(format));
    }
  }
}

constexpr struct {
  const char* name;
  Kind activation;
} kAlgorithms[] = {
    {"NVFP4", Kind::nvfp4_static},    {"W4A16_NVFP4", Kind::none},
    {"FP8", Kind::fp8_tensor_static}, {"FP8_PER_CHANNEL_PER_TOKEN", Kind::fp8_token},
    {"FP8_PB_WO", Kind::none},
};

Kind algorithm(const JsonView& at) {
  const std::string name = at.string("quant_algo");
  std::string known;
  for (const auto& row : kAlgorithms) {
    if (name == row.name) {
      if (name.find("NVFP4") != std::string::npos &&
          at.integer_or("group_size", 16, -1, 1 << 20) != 16) {
        unsupported(at, "group_size", "expected 16 for " + name + ", found " +
                                          std::to_string(at.integer("group_size", -1, 1 << 20)));
      }
      return row.activation;
    }
    known += std::string(row.name) + ", ";
  }
  unsupported(at, "quant_algo",
              "expected one of " + known + "MIXED_PRECISION, found " + show_name(name));
}

}  // namespace

QuantConfig QuantConfig::read(const JsonView& config, const JsonView* hf_quant) {
  QuantConfig out;
  // Older compressed-tensors files say compression_config; nested models may keep it inside.
  std::vector<JsonView> places{config};
  if (config.has("text_config")) places.push_back(config.object("text_config"));
  for (const JsonView& place : places) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (!place.has(key)) continue;
      const JsonView q = place.object(key);
      const std::string method = q.string("quant_method");
      if (method == "compressed-tensors") {
        out.read_compressed_tensors(q);
      } else if (method == "modelopt") {
        out.read_modelopt(q, "ignore");
      } else if (method == "fp8") {
        out.read_fp8(q);
      } else {
        unsupported(q, "quant_method",
                    "expected compressed-tensors, modelopt or fp8, found " + show_name(method));
      }
      return out;
    }
  }
  if (hf_quant != nullptr) out.read_modelopt(hf_quant->object("quantization"), "exclude_modules");
  return out;
}

const char* QuantConfig::method_name() const {
  constexpr const char* kNames[] = {"none", "compressed-tensors", "modelopt", "fp8", "gguf"};
  return kNames[static_cast<int>(method_)];
}

QuantConfig QuantConfig::gguf(std::vector<std::string> described) {
  QuantConfig out;
  out.method_ = Method::gguf;
  out.groups_.push_back({{}, true, Kind::nvfp4_static});
  out.described_ = std::move(described);
  return out;
}

QuantConfig::Group QuantConfig::read_group(const JsonView& group, const std::string& outer_format) {
  const std::string format = group.string_or("format", outer_format);
  constexpr const char* kFormats[] = {"nvfp4-pack-quantized", "float-quantized", "naive-quantized",
                                      "dense"};
  if (std::find(std::begin(kFormats), std::end(kFormats), format) == std::end(kFormats)) {
    unsupported(group, "format",
                "expected nvfp4-pack-quantized, float-quantized, naive-quantized "
                "or dense, found " +
                    show_name(format));
  }
  Group out;
  const Side weights = read_side(group, "weights");
  const Side inputs = read_side(group, "input_activations");
  if (weights.present) {
    check_weights(group, weights);
    if ((weights.bits == 4) != (format == "nvfp4-pack-quantized")) {
      group.object("weights").fail(
          "num_bits", std::to_string(weights.bits) + " bits contradict format " + format);
    }
  }
  out.activation = activation_of(group, weights, inputs);
  const std::string where = group.path() + ".targets";
  for (const std::string& target : names_of(group, "targets")) {
    if (target.starts_with("re:")) {
      out.targets.add_regex(target.substr(3), where);
    } else if (target == "Linear") {
      out.every_linear = true;
    } else {
      out.targets.add_name(target);
    }
  }
  return out;
}

void QuantConfig::read_compressed_tensors(const JsonView& q) {
  method_ = Method::compressed_tensors;
  const std::string format = q.string("format");
  constexpr const char* kFormats[] = {"nvfp4-pack-quantized", "float-quantized", "naive-quantized",
                                      "mixed-precision", "dense"};
  if (std::find(std::begin(kFormats), std::end(kFormats), format) == std::end(kFormats)) {
    unsupported(q, "format",
                "expected nvfp4-pack-quantized, float-quantized, naive-quantized, "
                "mixed-precision or dense, found " +
                    show_name(format));
  }
  check_no_transforms(q);
  if (q.has("config_groups")) {
    const JsonView groups = q.object("config_groups");
    for (const auto& [name, value] : groups.json().as_object()) {
      if (!value.is_object()) {
        groups.fail(name, std::string("expected an object, found ") + value.type_name());
      }
      const JsonView group(value, groups.path() + "." + name);
      groups_.push_back(read_group(group, format));
      std::string targets;
      for (const std::string& target : names_of(group, "targets")) {
        targets += (targets.empty() ? "" : ", ") + target;
      }
      described_.push_back(name + ": " + group.string_or("format", format) + ", inputs " +
                           activation_format_name(groups_.back().activation) + ": " + targets);
    }
  }
  for (const std::string& name : names_of(q, "ignore")) {
    ignored_names_.push_back(name);
    if (name.starts_with("re:")) {
      ignored_.add_regex(name.substr(3), q.path() + ".ignore");
    } else {
      ignored_.add_name(name);
    }
  }
}

void QuantConfig::read_modelopt(const JsonView& q, std::string_view ignore_key) {
  method_ = Method::modelopt;
  ignore_inside_ = true;
  if (q.string("quant_algo") == "MIXED_PRECISION") {
    const JsonView layers = q.object("quantized_layers");
    std::map<std::string, std::size_t> modules;  // by algorithm
    for (const auto& [name, value] : layers.json().as_object()) {
      if (!value.is_object()) {
        layers.fail(name, std::string("expected an object, found ") + value.type_name());
      }
      const JsonView layer(value, layers.path() + "." + name);
      layers_.emplace(name, algorithm(layer));
      ++modules[layer.string("quant_algo")];
    }
    for (const auto& [algo, count] : modules) {
      described_.push_back(algo + ": " + std::to_string(count) + " modules by name");
    }
  } else {
    Group all;
    all.every_linear = true;
    all.activation = algorithm(q);
    described_.push_back(q.string("quant_algo") + ", inputs " + activation_format_name(all.activation) +
                         ": every linear layer");
    groups_.push_back(std::move(all));
  }
  if (q.has("config_groups")) {  // says the same again; checked so that a contradiction is seen
    const JsonView groups = q.object("config_groups");
    for (const auto& [name, value] : groups.json().as_object()) {
      if (!value.is_object()) {
        groups.fail(name, std::string("expected an object, found ") + value.type_name());
      }
      read_side(JsonView(value, groups.path() + "." + name), "weights");
      read_side(JsonView(value, groups.path() + "." + name), "input_activations");
    }
  }
  for (std::string& name : names_of(q, ignore_key)) {
    ignored_names_.push_back(name);
    if (name.find_first_of("*?") != std::string::npos) {
      ignored_.add_glob(std::move(name));
    } else {
      ignored_.add_name(std::move(name));
    }
  }
}

void QuantConfig::read_fp8(const JsonView& q) {
  method_ = Method::fp8;
  ignore_inside_ = true;
  if (const std::string fmt = q.string_or("fmt", "e4m3"); fmt != "e4m3") {
    unsupported(q, "fmt", "expected e4m3, found " + show_name(fmt));
  }
  bool blocks = false;
  if (q.has("weight_block_size")) {
    const auto size = q.array("weight_block_size");
    if (size.size() != 2 || size[0] != Json(128) || size[1] != Json(128)) {
      unsupported(q, "weight_block_size", "expected [128, 128], found another block");
    }
    blocks = true;
  }
  Group all;
  all.every_linear = true;
  const std::string scheme = q.string_or("activation_scheme", "dynamic");
  if (scheme == "dynamic") {
    all.activation = blocks ? Kind::fp8_token_group128 : Kind::fp8_token;
  } else if (scheme == "static" && !blocks) {
    all.activation = Kind::fp8_tensor_static;
  } else {
    unsupported(q, "activation_scheme",
                "expected dynamic, or static without blocks, found " + show_name(scheme));
  }
  described_.push_back(std::string("fp8 e4m3") + (blocks ? " in blocks of 128 x 128" : "") + ", inputs " +
                       activation_format_name(all.activation) + ": every linear layer");
  groups_.push_back(std::move(all));
  for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
    for (std::string& name : names_of(q, key)) {
      ignored_names_.push_back(name);
      ignored_.add_name(std::move(name));
    }
  }
}

QuantConfig::Kind QuantConfig::activation(std::span<const std::string> names) const {
  for (const std::string& name : names) {
    if (ignore_inside_ ? ignored_.matches_inside(name) : ignored_.matches(name)) return Kind::none;
  }
  for (const std::string& name : names) {
    if (const auto at = layers_.find(name); at != layers_.end()) return at->second;
  }
  for (const Group& group : groups_) {
    for (const std::string& name : names) {
      if (group.targets.matches(name)) return group.activation;
    }
  }
  for (const Group& group : groups_) {
    if (group.every_linear) return group.activation;
  }
  return Kind::none;
}

}  // namespace nibble
