// The five shipped checkpoints through Weights: every tensor bound once, formats and scales
// decoded.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/safetensors.h"
#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::BoundModel;
using Kind = ActivationFormat::Kind;

struct Loaded {
  Weights weights;
  BoundModel model;
};

Loaded load(const std::string& folder, bool drafts = true) {
  const auto path = test::kData / folder;
  const Json json = read_json_object(path / "config.json");
  const JsonView config(json, "config.json");
  const Weights w = Weights::root(std::make_shared<Checkpoint>(path), QuantConfig::read(config));
  return {w, test::bind_model(w, read_qwen3_5_config(config), drafts)};
}

// "nvfp4/tensor/nvfp4_static" -> how many matrices
std::map<std::string, int> census(const BoundModel& model) {
  std::map<std::string, int> out;
  for (const Weight& w : model.matrices) {
    ++out[std::string(weight_format_name(w.format)) + "/" + scale_layout_name(w.scale_layout) +
          "/" + activation_format_name(w.activation.kind)];
  }
  return out;
}

double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
}

using Census = std::map<std::string, int>;

struct Expected {
  const char* folder;
  Census census;
  std::size_t vectors;
  std::vector<std::string> skipped;
};

void PrintTo(const Expected& e, std::ostream* out) {
  *out << e.folder;
}

class Shipped : public testing::TestWithParam<Expected> {};

TEST_P(Shipped, EveryTensorIsBoundOnce) {
  const Expected& e = GetParam();
  const Loaded loaded = load(e.folder);
  EXPECT_EQ(census(loaded.model), e.census);
  EXPECT_EQ(loaded.model.vectors.size(), e.vectors);
  const BindReport report = loaded.weights.report();
  EXPECT_TRUE(report.twice.empty());
  EXPECT_TRUE(report.unbound.empty());
  EXPECT_EQ(loaded.weights.finish(), e.skipped);
}

TEST_P(Shipped, WithoutDraftsTheirTensorsAreOneLine) {
  const Loaded loaded = load(GetParam().folder, false);
  std::vector<std::string> lines = loaded.weights.finish();
  ASSERT_EQ(lines.size(), GetParam().skipped.size() + 1);
  EXPECT_NE(lines[1].find(" MTP tensors (mtp.*): nobody asked for drafts, "), std::string::npos);
  lines.erase(lines.begin() + 1);
  EXPECT_EQ(lines, GetParam().skipped);
}

TEST_P(Shipped, ValuesAreFinite) {
  for (const Weight& w : load(GetParam().folder).model.matrices) {
    for (const double v : test::dequantise(w)) ASSERT_TRUE(std::isfinite(v)) << w.name;
  }
}

// 8 layers (2 of attention), MTP: 50 linear matrices that are ever quantised in the trunk, embed,
// lm_head, 12 in_proj_a/b, 8 of MTP; 45 + 7 vectors.
const char* const kVision = "skipped 1 vision tensors (visual.*), 32 bytes";
const char* const kKv = "skipped 4 KV cache scales (k_scale, v_scale, kv_scale), 16 bytes";
const Expected kExpected[] = {
    {"model/hf-nvfp4-ct",
     {{"nvfp4/tensor/nvfp4_static", 50}, {"bf16/none/none", 22}},
     52,
     {kVision}},
    {"model/hf-nvfp4-modelopt",
     {{"nvfp4/tensor/nvfp4_static", 50}, {"bf16/none/none", 22}},
     52,
     {kVision}},
    {"mixed/hf-mixed-ct",
     {{"nvfp4/tensor/nvfp4_static", 18}, {"fp8_e4m3/row/fp8_token", 33}, {"bf16/none/none", 21}},
     52,
     {kVision}},
    {"mixed/hf-mixed-modelopt",
     {{"nvfp4/tensor/none", 25}, {"fp8_e4m3/tensor/fp8_tensor_static", 26}, {"bf16/none/none", 21}},
     52,
     {kVision, kKv}},
    {"mixed/hf-fp8-block",
     {{"fp8_e4m3/block128/fp8_token_group128", 57}, {"bf16/none/none", 15}},
     52,
     {kVision}},
};

std::string folder_name(const testing::TestParamInfo<Expected>& one) {
  std::string name = one.param.folder;
  for (char& c : name) c = c == '/' || c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Shipped, testing::ValuesIn(kExpected), folder_name);

// The two layouts of one model: the same codes, scales as multipliers, inputs and values.
TEST(Nvfp4Layouts, CompressedTensorsEqualsModelOpt) {
  const Loaded ct = load("model/hf-nvfp4-ct"), mo = load("model/hf-nvfp4-modelopt");
  ASSERT_EQ(ct.model.matrices.size(), mo.model.matrices.size());
  for (std::size_t i = 0; i < ct.model.matrices.size(); ++i) {
    const Weight &a = ct.model.matrices[i], &b = mo.model.matrices[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.scales, b.scales) << a.name;
    EXPECT_EQ(a.activation, b.activation) << a.name;
    EXPECT_EQ(test::dequantise(a), test::dequantise(b)) << a.name;
  }
  EXPECT_EQ(ct.model.vectors, mo.model.vectors);
}

// The same trained matrix in other formats stays near, while a scale taken from the wrong row or
// block would be far off. Seen: 0.038 between FP8 forms, 0.101 between FP8 and NVFP4.
TEST(MixedFormats, AgreeWithinTheirRounding) {
  const Loaded base = load("model/hf-nvfp4-ct"), rows = load("mixed/hf-mixed-ct"),
               whole = load("mixed/hf-mixed-modelopt"), grid = load("mixed/hf-fp8-block");
  const auto values = [](const Loaded& from, const char* name) {
    return test::dequantise(from.model.matrix(name));
  };
  for (const char* name : {"layers.3.self_attn.q_proj", "layers.7.self_attn.o_proj",
                           "layers.0.linear_attn.in_proj_qkv", "layers.6.linear_attn.out_proj"}) {
    const auto by_row = values(rows, name);
    EXPECT_LT(relative_l2(values(whole, name), by_row), 0.045) << name;
    EXPECT_LT(relative_l2(values(grid, name), by_row), 0.045) << name;
    EXPECT_LT(relative_l2(values(base, name), by_row), 0.115) << name;
  }
  for (const char* name : {"layers.7.mlp.down_proj", "layers.6.mlp.gate_proj"}) {
    EXPECT_LT(relative_l2(values(whole, name), values(rows, name)), 0.115) << name;
    EXPECT_EQ(values(whole, name), values(base, name)) << name;
  }
}

// Edge scales, decoded by an independent implementation.
TEST(Nvfp4Layouts, DecodeTheGoldenValues) {
  const SafetensorsFile golden(test::kData / "golden/nvfp4.safetensors");
  const auto as = [&](const char* from, const char* name, DType dtype,
                      std::vector<std::int64_t> shape) {
    return TensorInfo{name, dtype, std::move(shape), golden.find(from)->bytes};
  };
  const std::vector<TensorInfo> ct{
      as("deq.packed", "m.weight_packed", DType::u8, {6, 64}),
      as("deq.scale_bytes", "m.weight_scale", DType::f8_e4m3, {6, 8}),
      as("deq.weight_global_scale", "m.weight_global_scale", DType::f32, {1})};
  const std::vector<TensorInfo> mo{as("deq.packed", "m.weight", DType::u8, {6, 64}),
                                   as("deq.scale_bytes", "m.weight_scale", DType::f8_e4m3, {6, 8}),
                                   as("deq.weight_scale_2", "m.weight_scale_2", DType::f32, {})};
  const Bytes expected = golden.find("deq.out")->bytes;
  for (const auto& tensors : {ct, mo}) {
    const test::TemporaryFolder folder;
    write_safetensors(folder / "model.safetensors", tensors);
    const Weights w = Weights::root(std::make_shared<Checkpoint>(folder.path()));
    const auto values = test::dequantise((w / "m").matrix(6, 128));
    ASSERT_EQ(values.size(), expected.size() / 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(static_cast<float>(values[i]), load_le<float>(expected, 4 * i)) << i;
    }
  }
}

}  // namespace
}  // namespace nibble
