// Configurations of the dense families: what they mean, and what those that cannot be run are told.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/program/rope.h"
#include "tests/engine/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

struct Refused {
  ErrorCode code = ErrorCode::internal;
  std::string text = "nothing was thrown";
};

Refused refusal(const Folder& f) {
  f.write();
  try {
    Model::load(f.path, Device::cpu(), options());
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const std::exception& e) {
    return {ErrorCode::internal, std::string("no Error: ") + e.what()};
  }
  return {};
}

struct Hostile {
  const char* key;
  Json value;
  ErrorCode code;
  std::string said;  // behind "config.json: "
};

void expect_refused(const char* folder, const std::vector<Hostile>& cases) {
  Folder f(folder);
  const Json good = f.config;
  for (const Hostile& c : cases) {
    f.config = good;
    f.config.set(c.key, c.value);
    const Refused r = refusal(f);
    EXPECT_EQ(r.code, c.code) << c.key << ": " << r.text;
    EXPECT_NE(r.text.find("config.json: " + c.said), std::string::npos)
        << c.key << ": \"" << c.said << "\" in: " << r.text;
  }
  f.config = good;
  EXPECT_EQ(refusal(f).text, "nothing was thrown");
}

Json rope(const char* key, Json value) {
  Json r = Json::Object{{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 128}};
  r.set(key, std::move(value));
  return r;
}

constexpr ErrorCode kBad = ErrorCode::bad_file, kUnsupported = ErrorCode::unsupported;

TEST(DenseConfigFile, KeysThatAreMissing) {
  const auto expect_missed = [](const char* folder, std::initializer_list<const char*> keys) {
    for (const std::string key : keys) {
      Folder f(folder);
      std::erase_if(f.config.as_object(), [&](const Json::Member& m) { return m.first == key; });
      const Refused r = refusal(f);
      EXPECT_EQ(r.code, kBad) << r.text;
      EXPECT_NE(r.text.find("config.json: " + key + ": missing"), std::string::npos)
          << key << ": " << r.text;
    }
  };
  for (const char* folder : {"archs/qwen3", "archs/llama"}) {
    expect_missed(folder, {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                           "num_attention_heads", "max_position_embeddings", "rope_theta"});
  }
  expect_missed("archs/qwen3", {"head_dim", "num_key_value_heads"});
}

TEST(DenseConfigFile, NumbersThatNoModelHas) {
  for (const char* folder : {"archs/qwen3", "archs/llama"}) {
    expect_refused(
        folder,
        {
            {"num_attention_heads", 0, kBad,
             "num_attention_heads: expected an integer from 1 to 4096, found integer 0"},
            {"num_attention_heads", -2, kBad,
             "num_attention_heads: expected an integer from 1 to 4096, found integer -2"},
            {"num_key_value_heads", 0, kBad,
             "num_key_value_heads: expected an integer from 1 to 4096, found integer 0"},
            {"num_key_value_heads", 3, kBad,
             "num_key_value_heads: expected a divisor of num_attention_heads "},
            {"num_key_value_heads", 8, kBad,
             "num_key_value_heads: expected a divisor of num_attention_heads "},
            {"head_dim", 63, kBad,
             "head_dim: expected an even number, as rotary embeddings turn pairs, found 63"},
            {"head_dim", 0, kBad, "head_dim: expected an integer from 1 to 65536, found integer 0"},
            {"head_dim", "64", kBad, "head_dim: expected an integer"},
            {"num_hidden_layers", 0, kBad, "num_hidden_layers: expected an integer"},
            {"rms_norm_eps", -1e-6, kBad, "rms_norm_eps: expected a number"},
            {"rope_theta", -1e4, kBad, "rope_theta: expected a number"},
            {"rope_theta", 0, kBad, "rope_theta: expected a number"},
            {"eos_token_id", 512, kBad,
             "eos_token_id: expected token ids below vocab_size 512, found 512"},
            {"vocab_size", 1 << 30, kBad, "vocab_size: expected an integer"},
        });
  }
  Folder f("archs/llama");
  f.config.set("head_dim", Json());
  f.config.set("num_attention_heads", 3);
  f.config.set("num_key_value_heads", 1);
  EXPECT_NE(refusal(f).text.find(
                "head_dim: missing, and hidden_size 128 is no multiple of num_attention_heads 3"),
            std::string::npos);
}

TEST(DenseConfigFile, RotaryEmbeddingsThatNothingRuns) {
  for (const char* folder : {"archs/qwen3", "archs/llama"}) {
    const std::string kinds = "expected default, linear or llama3, found ";
    expect_refused(
        folder,
        {
            {"rope_scaling", rope("rope_type", "yarn"), kUnsupported,
             "rope_scaling.rope_type: " + kinds + "\"yarn\""},
            {"rope_scaling", rope("rope_type", "dynamic"), kUnsupported,
             "rope_scaling.rope_type: " + kinds + "\"dynamic\""},
            {"rope_scaling", rope("rope_type", "longrope"), kUnsupported,
             "rope_scaling.rope_type: " + kinds + "\"longrope\""},
            {"rope_scaling", Json::Object{{"type", "mrope"}}, kUnsupported,
             "rope_scaling.type: " + kinds + "\"mrope\""},
            {"rope_scaling", rope("rope_type", 3), kBad,
             "rope_scaling.rope_type: expected a string"},
            {"rope_scaling", Json::Object{{"factor", 8.0}}, kBad,
             "rope_scaling.rope_type: missing, expected linear or llama3 beside a factor"},
            {"rope_scaling", rope("type", "mrope"), kBad,
             "rope_scaling.type: expected rope_type's "},
            {"rope_scaling", "linear", kBad, "rope_scaling: expected an object"},
            {"rope_scaling", Json::Object{{"rope_type", "linear"}}, kBad,
             "rope_scaling.factor: missing"},
            {"rope_scaling", rope("factor", -8.0), kBad,
             "rope_scaling.factor: expected a number from 1 to 1e+06, found number -8.0"},
            {"rope_scaling", rope("factor", 0.0), kBad, "rope_scaling.factor: expected a number"},
            {"rope_scaling", rope("low_freq_factor", -1.0), kBad,
             "rope_scaling.low_freq_factor: expected a number"},
            {"rope_scaling", rope("low_freq_factor", Json()), kBad,
             "rope_scaling.low_freq_factor: expected a number"},
            {"rope_scaling", Json::Object{{"rope_type", "llama3"}, {"factor", 8.0}}, kBad,
             "rope_scaling.low_freq_factor: missing"},
            {"rope_scaling", rope("high_freq_factor", 1.0), kBad,
             "rope_scaling.high_freq_factor: expected more than low_freq_factor 1.0, found 1.0"},
            {"rope_scaling", rope("original_max_position_embeddings", 0), kBad,
             "rope_scaling.original_max_position_embeddings: expected an integer"},
            {"partial_rotary_factor", 0.5, kUnsupported,
             "partial_rotary_factor: expected 1, found 0.5"},
        });
  }
  Folder f("archs/llama");
  f.config.set("rope_parameters", Json::Object{{"rope_type", "default"}, {"rope_theta", 1e4}});
  const Refused both = refusal(f);
  EXPECT_EQ(both.code, kBad) << both.text;
  EXPECT_NE(both.text.find("rope_scaling: expected null beside rope_parameters, found object"),
            std::string::npos)
      << both.text;
  f.config.set("rope_scaling", Json());
  f.config.set("rope_theta", Json());
  EXPECT_EQ(refusal(f).text, "nothing was thrown");
  f.config.set("rope_parameters", Json::Object{{"rope_type", "default"}});
  EXPECT_NE(refusal(f).text.find("rope_parameters.rope_theta: missing"), std::string::npos);
}

TEST(DenseConfigFile, VariantsThatNothingRuns) {
  for (const char* folder : {"archs/qwen3", "archs/llama"}) {
    expect_refused(
        folder,
        {
            {"hidden_act", "gelu", kUnsupported, "hidden_act: expected silu, found \"gelu\""},
            {"attention_bias", true, kUnsupported, "attention_bias: expected false, found true"},
            {"mlp_bias", true, kUnsupported, "mlp_bias: expected false, found true"},
            {"use_sliding_window", true, kUnsupported,
             "use_sliding_window: expected false, found true"},
            {"layer_types", Json::Array{"full_attention", "sliding_attention"}, kUnsupported,
             "layer_types: expected full_attention alone, found \"sliding_attention\""},
            {"layer_types", Json::Array{"full_attention"}, kBad,
             "layer_types: expected num_hidden_layers 2 entries, found 1"},
        });
  }
}

TEST(DenseConfigFile, TensorsAndConfigurationDisagree) {
  const auto says = [](Folder& f, std::initializer_list<const char*> parts) {
    const Refused r = refusal(f);
    for (const char* part : parts)
      EXPECT_NE(r.text.find(part), std::string::npos) << "no \"" << part << "\" in: " << r.text;
  };
  for (const char* folder : {"archs/qwen3", "archs/llama"}) {
    Folder vocab(folder);
    vocab.config.set("vocab_size", 640);
    says(vocab, {"model.embed_tokens.weight", "[640, 128]", "[512, 128]"});
    Folder heads(folder);
    heads.config.set("head_dim", 32);
    says(heads, {"self_attn.q_proj.weight", "expected"});
    Folder layers(folder);
    layers.config.set("num_hidden_layers", 1);
    says(layers, {"expected only tensors of this model", "model.layers.1."});
    Folder bias(folder);
    bias.tensors["model.layers.0.self_attn.q_proj.bias"] = {DType::f32, {1}, std::string(4, '\0')};
    says(bias, {"model.layers.0.self_attn.q_proj.bias"});
  }
  Folder tied("archs/qwen3");
  tied.tensors["lm_head.weight"] = tied.tensors.at("model.embed_tokens.weight");
  says(tied, {"tie_word_embeddings", "lm_head.weight", "found true"});
  Folder untied("archs/qwen3");
  untied.config.set("tie_word_embeddings", false);
  says(untied, {"expected tensor \"lm_head\"", "\"lm_head.weight\""});
  Folder norms("archs/llama");  // llama has no norms of queries and keys
  norms.tensors["model.layers.0.self_attn.q_norm.weight"] = {DType::f32, {1}, std::string(4, '\0')};
  says(norms, {"q_norm.weight"});
}

// The formula as the oracle's README states it, by wavelength, in double.
TEST(RopeFrequencies, FollowTheirFormulas) {
  using Kind = RopeScaling::Kind;
  RopeConfig c{1e4, 64, {}};
  const auto plain = rope_frequencies(c);
  c.scaling = {Kind::linear, 4, 1, 4, 0};
  const auto linear = rope_frequencies(c);
  c.scaling = {Kind::llama3, 8, 1, 4, 128};
  const auto llama3 = rope_frequencies(c);
  ASSERT_EQ(plain.size(), 32u);
  int kept = 0, divided = 0, between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double f = std::pow(1e4, -2.0 * static_cast<double>(i) / 64),
                 wave = 2 * std::numbers::pi / f;
    EXPECT_EQ(plain[i], static_cast<float>(f));
    EXPECT_EQ(linear[i], static_cast<float>(f / 4));
    double want = f;
    if (wave > 128.0) {
      want = f / 8, ++divided;
    } else if (wave >= 128.0 / 4) {
      const double smooth = (128.0 / wave - 1) / 3;
      want = f * ((1 - smooth) / 8 + smooth), ++between;
    } else {
      ++kept;
    }
    EXPECT_NEAR(llama3[i] / want, 1, 1e-7) << i;  // rounding to float32: 6e-8
  }
  EXPECT_GT(kept, 3);
  EXPECT_GT(divided, 3);
  EXPECT_GT(between, 2);
  EXPECT_EQ(rope_scaling_text(c.scaling), "llama3, factor 8 beyond 128 positions");
}

}  // namespace
}  // namespace nibble::test
