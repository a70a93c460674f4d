// Configurations and files with experts that nothing can run: what was expected, what was found.
#include <gtest/gtest.h>

#include "tests/moe/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

void expect_refused(const Folder& f, std::initializer_list<std::string> parts) {
  f.write();
  const std::string message = message_of([&] { Model::load(f.path, Device::cpu(), options()); });
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

struct Key {
  const char* key;
  Json value;
  std::initializer_list<std::string> says;
};

TEST(MoeRefusal, KeysOfQwen3Next) {
  const Key keys[] = {
      {"num_experts", 0, {"config.json", "num_experts", "1 to 1024", "0"}},
      {"num_experts", -8, {"num_experts", "1 to 1024", "-8"}},
      {"num_experts", 2048, {"num_experts", "1 to 1024", "2048"}},
      {"num_experts", "8", {"num_experts", "integer", "string"}},
      {"num_experts", Json(), {"num_experts"}},
      {"num_experts_per_tok", 0, {"num_experts_per_tok", "1 to 1024", "0"}},
      {"num_experts_per_tok", 9, {"num_experts_per_tok", "at most num_experts 8", "found 9"}},
      {"moe_intermediate_size", 0, {"moe_intermediate_size", "0"}},
      {"shared_expert_intermediate_size", Json(), {"shared_expert_intermediate_size"}},
      {"norm_topk_prob", "yes", {"norm_topk_prob", "true or false", "string"}},
      {"norm_topk_prob", 1, {"norm_topk_prob"}},
      {"decoder_sparse_step", 0, {"decoder_sparse_step", "0"}},
      {"decoder_sparse_step", 3, {"expected at least one of 2 layers with experts, found none", "decoder_sparse_step 3"}},
      {"mlp_only_layers", 1, {"mlp_only_layers", "array"}},
      {"mlp_only_layers", Json::Array{0, 1}, {"mlp_only_layers", "at least one of 2 layers", "found none"}},
      {"mlp_only_layers", Json::Array{2}, {"mlp_only_layers", "below num_hidden_layers 2", "found 2"}},
      {"mlp_only_layers", Json::Array{-1}, {"mlp_only_layers", "below num_hidden_layers 2", "found -1"}},
      {"mlp_only_layers", Json::Array{"0"}, {"mlp_only_layers", "found \"0\""}},
      // A layer that the file holds experts for.
      {"mlp_only_layers", Json::Array{0}, {"expected tensor \"model.layers.0.mlp.gate_proj\""}},
      {"decoder_sparse_step", 2, {"expected tensor \"model.layers.0.mlp.gate_proj\""}},
      // The file has eight, of width 32.
      {"num_experts", 4, {"model.layers.0.mlp.gate.weight", "[4, 128]", "[8, 128]"}},
      {"num_experts", 16, {"model.layers.0.mlp.gate.weight", "[16, 128]", "[8, 128]"}},
      {"moe_intermediate_size", 64, {"experts.0.gate_proj.weight", "[64, 128]", "[32, 128]"}},
      {"shared_expert_intermediate_size", 64, {"shared_expert.gate_proj.weight", "[64, 128]", "[32, 128]"}},
      {"linear_num_value_heads", 2, {"in_proj_qkvz.weight", "[256, 128]", "[384, 128]"}},
  };
  for (const Key& k : keys) {
    Folder f(folder_of(kNext));
    f.config.set(k.key, k.value);
    SCOPED_TRACE(std::string(k.key) + " = " + k.value.dump());
    expect_refused(f, k.says);
  }
}

TEST(MoeRefusal, DenseLayersNeedTheirWidth) {
  Folder f(folder_of(kNext));
  f.config.set("mlp_only_layers", Json::Array{0});
  f.config.set("intermediate_size", Json());
  expect_refused(f, {"config.json", "intermediate_size"});
}

TEST(MoeRefusal, KeysOfQwen3_5Moe) {
  const Key keys[] = {
      {"num_experts", 0, {"config.json", "num_experts", "1 to 1024", "0"}},
      {"num_experts_per_tok", 9, {"num_experts_per_tok", "at most num_experts 8", "found 9"}},
      {"norm_topk_prob", false, {"norm_topk_prob", "expected true, found false"}},
      {"norm_topk_prob", "no", {"norm_topk_prob", "true or false", "string"}},
      {"decoder_sparse_step", 2, {"decoder_sparse_step", "expected 1, found 2"}},
      {"mlp_only_layers", Json::Array{1}, {"mlp_only_layers", "expected no layers, found [1]"}},
      {"model_type", "qwen3_5_text", {"model_type", "expected qwen3_5_moe_text", "qwen3_5_text"}},
  };
  for (const Key& k : keys) {
    Folder f(folder_of(kMoe));
    Json text = *f.config.find("text_config");
    text.set(k.key, k.value);
    f.config.set("text_config", text);
    SCOPED_TRACE(std::string(k.key) + " = " + k.value.dump());
    expect_refused(f, k.says);
  }
}

TEST(MoeRefusal, MissingTensors) {
  for (const char* name : {"mlp.gate.weight", "mlp.shared_expert_gate.weight", "mlp.shared_expert.up_proj.weight",
                           "mlp.experts.5.down_proj.weight", "mlp.experts.0.gate_proj.weight",
                           "linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight"}) {
    Folder f(folder_of(kNext));
    const std::string full = std::string("model.layers.0.") + name;
    ASSERT_EQ(f.tensors.erase(full), 1u);
    expect_refused(f, {"expected tensor", full});
  }
  Folder one(folder_of(kMoe));
  ASSERT_EQ(one.tensors.erase("model.language_model.layers.2.mlp.experts.3.up_proj.weight_global_scale"), 1u);
  expect_refused(one, {"layers.2.mlp.experts.3.up_proj.weight_global_scale", "beside", "found none"});
}

TEST(MoeRefusal, ExpertsThatNobodyAskedFor) {
  Folder f(folder_of(kNext));
  const auto& one = f.tensors.at("model.layers.1.mlp.experts.7.up_proj.weight");
  f.tensors["model.layers.1.mlp.experts.8.up_proj.weight"] = one;
  expect_refused(f, {"does not know", "model.layers.1.mlp.experts.8.up_proj.weight"});
}

TEST(MoeRefusal, ExpertsOfTwoFormats) {
  Folder f(folder_of(kNext));
  auto& one = f.tensors.at("model.layers.1.mlp.experts.7.up_proj.weight");
  one.dtype = DType::f16;
  expect_refused(f, {"experts.7.up_proj", "the format of model.layers.1.mlp.experts.0.up_proj, bf16", "found f16"});
}

TEST(MoeRefusal, Stacks) {
  const std::string experts = "model.layers.0.mlp.experts.";
  const auto stacked = [&](std::vector<std::int64_t> gate_up, std::vector<std::int64_t> down, DType dtype) {
    auto f = std::make_unique<Folder>(folder_of(kNext));
    std::erase_if(f->tensors, [&](const auto& entry) { return entry.first.starts_with(experts); });
    const auto add = [&](const char* name, const std::vector<std::int64_t>& shape) {
      if (shape.empty()) return;
      std::size_t bytes = dtype == DType::u8 ? 1 : 2;
      for (const std::int64_t n : shape) bytes *= static_cast<std::size_t>(n);
      f->tensors[experts + name] = {dtype, shape, std::string(bytes, '\0')};
    };
    add("gate_up_proj", gate_up);
    add("down_proj", down);
    return f;
  };
  expect_refused(*stacked({8, 128, 64}, {8, 128, 32}, DType::bf16), {"gate_up_proj", "[8, 64, 128]", "[8, 128, 64]"});
  expect_refused(*stacked({4, 64, 128}, {4, 128, 32}, DType::bf16), {"gate_up_proj", "[8, 64, 128]", "[4, 64, 128]"});
  expect_refused(*stacked({8 * 64, 128}, {8, 128, 32}, DType::bf16), {"gate_up_proj", "[8, 64, 128]", "[512, 128]"});
  expect_refused(*stacked({8, 64, 128}, {8, 32, 128}, DType::bf16), {"down_proj", "[8, 128, 32]", "[8, 32, 128]"});
  expect_refused(*stacked({8, 64, 128}, {8, 128, 32}, DType::u8), {"gate_up_proj", "F32 or F16 or BF16", "U8"});
  expect_refused(*stacked({8, 64, 128}, {}, DType::bf16), {"expected tensor", "experts.down_proj"});
  // Both at once: the single ones serve, and the stack is a tensor too many.
  Folder both(folder_of(kNext));
  both.tensors[experts + "gate_up_proj"] = {DType::bf16, {8, 64, 128}, std::string(8 * 64 * 128 * 2, '\0')};
  expect_refused(both, {"does not know", experts + "gate_up_proj"});
}

// A fused matrix is looked at as it is gathered.
TEST(MoeRefusal, NotFinite) {
  Folder f(folder_of(kNext));
  auto& ba = f.tensors.at("model.layers.0.linear_attn.in_proj_ba.weight").bytes;
  ba[1] = static_cast<char>(0x7f);
  ba[0] = static_cast<char>(0xc0);
  expect_refused(f, {"model.safetensors", "in_proj_ba.weight", "its rows for \"model.layers.0.linear_attn.in_proj_b\"",
                     "NaN at [0, 0]"});
}

}  // namespace
}  // namespace nibble::test
