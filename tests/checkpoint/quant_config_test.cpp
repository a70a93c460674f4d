#include "core/checkpoint/quant_config.h"

#include <gtest/gtest.h>

#include "core/checkpoint/json_file.h"
#include "core/checkpoint/name_set.h"
#include "tests/checkpoint/support.h"

namespace nibble {
namespace {

using test::complaint;
using Kind = ActivationFormat::Kind;

QuantConfig read(const std::string& inner, const std::string& hf = "") {
  const Json config = parse_json_object(
      inner.empty() ? "{}" : "{\"quantization_config\": " + inner + "}", "config.json");
  if (hf.empty()) return QuantConfig::read(JsonView(config, "config.json"));
  const Json other = parse_json_object(hf, "hf_quant_config.json");
  const JsonView view(other, "hf_quant_config.json");
  return QuantConfig::read(JsonView(config, "config.json"), &view);
}

Kind declared(const QuantConfig& q, const std::string& name) {
  return q.activation(std::vector<std::string>{name});
}

std::string unsupported(const std::string& inner) {
  return complaint([&] { read(inner); }, ErrorCode::unsupported);
}

std::string group(const std::string& weights, const std::string& inputs,
                  const std::string& format = "float-quantized") {
  return R"({"quant_method": "compressed-tensors", "format": ")" + format +
         R"(", "config_groups": {"g": {"targets": ["Linear"], "weights": )" + weights +
         ", \"input_activations\": " + inputs + "}}}";
}

const std::string k8 = R"({"num_bits": 8, "type": "float", "strategy": "channel"})";
const std::string k4 = R"({"num_bits": 4, "type": "float", "group_size": 16})";

TEST(QuantConfigCt, InputsOfEightBits) {
  const auto kind = [](const char* inputs) { return declared(read(group(k8, inputs)), "a.b"); };
  EXPECT_EQ(kind("null"), Kind::none);
  EXPECT_EQ(kind(R"({"num_bits": 8, "dynamic": true, "strategy": "token"})"), Kind::fp8_token);
  EXPECT_EQ(kind(R"({"num_bits": 8, "dynamic": true, "strategy": "tensor"})"), Kind::fp8_token);
  EXPECT_EQ(kind(R"({"num_bits": 8, "strategy": "tensor"})"), Kind::fp8_tensor_static);
  EXPECT_EQ(kind(R"({"num_bits": 8, "dynamic": true, "strategy": "group", "group_size": 128})"),
            Kind::fp8_token_group128);
}

TEST(QuantConfigCt, NamesBeatClassesAndIgnoreBeatsBoth) {
  const QuantConfig q = read(R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
    "config_groups": {
      "all": {"format": "float-quantized", "targets": ["Linear"], "weights": )" +
                             k8 + R"(,
        "input_activations": {"num_bits": 8, "dynamic": true, "strategy": "token"}},
      "mlp": {"format": "nvfp4-pack-quantized", "targets": ["re:.*mlp\\.(up|down)$", "x.y"],
        "weights": )" + k4 + R"(, "input_activations": )" +
                             k4 + R"(}},
    "ignore": ["lm_head", "re:^mtp.*"]})");
  EXPECT_EQ(declared(q, "layers.0.mlp.up"), Kind::nvfp4_static);
  EXPECT_EQ(declared(q, "layers.0.mlp.up2"), Kind::fp8_token);
  EXPECT_EQ(declared(q, "x.y"), Kind::nvfp4_static);
  EXPECT_EQ(declared(q, "x.y.z"), Kind::fp8_token);
  EXPECT_EQ(declared(q, "lm_head"), Kind::none);
  EXPECT_EQ(declared(q, "mtp.layers.0.mlp.up"), Kind::none);
  EXPECT_EQ(declared(q, "x.mtp"), Kind::fp8_token);
  EXPECT_EQ(q.activation(std::vector<std::string>{"a", "x.y"}), Kind::nvfp4_static);  // any alias
}

TEST(QuantConfigCt, RefusesByName) {
  EXPECT_EQ(unsupported(group(R"({"num_bits": 3})", "null")),
            "config.json: quantization_config.config_groups.g.weights.num_bits: expected 4 or 8, "
            "found 3");
  EXPECT_EQ(
      unsupported(group(R"({"num_bits": 4, "group_size": 32})", "null", "nvfp4-pack-quantized")),
      "config.json: quantization_config.config_groups.g.weights.group_size: expected 16 for "
      "4-bit floats, found 32");
  for (const char* absent : {R"({"num_bits": 4})", R"({"num_bits": 4, "group_size": null})"}) {
    EXPECT_NE(unsupported(group(absent, "null", "nvfp4-pack-quantized")).find("found none"),
              std::string::npos);
  }
  EXPECT_NE(unsupported(group(R"({"num_bits": 8, "type": "int"})", "null"))
                .find("type: expected float, found int"),
            std::string::npos);
  EXPECT_NE(unsupported(group(k4, R"({"num_bits": 8})", "nvfp4-pack-quantized")).find("num_bits"),
            std::string::npos);
  EXPECT_NE(unsupported(group(k8, "null", "pack-quantized")).find("found \"pack-quantized\""),
            std::string::npos);
  EXPECT_NE(unsupported(R"({"quant_method": "compressed-tensors", "format": "dense",
    "transform_config": {"config_groups": {"R1": {}}}})")
                .find("transform_config"),
            std::string::npos);
  EXPECT_NE(unsupported(R"({"quant_method": "compressed-tensors", "format": "dense",
    "sparsity_config": {"format": "sparse-24-bitmask"}})")
                .find("sparse-24"),
            std::string::npos);
}

TEST(QuantConfigModelOpt, Algorithms) {
  const auto kind = [](const char* algo) {
    return declared(read(std::string(R"({"quant_method": "modelopt", "quant_algo": ")") + algo +
                         R"(", "ignore": ["lm_head", "model.visual*", "mtp*", "a.b"]})"),
                    "x.up");
  };
  EXPECT_EQ(kind("NVFP4"), Kind::nvfp4_static);
  EXPECT_EQ(kind("W4A16_NVFP4"), Kind::none);
  EXPECT_EQ(kind("FP8"), Kind::fp8_tensor_static);
  EXPECT_EQ(unsupported(R"({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})"),
            "config.json: quantization_config.quant_algo: expected one of NVFP4, W4A16_NVFP4, FP8, "
            "FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MIXED_PRECISION, found \"NVFP4_AWQ\"");
  const QuantConfig q = read(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
    "ignore": ["lm_head", "model.visual*", "mtp*", "a.b"]})");
  for (const char* name : {"lm_head", "model.visual.x", "mtp.fc", "a.b", "a.b.c"}) {
    EXPECT_EQ(declared(q, name), Kind::none) << name;
  }
  EXPECT_EQ(declared(q, "a.bc"), Kind::nvfp4_static);
}

TEST(QuantConfigModelOpt, MixedPrecisionAndTheOlderFile) {
  const char* layers = R"("quant_algo": "MIXED_PRECISION", "quantized_layers": {
    "a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
    "c": {"quant_algo": "NVFP4"}})";
  const std::string inner = std::string(R"({"quant_method": "modelopt", )") + layers + "}";
  const std::string hf = std::string(R"({"quantization": {)") + layers + "}}";
  for (const QuantConfig& q : {read(inner), read("", hf)}) {
    EXPECT_EQ(declared(q, "a"), Kind::fp8_tensor_static);
    EXPECT_EQ(declared(q, "b"), Kind::none);
    EXPECT_EQ(declared(q, "c"), Kind::nvfp4_static);
    EXPECT_EQ(declared(q, "d"), Kind::none);
  }
  const QuantConfig excluded = read("", R"({"quantization": {"quant_algo": "FP8",
    "exclude_modules": ["*lm_head*"]}})");
  EXPECT_EQ(declared(excluded, "lm_head"), Kind::none);
  EXPECT_EQ(declared(excluded, "x"), Kind::fp8_tensor_static);
  EXPECT_EQ(declared(read(R"({"quant_method": "fp8"})", hf), "c"),
            Kind::fp8_token);  // config.json first
}

TEST(QuantConfigFp8, Blocks) {
  const QuantConfig q = read(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
    "activation_scheme": "dynamic", "modules_to_not_convert": ["model.visual", "lm_head"]})");
  EXPECT_EQ(declared(q, "layers.0.up"), Kind::fp8_token_group128);
  EXPECT_EQ(declared(q, "model.visual.blocks.0"), Kind::none);
  EXPECT_EQ(
      unsupported(R"({"quant_method": "fp8", "weight_block_size": [128, 64]})"),
      "config.json: quantization_config.weight_block_size: expected [128, 128], found another "
      "block");
  EXPECT_EQ(declared(read(R"({"quant_method": "fp8", "activation_scheme": "static"})"), "a"),
            Kind::fp8_tensor_static);
}

TEST(QuantConfigNothing, Declared) {
  EXPECT_EQ(read("").method(), QuantConfig::Method::none);
  EXPECT_EQ(declared(read("null"), "a"), Kind::none);
}

TEST(NameSetPatterns, Globs) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("a*c*e", "abcde"));
  EXPECT_TRUE(glob_matches("*b?d", "abbcd"));
  EXPECT_FALSE(glob_matches("a*c", "abcd"));
  EXPECT_FALSE(glob_matches("?", ""));
  EXPECT_FALSE(glob_matches(std::string(60, '*') + "b", std::string(100'000, 'a')));
}

TEST(NameSetPatterns, RegexesAreBounded) {
  NameSet set;
  set.add_regex(".*self_attn\\.(q|k)_proj$", "c");
  EXPECT_TRUE(set.matches("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(set.matches("model.layers.0.self_attn.q_proj.x"));
  set.add_regex("(a+)+$", "c");
  EXPECT_NE(complaint([&] { set.matches(std::string(64, 'a') + "b"); }, ErrorCode::bad_file)
                .find("c: pattern \"re:(a+)+$\" cannot be matched with"),
            std::string::npos);
  EXPECT_NE(
      complaint([&] { set.add_regex("(", "c"); }, ErrorCode::bad_file).find("regular expression"),
      std::string::npos);
  EXPECT_NE(complaint([&] { set.add_regex(std::string(5000, 'a'), "c"); }, ErrorCode::bad_file),
            "");
  EXPECT_NE(complaint(
                [&] {
                  for (int i = 0; i < 2000; ++i) set.add_regex("a", "c");
                },
                ErrorCode::bad_file)
                .find("more than 1024"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
