// support.h: the tiny checkpoints of models with experts.
#pragma once

#include "tests/engine/support.h"

namespace nibble::test {

struct Arch {
  const char* name;  // of tests/data/archs and its golden
  int layers, full_attention_every, per_token;
  const char* model;  // what the text model's names begin with
};
constexpr Arch kMoe{"qwen3_5_moe-nvfp4", 4, 4, 2, "model.language_model"};
constexpr Arch kNext{"qwen3_next", 2, 2, 3, "model"};

inline std::string folder_of(const Arch& a) { return std::string("archs/") + a.name; }
inline Golden golden_of(const Arch& a) { return Golden(data(std::string("archs/golden/") + a.name + ".safetensors")); }
inline Model load(const Arch& a, const LoadOptions& how, const Device& on = Device::cpu()) {
  return Model::load(data(folder_of(a)), on, how);
}
inline std::vector<std::string> prompts_of(const Arch& a) {
  const Json json = read_json(std::string("archs/golden/") + a.name + ".json");
  std::vector<std::string> out;
  for (const auto& [id, prompt] : json.find("prompts")->as_object()) out.push_back(id);
  return out;
}
// Of 196 and 207 tokens.
inline std::vector<std::int32_t> long_ids(const Arch& a) {
  std::vector<std::int32_t> longest;
  for (const std::string& id : prompts_of(a)) {
    auto ids = golden_of(a).i32(id + ".ids");
    if (ids.size() > longest.size()) longest = std::move(ids);
  }
  return longest;
}

inline std::string arch_name(const testing::TestParamInfo<Arch>& tested) {
  return std::string(tested.param.name).substr(0, tested.param.name[5] == '_' && tested.param.name[6] == '5' ? 11 : 10);
}

}  // namespace nibble::test
