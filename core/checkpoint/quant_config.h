// quant_config.h: what a checkpoint declares about its quantisation.
//
// Read from `quantization_config` of config.json (compressed-tensors, modelopt, fp8), or from
// hf_quant_config.json where config.json says nothing. Only the declared format of a module's input
// is taken from here: how its weight is stored is seen from its tensors. Whatever nothing here can
// run is refused by name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/json.h"
#include "core/checkpoint/name_set.h"
#include "core/checkpoint/weight.h"

namespace nibble {

class QuantConfig {
 public:
  enum class Method : std::uint8_t { none, compressed_tensors, modelopt, fp8, gguf };
  using Kind = ActivationFormat::Kind;

  QuantConfig() = default;  // nothing declared

  // `config` is config.json, `hf_quant` hf_quant_config.json or nullptr.
  static QuantConfig read(const JsonView& config, const JsonView* hf_quant = nullptr);
  // A GGUF file, where a stored input scale declares: that input is NVFP4.
  static QuantConfig gguf(std::vector<std::string> described);

  Method method() const { return method_; }
  const char* method_name() const;  // as quant_method spells it; "none"
  // For people: what is quantised how, a line each, and the modules that are left alone, as written.
  const std::vector<std::string>& described() const { return described_; }
  const std::vector<std::string>& ignored() const { return ignored_names_; }
  // Declared for the input of a module; `names` are all names by which files may call it.
  Kind activation(std::span<const std::string> names) const;

 private:
  struct Group {
    NameSet targets;            // by module name
    bool every_linear = false;  // target "Linear"
    Kind activation = Kind::none;
  };
  void read_compressed_tensors(const JsonView& q);
  void read_modelopt(const JsonView& q, std::string_view ignore_key);
  void read_fp8(const JsonView& q);
  Group read_group(const JsonView& group, const std::string& outer_format);

  Method method_ = Method::none;
  std::vector<Group> groups_;
  std::unordered_map<std::string, Kind> layers_;  // modelopt's quantized_layers
  NameSet ignored_;
  std::vector<std::string> described_, ignored_names_;
  bool ignore_inside_ = false;  // names in ignored_ cover the modules inside
};

}  // namespace nibble
