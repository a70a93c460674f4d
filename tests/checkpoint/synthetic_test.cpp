#include "core/checkpoint/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::dequantise;
using Kind = ActivationFormat::Kind;

Weights source(SyntheticFormat format, std::uint64_t seed = 1) {
  return Weights::root(std::make_shared<SyntheticSource>(seed, SyntheticPolicy{format, {"mtp"}}));
}

// As a backend does before it packs.
Weight made(Weight w) {
  w.materialize(w);
  return w;
}

bool same(Bytes a, Bytes b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

TEST(Synthetic, FormatsFollowThePolicy) {
  const auto format = [](SyntheticFormat f, const char* name) {
    return std::string(weight_format_name((source(f) / name).matrix(32, 48).format));
  };
  const char *mlp = "model.layers.0.mlp.up_proj", *q = "model.layers.3.self_attn.q_proj",
             *a = "model.layers.0.linear_attn.in_proj_a";
  EXPECT_EQ(format(SyntheticFormat::nvfp4, mlp), "nvfp4");
  EXPECT_EQ(format(SyntheticFormat::nvfp4, q), "nvfp4");
  EXPECT_EQ(format(SyntheticFormat::nvfp4, "lm_head"), "nvfp4");
  EXPECT_EQ(format(SyntheticFormat::nvfp4, "model.embed_tokens"), "bf16");
  EXPECT_EQ(format(SyntheticFormat::nvfp4, a), "bf16");
  EXPECT_EQ(format(SyntheticFormat::mlp_nvfp4_rest_fp8, mlp), "nvfp4");
  EXPECT_EQ(format(SyntheticFormat::mlp_nvfp4_rest_fp8, q), "fp8_e4m3");
  EXPECT_EQ(format(SyntheticFormat::mlp_nvfp4_rest_fp8, "lm_head"), "fp8_e4m3");
  EXPECT_EQ(format(SyntheticFormat::bf16, mlp), "bf16");
  EXPECT_EQ(format(SyntheticFormat::f32, a), "f32");
  EXPECT_EQ((source(SyntheticFormat::nvfp4) / mlp).matrix(32, 40).format, WeightFormat::bf16);
}

TEST(Synthetic, ValuesHaveTheSpreadOfAUniformRow) {
  for (const auto f : {SyntheticFormat::nvfp4, SyntheticFormat::mlp_nvfp4_rest_fp8,
                       SyntheticFormat::bf16, SyntheticFormat::f32}) {
    const Weight w = made((source(f) / "model.layers.0.self_attn.q_proj").matrix(256, 512));
    double squares = 0, sum = 0;
    const auto values = dequantise(w);
    for (const double v : values) {
      ASSERT_TRUE(std::isfinite(v));
      squares += v * v;
      sum += v;
    }
    const auto count = static_cast<double>(values.size());
    // U(-1, 1) / sqrt(512); 131072 samples, row scales add a little.
    EXPECT_NEAR(std::sqrt(squares / count) * std::sqrt(3.0 * 512), 1.0, 0.06)
        << weight_format_name(w.format);
    EXPECT_NEAR(sum / count * std::sqrt(512.0), 0.0, 0.01) << weight_format_name(w.format);
  }
}

TEST(Synthetic, DependsOnSeedAndNameOnly) {
  for (const auto f : {SyntheticFormat::nvfp4, SyntheticFormat::mlp_nvfp4_rest_fp8,
                       SyntheticFormat::bf16, SyntheticFormat::f32}) {
    const auto make = [&](std::uint64_t seed, const char* name) {
      return made((source(f, seed) / name).matrix(16, 64));
    };
    const Weight w = make(5, "a");
    EXPECT_TRUE(same(w.codes, make(5, "a").codes));
    EXPECT_TRUE(same(w.block_scales, make(5, "a").block_scales));
    EXPECT_EQ(w.scales, make(5, "a").scales);
    EXPECT_FALSE(same(w.codes, make(6, "a").codes));
    EXPECT_FALSE(same(w.codes, make(5, "b").codes));
  }
}

TEST(Synthetic, VectorsLieWhereTrainedOnesDo) {
  const Weights w = source(SyntheticFormat::nvfp4) / "model.layers" / 0;
  const auto range = [](const std::vector<float>& v) {
    return std::pair(*std::min_element(v.begin(), v.end()), *std::max_element(v.begin(), v.end()));
  };
  for (const Fold fold : {Fold::none, Fold::one_plus}) {  // stored around 1, or around 0
    const auto norm = range((w / "input_layernorm").vector(512, fold));
    EXPECT_GE(norm.first, 0.9f);
    EXPECT_LE(norm.second, 1.1f);
    EXPECT_LT(norm.first, 0.95f);
    EXPECT_GT(norm.second, 1.05f);
  }
  const auto gated = range((w / "linear_attn" / "norm").vector(512));
  EXPECT_GE(gated.first, 0.9f);
  EXPECT_LE(gated.second, 1.1f);
  const auto decay = range((w / "linear_attn" / "A_log").vector(512));
  EXPECT_GE(decay.first, 0.0f);
  EXPECT_LE(decay.second, 2.8f);
  EXPECT_LT(decay.first, decay.second - 2);
  const auto conv = range((w / "linear_attn" / "conv1d").tensor({64, 1, 4}));
  EXPECT_GE(conv.first, -0.5f);
  EXPECT_LE(conv.second, 0.5f);
}

TEST(Synthetic, SaysWhatExistsAndCountsLikeAFile) {
  const Weights w = source(SyntheticFormat::nvfp4);
  EXPECT_TRUE(w.has("lm_head"));
  EXPECT_FALSE(w.has("mtp"));
  EXPECT_FALSE(w.has("mtp.fc"));
  EXPECT_FALSE((w / "model.layers" / 0 / "self_attn.q_proj").has("bias"));
  Qwen3_5Config c;
  c.vocab = 64;
  c.hidden = c.intermediate = 32;
  c.layers = 4;
  c.heads = c.kv_heads = 2;
  c.head_dim = 16;
  c.linear_key_heads = c.linear_value_heads = 2;
  c.linear_key_dim = c.linear_value_dim = 16;
  c.conv_kernel = 4;
  c.full_attention = {false, false, false, true};
  const test::BoundModel model = test::bind_model(w, c, false);
  EXPECT_EQ(w.report().bound, model.matrices.size() + model.vectors.size());
  EXPECT_TRUE(w.report().twice.empty());
  EXPECT_TRUE(w.finish().empty());
  (w / "lm_head").matrix(64, 32);
  EXPECT_EQ(w.report().twice, std::vector<std::string>{"lm_head.weight"});
}

TEST(Synthetic, RefusesWhatIsTooLarge) {
  EXPECT_NE(
      test::complaint([] { (source(SyntheticFormat::bf16) / "a").matrix(1ll << 40, 1ll << 40); },
                      ErrorCode::out_of_memory)
          .find("[synthetic] a: "),
      std::string::npos);
}

}  // namespace
}  // namespace nibble
