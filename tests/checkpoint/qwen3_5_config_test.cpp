#include "models/qwen3_5_config.h"

#include <gtest/gtest.h>

#include "core/checkpoint/json_file.h"
#include "models/model_type.h"
#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::complaint;

Json handed() {
  return read_json_object(test::kData / "model/hf-nvfp4-ct/config.json");
}

Qwen3_5Config read(const Json& json) {
  return read_qwen3_5_config(JsonView(json, "config.json"));
}

Json& text(Json& json) {
  for (auto& [key, value] : json.as_object()) {
    if (key == "text_config") return value;
  }
  throw std::runtime_error("no text_config");
}

TEST(Qwen3_5ConfigFile, TheTinyModel) {
  const Qwen3_5Config c = read(handed());
  EXPECT_EQ(c.vocab, 4096);
  EXPECT_EQ(c.hidden, 256);
  EXPECT_EQ(c.intermediate, 768);
  EXPECT_EQ(c.layers, 8);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.rotary_dim, 16);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_EQ(c.rms_eps, 1e-6f);
  EXPECT_EQ(c.linear_key_heads, 4);
  EXPECT_EQ(c.linear_value_heads, 8);
  EXPECT_EQ(c.linear_key_dim, 32);
  EXPECT_EQ(c.linear_value_dim, 32);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.max_positions, 4096);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_FALSE(c.tied);
  EXPECT_EQ(c.full_attention,
            (std::vector<bool>{false, false, false, true, false, false, false, true}));
  EXPECT_EQ(c.eos_ids, std::vector<std::int32_t>{4093});
}

TEST(Qwen3_5ConfigFile, SaysWhatItFoundAndWhere) {
  const auto refusal = [](const char* key, const Json& value, ErrorCode code) {
    Json json = handed();
    text(json).set(key, value);
    return complaint([&] { read(json); }, code);
  };
  EXPECT_EQ(refusal("model_type", "qwen3_5_moe_text", ErrorCode::unsupported),
            "config.json: text_config.model_type: expected qwen3_5_text, found "
            "\"qwen3_5_moe_text\"");
  EXPECT_EQ(refusal("rope_parameters", Json::Object{{"rope_type", "default"}}, ErrorCode::bad_file),
            "config.json: text_config.rope_parameters.rope_theta: missing");
  EXPECT_EQ(refusal("rope_parameters",
                    Json::Object{{"rope_theta", 1e7}, {"mrope_section", Json::Array{-1, 5, 4}}},
                    ErrorCode::bad_file),
            "config.json: text_config.rope_parameters.mrope_section: expected integers from 0 to "
            "1048576, found -1");
  EXPECT_EQ(refusal("eos_token_id", Json::Array{1, "a"}, ErrorCode::bad_file),
            "config.json: text_config.eos_token_id: expected token ids below vocab_size 4096, "
            "found \"a\"");
}

TEST(Qwen3_5ConfigFile, OlderSpellingsOfRope) {
  Json json = handed();
  Json& t = text(json);
  t.set("rope_parameters", Json());
  EXPECT_EQ(complaint([&] { read(json); }, ErrorCode::bad_file),
            "config.json: text_config.rope_parameters: missing, and no rope_theta either");
  t.set("rope_theta", 5e5);
  t.set("partial_rotary_factor", 0.5);
  EXPECT_EQ(read(json).rope_theta, 5e5);
  EXPECT_EQ(read(json).rotary_dim, 32);
}

TEST(Qwen3_5ConfigFile, VariantsThatNothingRuns) {
  const auto refusal = [](const char* key, Json value) {
    Json json = handed();
    text(json).set(key, std::move(value));
    return complaint([&] { read(json); }, ErrorCode::unsupported);
  };
  EXPECT_EQ(refusal("attention_bias", true),
            "config.json: text_config.attention_bias: expected false, found true");
  EXPECT_EQ(refusal("use_sliding_window", true),
            "config.json: text_config.use_sliding_window: expected false, found true");
  EXPECT_EQ(refusal("attn_output_gate", false),
            "config.json: text_config.attn_output_gate: expected true, found false");
  EXPECT_EQ(refusal("hidden_act", "gelu"),
            "config.json: text_config.hidden_act: expected silu, found \"gelu\"");
  EXPECT_EQ(refusal("rope_parameters", Json::Object{{"rope_type", "yarn"}, {"rope_theta", 1e7}}),
            "config.json: text_config.rope_parameters.rope_type: expected default, found \"yarn\"");
}

TEST(Qwen3_5ConfigFile, TheOuterFlagTies) {
  Json json = handed();
  json.set("tie_word_embeddings", true);
  EXPECT_TRUE(read(json).tied);
  json.set("tie_word_embeddings", Json());
  EXPECT_FALSE(read(json).tied);
}

TEST(Qwen3_5ConfigFile, TokenIdsLieInTheVocabulary) {
  Json json = handed();
  text(json).set("eos_token_id", Json::Array{4093, 4096});
  EXPECT_EQ(
      complaint([&] { read(json); }, ErrorCode::bad_file),
      "config.json: text_config.eos_token_id: expected token ids below vocab_size 4096, found "
      "4096");
}

TEST(ModelType, NamesThoseKnown) {
  constexpr std::string_view kKnown[] = {"qwen3_5", "qwen3_5_text"};
  const Json json = parse_json_object(R"({"model_type": "llama"})", "config.json");
  EXPECT_EQ(complaint([&] { model_type_of(JsonView(json, "config.json"), kKnown); },
                      ErrorCode::unsupported),
            "config.json: model_type: expected one of qwen3_5, qwen3_5_text, found \"llama\"");
  EXPECT_EQ(model_type_of(JsonView(json, "config.json")), "llama");
}

}  // namespace
}  // namespace nibble
