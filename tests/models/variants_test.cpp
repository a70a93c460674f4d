// One model in many forms: where the values are the same, so are the bits.
#include <gtest/gtest.h>

#include <cstring>

#include "core/numerics/codecs.h"
#include "tests/engine/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

std::vector<float> logits_of(const std::filesystem::path& dir) {
  Model model = Model::load(dir, Device::cpu(), options());
  Trace trace(model, {kLogits});
  Session session = model.new_session();
  read_all(session.generate(long_prompt(70), tokens(3)));
  return trace.ops.at(kLogits).values;
}

const std::vector<float>& shipped() {
  static const auto logits = logits_of(data("model/hf-nvfp4-ct"));
  return logits;
}

// text_config's keys at the top, names without language_model.
void make_flat(Folder& f) {
  Json flat = *f.config.find("text_config");
  flat.set("quantization_config", *f.config.find("quantization_config"));
  f.config = flat;
  f.rename("model.language_model.", "model.");
}

// Every BF16 tensor in another type, value by value.
template <class Out>
void convert(Folder& f, DType to, Out (*out)(float)) {
  for (auto& [name, entry] : f.tensors) {
    if (entry.dtype != DType::bf16) continue;
    std::string bytes(entry.bytes.size() / 2 * sizeof(Out), '\0');
    for (std::size_t i = 0; i < entry.bytes.size() / 2; ++i) {
      std::uint16_t half;
      std::memcpy(&half, entry.bytes.data() + 2 * i, 2);
      const Out value = out(num::bf16_to_float(half));
      std::memcpy(bytes.data() + sizeof(Out) * i, &value, sizeof(Out));
    }
    entry = {to, entry.shape, bytes};
  }
}

TEST(Variants, OneFileEqualsShards) {
  Folder f;
  f.write();
  EXPECT_TRUE(same_bytes(logits_of(f.path), shipped()));
}

TEST(Variants, FlatConfigAndNamesEqualNested) {
  Folder f;
  make_flat(f);
  f.write();
  EXPECT_TRUE(same_bytes(logits_of(f.path), shipped()));
}

TEST(Variants, F32EqualsTheBf16ItWasMadeFrom) {
  Folder f;
  convert<float>(f, DType::f32, [](float v) { return v; });
  f.write();
  EXPECT_TRUE(same_bytes(logits_of(f.path), shipped()));
}

TEST(Variants, F16EqualsTheSameValuesInF32) {
  Folder a, b;
  convert<std::uint16_t>(a, DType::f16, [](float v) { return num::float_to_f16(v); });
  convert<float>(b, DType::f32, [](float v) { return num::f16_to_float(num::float_to_f16(v)); });
  a.write();
  b.write();
  const auto half = logits_of(a.path);
  EXPECT_TRUE(same_bytes(half, logits_of(b.path)));
  EXPECT_LE(relative_l2(half, shipped()), 1e-3);
}

TEST(Variants, TiedHeadEqualsAHeadWithTheSameValues) {
  Folder tied, copied;
  tied.tensors.erase("lm_head.weight");
  Json text = *tied.config.find("text_config");
  text.set("tie_word_embeddings", true);
  tied.config.set("text_config", text);
  tied.config.set("tie_word_embeddings", true);
  tied.write();
  copied.tensors["lm_head.weight"] = copied.tensors["model.language_model.embed_tokens.weight"];
  copied.write();
  const auto logits = logits_of(tied.path);
  EXPECT_TRUE(same_bytes(logits, logits_of(copied.path)));
  EXPECT_FALSE(same_bytes(logits, shipped()));
}

// The free test of every model: random weights, all mixes, one forward; finite and reproducible.
TEST(Variants, SyntheticShapesRun) {
  for (const char* mix : {"nvfp4", "mlp-nvfp4-rest-fp8", "bf16", "f32"}) {
    for (const Activations activations : {Activations::a16, Activations::declared, Activations::a8}) {
      LoadOptions how = options();
      how.activations = activations;
      const auto run = [&](std::uint64_t seed, int threads) {
        Model model = Model::synthetic({"tiny", 0, mix, seed}, Device::cpu(threads), how);
        Trace trace(model, {kLogits});
        Session session = model.new_session();
        std::vector<std::int32_t> prompt(70);
        for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * 7 % 512);
        read_all(session.generate(prompt, tokens(4)));
        return trace.ops.at(kLogits).values;
      };
      const auto first = run(1, 2);
      for (const float v : first) ASSERT_TRUE(std::isfinite(v)) << mix;
      EXPECT_TRUE(same_bytes(first, run(1, 1))) << mix;
      EXPECT_FALSE(same_bytes(first, run(2, 2))) << mix;
    }
  }
}

}  // namespace
}  // namespace nibble::test
