// One model in many forms: where the values are the same, so are the bits.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <span>

#include "core/checkpoint/reencode.h"
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

// Mode a8: a tied NVFP4 table becomes one FP8 image, which the embedding reads too; one that is only looked up stays.
TEST(Variants, A8ReencodesATiedTableOnce) {
  constexpr std::int64_t kRows = 4096, kCols = 256;
  std::mt19937 random(3);
  std::string codes(kRows * kCols / 2, '\0'), block_scales(kRows * kCols / 16, '\0');
  for (char& c : codes) c = static_cast<char>(random());
  for (char& c : block_scales) c = static_cast<char>(0x30 + random() % 0x10);
  const float global = 0.01f;
  const auto scalar = [](float v) {
    std::string bytes(4, '\0');
    std::memcpy(bytes.data(), &v, 4);
    return bytes;
  };
  const std::string name = "model.language_model.embed_tokens";
  const auto tie = [](Folder& f) {
    f.tensors.erase("lm_head.weight");
    Json text = *f.config.find("text_config");
    text.set("tie_word_embeddings", true);
    f.config.set("text_config", text);
    f.config.set("tie_word_embeddings", true);
  };
  const auto nvfp4 = [&](Folder& f) {
    f.tensors[name + ".weight"] = {DType::u8, {kRows, kCols / 2}, codes};
    f.tensors[name + ".weight_scale"] = {DType::f8_e4m3, {kRows, kCols / 16}, block_scales};
    f.tensors[name + ".weight_scale_2"] = {DType::f32, {}, scalar(global)};
    f.write();
  };
  Folder a, b, looked_up;
  tie(a);
  nvfp4(a);
  nvfp4(looked_up);
  tie(b);
  Weight w;
  w.format = WeightFormat::nvfp4;
  w.rows = kRows;
  w.cols = kCols;
  w.codes = std::as_bytes(std::span(codes));
  w.block_scales = std::as_bytes(std::span(block_scales));
  w.scale_layout = ScaleLayout::tensor;
  w.scales = {global};
  Weight fp8 = reencoded_to_fp8(w);
  fp8.materialize(fp8);
  b.tensors[name + ".weight"] = {DType::f8_e4m3, {kRows, kCols},
                                 {reinterpret_cast<const char*>(fp8.codes.data()), fp8.codes.size()}};
  b.tensors[name + ".weight_scale"] = {DType::f32, {}, scalar(fp8.scales[0])};
  b.write();
  LoadOptions how = options();
  how.activations = Activations::a8;
  const auto run = [&](const std::filesystem::path& dir, const char* device) {
    Model model = Model::load(dir, Device::parse(device), how);
    Trace trace(model, {kLogits});
    Session session = model.new_session();
    read_all(session.generate(long_prompt(70), tokens(3)));
    return trace.ops.at(kLogits).values;
  };
  for (const char* device : {"cpu", "cpu:mirror=sm90"}) {
    EXPECT_TRUE(same_bytes(run(a.path, device), run(b.path, device))) << device;
  }
  const auto reencodes_table = [&](const std::filesystem::path& dir) {
    const ModelInfo info = Model::inspect(dir, nullptr, Device::cpu(), how);
    return std::count_if(info.reencoded.begin(), info.reencoded.end(),
                         [](const auto& row) { return row.name.ends_with("embed_tokens"); });
  };
  EXPECT_EQ(reencodes_table(a.path), 1);
  EXPECT_EQ(reencodes_table(looked_up.path), 0);
}

// The free test of every model: random weights, all mixes, one forward; finite and reproducible.
TEST(Variants, SyntheticShapesRun) {
  for (const char* shape : {"tiny", "tiny-qwen3", "tiny-llama", "tiny-moe", "tiny-next"}) {
    for (const char* mix : {"nvfp4", "mlp-nvfp4-rest-fp8", "bf16", "f32"}) {
      for (const Activations activations : {Activations::a16, Activations::declared, Activations::a8}) {
        LoadOptions how = options();
        how.activations = activations;
        const auto run = [&](std::uint64_t seed, int threads) {
          Model model = Model::synthetic({shape, 0, mix, seed}, Device::cpu(threads), how);
          Trace trace(model, {kLogits});
          Session session = model.new_session();
          std::vector<std::int32_t> prompt(70);
          for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * 7 % 512);
          read_all(session.generate(prompt, tokens(4)));
          return trace.ops.at(kLogits).values;
        };
        const auto first = run(1, 2);
        for (const float v : first) ASSERT_TRUE(std::isfinite(v)) << shape << " " << mix;
        EXPECT_TRUE(same_bytes(first, run(1, 1))) << shape << " " << mix;
        EXPECT_FALSE(same_bytes(first, run(2, 2))) << shape << " " << mix;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
