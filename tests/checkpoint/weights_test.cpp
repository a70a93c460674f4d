// One scope at a time: every stored format, and what is said about tensors that do not fit.
#include "core/checkpoint/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/safetensors.h"
#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::complaint;
using test::TensorList;
using Kind = ActivationFormat::Kind;

// A checkpoint in a folder of its own; mapped files outlive their names.
Weights open(const TensorList& list, const std::string& config = "{}") {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", list.list());
  const Json json = parse_json_object(config, "config.json");
  return Weights::root(std::make_shared<Checkpoint>(folder.path()),
                       QuantConfig::read(JsonView(json, "config.json")));
}

// The part of an error behind the name of the (temporary) file.
std::string tail(const std::string& message) {
  const auto at = message.find(": ");
  return at == std::string::npos ? message : message.substr(at + 2);
}

std::string bad(const Weights& w, std::int64_t rows, std::int64_t cols) {
  return tail(complaint([&] { w.matrix(rows, cols); }, ErrorCode::bad_file));
}

TensorList nvfp4_ct() {
  TensorList list;
  list.add_zeros("m.weight_packed", DType::u8, {2, 16})
      .add_zeros("m.weight_scale", DType::f8_e4m3, {2, 2})
      .add("m.weight_global_scale", DType::f32, {1}, std::vector<float>{3})
      .add("m.input_global_scale", DType::f32, {1}, std::vector<float>{7});
  return list;
}

TEST(WeightsMatrix, TheDivisorBecomesAMultiplierInDouble) {
  const char* w4a4 = R"({"quantization_config": {"quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"},
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"}}}}})";
  const Weight w = (open(nvfp4_ct(), w4a4) / "m").matrix(2, 32);
  EXPECT_EQ(w.format, WeightFormat::nvfp4);
  EXPECT_EQ(w.scales, std::vector<float>{static_cast<float>(1.0 / 3.0)});
  EXPECT_EQ(w.activation, (ActivationFormat{Kind::nvfp4_static, static_cast<float>(1.0 / 7.0)}));
  EXPECT_EQ(w.bytes(), 32u + 4 + 4);
  // Nothing declared: the scale is there, and is not used.
  EXPECT_EQ((open(nvfp4_ct()) / "m").matrix(2, 32).activation, ActivationFormat{});
}

TEST(WeightsMatrix, ConfigurationNeverOverrulesTensors) {
  const char* nvfp4 =
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})";
  const Weights w = open(TensorList().add_zeros("m.weight", DType::bf16, {2, 32}), nvfp4);
  const Weight plain = (w / "m").matrix(2, 32);
  EXPECT_EQ(plain.format, WeightFormat::bf16);
  EXPECT_EQ(plain.scale_layout, ScaleLayout::none);
  EXPECT_EQ(plain.activation, ActivationFormat{});
}

TEST(WeightsMatrix, Fp8ScalesByTheirShape) {
  const auto layout = [](const char* name, DType dtype, std::vector<std::int64_t> shape) {
    TensorList list;
    list.add_zeros("m.weight", DType::f8_e4m3, {130, 300});
    list.add_zeros(name, dtype, std::move(shape));
    return (open(list) / "m").matrix(130, 300);
  };
  EXPECT_EQ(layout("m.weight_scale", DType::f32, {}).scale_layout, ScaleLayout::tensor);
  EXPECT_EQ(layout("m.weight_scale", DType::f32, {1}).scale_layout, ScaleLayout::tensor);
  EXPECT_EQ(layout("m.weight_scale", DType::bf16, {130, 1}).scale_layout, ScaleLayout::row);
  EXPECT_EQ(layout("m.weight_scale", DType::f16, {130}).scale_layout, ScaleLayout::row);
  EXPECT_EQ(layout("m.weight_scale_inv", DType::f32, {2, 3}).scale_layout, ScaleLayout::block128);
  EXPECT_EQ(layout("m.weight_scale_inv", DType::bf16, {2, 3}).scales.size(), 6u);
  EXPECT_EQ(layout("m.weight_scale", DType::bf16, {2, 3}).scale_layout, ScaleLayout::block128);
}

TEST(WeightsMatrix, SaysWhatDoesNotFit) {
  const auto only = [](const char* name, DType dtype, std::vector<std::int64_t> shape) {
    return open(TensorList().add_zeros(name, dtype, std::move(shape))) / "m";
  };
  EXPECT_EQ(bad(only("m.weight", DType::bf16, {2, 31}), 2, 32),
            "tensor \"m.weight\": expected BF16 [2, 32], found BF16 [2, 31]");
  EXPECT_EQ(bad(only("m.weight", DType::bf16, {64}), 2, 32),
            "tensor \"m.weight\": expected BF16 [2, 32], found BF16 [64]");
  EXPECT_EQ(
      bad(only("m.weight", DType::i32, {2, 4}), 2, 32),
      "tensor \"m.weight\": expected F32, F16, BF16, F8_E4M3 [2, 32] or U8 (two NVFP4 codes a "
      "byte) [2, 16], found I32 [2, 4]");
  EXPECT_EQ(bad(only("m.weight_packed", DType::i32, {2, 4}), 2, 32),
            "tensor \"m.weight_packed\": expected U8 [2, 16], found I32 [2, 4]");
  EXPECT_EQ(bad(only("m.weight_packed", DType::u8, {2, 12}), 2, 24),
            "tensor \"m.weight_packed\": expected another format for 24 columns, which are no "
            "multiple of NVFP4's block of 16, found U8 [2, 12]");
  const auto fp8 = [](const char* name, DType dtype, std::vector<std::int64_t> shape) {
    TensorList list;
    list.add_zeros("m.weight", DType::f8_e4m3, {130, 300});
    return bad(open(list.add_zeros(name, dtype, std::move(shape))) / "m", 130, 300);
  };
  EXPECT_EQ(fp8("m.weight_scale", DType::f32, {3, 2}),
            "tensor \"m.weight_scale\": expected [] (tensor), [130, 1] (row) or [2, 3] (blocks of "
            "128 x 128), found F32 [3, 2]");
  EXPECT_EQ(
      fp8("m.weight_scale_inv", DType::f32, {130, 1}),
      "tensor \"m.weight_scale_inv\": expected [2, 3] (blocks of 128 x 128), found F32 [130, 1]");
  EXPECT_EQ(fp8("m.weight_scale", DType::u8, {130, 1}),
            "tensor \"m.weight_scale\": expected F32, F16 or BF16 [130, 1], found U8 [130, 1]");
}

TEST(WeightsMatrix, SaysWhatIsMissing) {
  const auto missing = [](const TensorList& list) {
    return tail(complaint([&] { (open(list) / "m").matrix(2, 32); }, ErrorCode::not_found));
  };
  EXPECT_EQ(missing(TensorList().add_zeros("x", DType::u8, {1})),
            "expected tensor \"m\", found none of \"m.weight\", \"m.weight_packed\"");
  EXPECT_EQ(missing(TensorList().add_zeros("m.weight", DType::f8_e4m3, {2, 32})),
            "expected tensor \"m.weight_scale\" or \"m.weight_scale_inv\" beside \"m.weight\", "
            "found none");
  EXPECT_EQ(missing(TensorList().add_zeros("m.weight", DType::u8, {2, 16})),
            "expected tensor \"m.weight_scale\" beside \"m.weight\", found none");
  EXPECT_EQ(missing(TensorList()
                        .add_zeros("m.weight", DType::u8, {2, 16})
                        .add_zeros("m.weight_scale", DType::f8_e4m3, {2, 2})
                        .add_zeros("m.weight_global_scale", DType::f32, {1})),
            "expected tensor \"m.weight_scale_2\" beside \"m.weight\", found none");
}

TEST(WeightsMatrix, RefusesScalesThatAreNoScales) {
  for (const float v : {0.0f, -1.0f}) {
    TensorList list;
    list.add_zeros("m.weight_packed", DType::u8, {2, 16})
        .add_zeros("m.weight_scale", DType::f8_e4m3, {2, 2})
        .add("m.weight_global_scale", DType::f32, {1}, std::vector<float>{v});
    EXPECT_NE(bad(open(list) / "m", 2, 32)
                  .find("\"m.weight_global_scale\": expected a finite "
                        "positive divisor, found"),
              std::string::npos)
        << v;
  }
  TensorList list;
  list.add_zeros("m.weight", DType::f8_e4m3, {2, 32})
      .add("m.weight_scale", DType::f32, {},
           std::vector<float>{std::numeric_limits<float>::infinity()});
  EXPECT_EQ(bad(open(list) / "m", 2, 32),
            "tensor \"m.weight_scale\": expected finite scales, found inf");
}

TEST(WeightsMatrix, RefusesScalesThatLeaveFloat32sRange) {
  const auto nvfp4 = [](float divisor) {
    TensorList list;
    list.add_zeros("m.weight_packed", DType::u8, {2, 16})
        .add_zeros("m.weight_scale", DType::f8_e4m3, {2, 2})
        .add("m.weight_global_scale", DType::f32, {1}, std::vector<float>{divisor});
    return bad(open(list) / "m", 2, 32);
  };
  EXPECT_EQ(nvfp4(1e-45f), "tensor \"m.weight_global_scale\": expected a divisor above 2^-120, found 1.4013e-45");
  EXPECT_EQ(nvfp4(1e-38f), "tensor \"m.weight_global_scale\": expected a divisor above 2^-120, found 1e-38");
  const auto fp8 = [](float scale) {
    TensorList list;
    list.add_zeros("m.weight", DType::f8_e4m3, {2, 32})
        .add("m.weight_scale", DType::f32, {2, 1}, std::vector<float>{1, scale});
    return bad(open(list) / "m", 2, 32);
  };
  EXPECT_EQ(fp8(3e38f), "tensor \"m.weight_scale\": expected scales of at least 0 and below 2^120, found 3e+38 at 1");
  EXPECT_EQ(fp8(-1), "tensor \"m.weight_scale\": expected scales of at least 0 and below 2^120, found -1 at 1");
}

TEST(WeightsMatrix, NotesStaticInputsWithoutAScale) {
  const char* w4a4 = R"({"quantization_config": {"quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"},
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": "local"}}}}})";
  TensorList list;
  for (const std::string m : {"m", "n"}) {
    list.add_zeros(m + ".weight_packed", DType::u8, {2, 16})
        .add_zeros(m + ".weight_scale", DType::f8_e4m3, {2, 2})
        .add(m + ".weight_global_scale", DType::f32, {1}, std::vector<float>{3});
  }
  const Weights root = open(list, w4a4);
  EXPECT_EQ((root / "m").matrix(2, 32).activation, ActivationFormat{});
  (root / "n").matrix(2, 32);
  const std::vector<std::string> notes = root.finish();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "inputs of \"m\" and 1 more are declared static: expected a scale of theirs, found none: they stay "
                      "as they are");
}

TEST(WeightsMatrix, RefusesTwoAnswers) {
  TensorList both = nvfp4_ct();
  EXPECT_EQ(bad(open(both.add_zeros("m.weight", DType::bf16, {2, 32})) / "m", 2, 32),
            "tensor \"m.weight\": expected no such tensor beside \"m.weight_packed\", found BF16 "
            "[2, 32]");
  TensorList inputs = nvfp4_ct();
  EXPECT_NE(bad(open(inputs.add_zeros("m.input_scale", DType::f32, {})) / "m", 2, 32)
                .find("no such tensor beside \"m.input_global_scale\""),
            std::string::npos);
}

TEST(WeightsVector, WidensExactly) {
  TensorList list;
  list.add("a", DType::f16, {6},
           std::vector<std::uint16_t>{0x3c01, 0x0001, 0x8000, 0x7bff, 0xfbff, 0x83ff})
      .add("b.weight", DType::bf16, {2}, std::vector<std::uint16_t>{0x3f81, 0x8001})
      .add("c", DType::f32, {1, 1, 2}, std::vector<float>{0.1f, -3});
  const Weights w = open(list);
  EXPECT_EQ((w / "a").vector(6),
            (std::vector<float>{1 + 0x1p-10f, 0x1p-24f, -0.0f, 65504.0f,
                                -65504.0f, -1023 * 0x1p-24f}));
  EXPECT_TRUE(std::signbit((w / "a").vector(6)[2]));
  EXPECT_EQ((w / "b").vector(2), (std::vector<float>{1 + 0x1p-7f, -0x1p-133f}));
  EXPECT_EQ((w / "c").tensor({1, 1, 2}), (std::vector<float>{0.1f, -3}));
  EXPECT_EQ(tail(complaint([&] { (w / "c").vector(2); }, ErrorCode::bad_file)),
            "tensor \"c\": expected F32 or F16 or BF16 [2], found F32 [1, 1, 2]");
  EXPECT_EQ(tail(complaint([&] { (w / "d").vector(2); }, ErrorCode::not_found)),
            "expected tensor \"d\", found none of \"d\", \"d.weight\"");
}

TEST(WeightsVector, RefusesWhatIsNotFinite) {
  TensorList list;
  list.add("a", DType::f16, {3}, std::vector<std::uint16_t>{0, 0, 0x7e01})
      .add("b", DType::bf16, {2, 1, 2}, std::vector<std::uint16_t>{0, 0, 0, 0xff80})
      .add("c", DType::f32, {1}, std::vector<float>{std::numeric_limits<float>::infinity()});
  const Weights w = open(list);
  const auto refusal = [&](const char* name, const std::vector<std::int64_t>& shape) {
    return tail(complaint([&] { (w / name).tensor(shape); }, ErrorCode::bad_file));
  };
  EXPECT_EQ(refusal("a", {3}), "tensor \"a\": expected finite values, found NaN at [2]");
  EXPECT_EQ(refusal("b", {2, 1, 2}),
            "tensor \"b\": expected finite values, found -inf at [1, 0, 1]");
  EXPECT_EQ(refusal("c", {1}), "tensor \"c\": expected finite values, found inf at [0]");
}

TEST(WeightsScope, PrefixesOfEveryKind) {
  for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
    const std::string p = prefix;
    const std::string head = p.starts_with("language") ? "language_model.lm_head" : "lm_head";
    const Weights w = open(TensorList()
                               .add_zeros(p + "layers.1.norm.weight", DType::f32, {2})
                               .add_zeros(head + ".weight", DType::f32, {2, 2})
                               .add_zeros("mtp.norm.weight", DType::f32, {2}));
    EXPECT_EQ((w / "model.layers" / 1 / "norm").path(), p + "layers.1.norm");
    EXPECT_EQ((w / "model" / "layers" / 1 / "norm").vector(2).size(), 2u);
    EXPECT_TRUE((w / "model.layers").has("1"));
    EXPECT_FALSE((w / "model.layers").has("0"));
    EXPECT_TRUE(w.has("lm_head"));
    EXPECT_EQ((w / "lm_head").matrix(2, 2).name, head);
    EXPECT_EQ((w / "mtp" / "norm").vector(2).size(), 2u);
    EXPECT_TRUE(w.finish().empty());
  }
}

TEST(WeightsScope, CountsWhatIsBound) {
  const Weights w = open(TensorList()
                             .add_zeros("a.weight", DType::f32, {2, 2})
                             .add_zeros("b.weight", DType::f32, {2, 2})
                             .add_zeros("model.visual.x", DType::f32, {2})
                             .add_zeros("layers.0.v_scale", DType::f32, {})
                             .add_zeros("b.pre_quant_scale", DType::f32, {2}));
  (w / "a").matrix(2, 2);
  (w / "a").shared_matrix(2, 2);  // a tied head
  (w / "b").matrix(2, 2);
  EXPECT_TRUE(w.report().twice.empty());
  (w / "b").matrix(2, 2);
  const BindReport report = w.report();
  EXPECT_EQ(report.bound, 2u);
  EXPECT_EQ(report.twice, std::vector<std::string>{"b.weight"});
  EXPECT_EQ(report.unbound, std::vector<std::string>{"b.pre_quant_scale"});
  EXPECT_EQ(report.skipped.size(), 2u);
  EXPECT_EQ(tail(complaint([&] { w.finish(); }, ErrorCode::bad_file)),
            "expected only tensors of this model, found 1 that it does not know, "
            "\"b.pre_quant_scale\"");
}

}  // namespace
}  // namespace nibble
