// Weights out of GGUF files equal those of the safetensors checkpoint that they were made from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/gguf_decode.h"
#include "core/checkpoint/gguf_source.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/quant_config.h"
#include "models/qwen3_5_gguf.h"
#include "tests/checkpoint/support.h"
#include "tests/gguf/converted.h"
#include "tests/support/sha256.h"

namespace nibble::test {
namespace {

struct Opened {
  Weights weights;
  Qwen3_5Config config;
};

Opened open_gguf(const GgufWriter& w) {
  const auto held = std::make_shared<const std::string>(w.bytes());
  const Bytes bytes(reinterpret_cast<const std::byte*>(held->data()), held->size());
  const auto model =
      std::make_shared<const GgufModel>(GgufFile(bytes, "tiny.gguf", held), "tiny.gguf");
  GgufPlan plan = plan_qwen3_5_gguf(*model);
  const Qwen3_5Config config = read_qwen3_5_config(JsonView(plan.config, "tiny.gguf"));
  return {Weights::root(std::make_shared<GgufSource>(model, std::move(plan.tensors)),
                        QuantConfig::gguf({})),
          config};
}

Opened open_folder() {
  const auto folder = kData / "model/hf-nvfp4-modelopt";
  const Json config = read_json_object(folder / "config.json");
  const JsonView view(config, "config.json");
  return {Weights::root(std::make_shared<Checkpoint>(folder), QuantConfig::read(view)),
          read_qwen3_5_config(view)};
}

bool same(Bytes a, Bytes b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

void make(Weight& w) {
  if (w.materialize) w.materialize(w);
}

// The converter of llama.cpp wrote the file whose hashes these are: the tests' own agrees with it.
TEST(GgufConverted, TensorsAreThoseOfAnotherConverter) {
  std::map<std::string, std::string> expected;
  std::ifstream list(kData / "model/tiny-nvfp4.gguf.txt");
  for (std::string name, type, dims, hash; list >> name >> type >> dims >> hash;) {
    expected[name] = type + " " + dims + " " + hash;
  }
  ASSERT_EQ(expected.size(), 209u);
  const GgufWriter w = converted();
  EXPECT_EQ(w.tensors.size(), expected.size());
  for (const auto& t : w.tensors) {
    std::string dims;
    for (const auto d : t.dims) dims += (dims.empty() ? "" : "x") + std::to_string(d);
    EXPECT_EQ(std::to_string(t.type) + " " + dims + " " + sha256(std::as_bytes(std::span(t.bytes))),
              expected[t.name])
        << t.name;
  }
}

TEST(GgufSource, WeightsAreThoseOfTheFolder) {
  for (const bool drafts : {false, true}) {
    const Opened a = open_gguf(converted(gguf::kNvfp4, drafts)), b = open_folder();
    BoundModel ours = bind_model(a.weights, a.config, drafts),
               theirs = bind_model(b.weights, b.config, drafts);
    ASSERT_EQ(ours.matrices.size(), theirs.matrices.size());
    for (std::size_t i = 0; i < ours.matrices.size(); ++i) {
      Weight& w = ours.matrices[i];
      const Weight& t = theirs.matrices[i];
      make(w);
      EXPECT_EQ(w.format, t.format) << w.name;
      EXPECT_TRUE(same(w.codes, t.codes)) << w.name;
      EXPECT_TRUE(same(w.block_scales, t.block_scales)) << w.name;
      EXPECT_EQ(w.scales, t.scales) << w.name;
      EXPECT_EQ(w.scale_layout, t.scale_layout) << w.name;
      EXPECT_EQ(w.activation, t.activation) << w.name;
    }
    EXPECT_TRUE(a.weights.report().unbound.empty());
    EXPECT_TRUE(a.weights.report().twice.empty());
  }
}

TEST(GgufSource, SmallTensorsAreThoseOfTheFolder) {
  const Opened a = open_gguf(converted()), b = open_folder();
  const auto vectors = [](const Opened& o) {
    std::vector<std::vector<float>> out;
    for (int i : {0, 3}) {
      const Weights l = o.weights / "model.layers" / i;
      out.push_back((l / "input_layernorm").vector(o.config.hidden, Fold::one_plus));
      out.push_back((l / "post_attention_layernorm").vector(o.config.hidden, Fold::one_plus));
    }
    const Weights full = o.weights / "model.layers.3.self_attn",
                  delta = o.weights / "model.layers.0.linear_attn";
    out.push_back((full / "q_norm").vector(o.config.head_dim, Fold::one_plus));
    out.push_back((delta / "A_log").vector(o.config.linear_value_heads, Fold::neg_exp));
    out.push_back((delta / "dt_bias").vector(o.config.linear_value_heads));
    out.push_back((delta / "norm").vector(o.config.linear_value_dim));
    out.push_back((delta / "conv1d").tensor({512, 1, 4}));
    return out;
  };
  EXPECT_EQ(vectors(a), vectors(b));
}

TEST(GgufSource, OtherFormatsDecodeExactly) {
  const Opened b = open_folder();
  const BoundModel theirs = bind_model(b.weights, b.config, false);
  for (const std::uint32_t type : {gguf::kF32, gguf::kF16, gguf::kBF16, gguf::kQ8_0}) {
    const Opened a = open_gguf(converted(type));
    BoundModel ours = bind_model(a.weights, a.config, false);
    for (std::size_t i = 0; i < ours.matrices.size(); ++i) {
      Weight& w = ours.matrices[i];
      if (theirs.matrices[i].format != WeightFormat::nvfp4) continue;
      make(w);
      EXPECT_EQ(w.format, type == gguf::kF16    ? WeightFormat::f16
                          : type == gguf::kBF16 ? WeightFormat::bf16
                                                : WeightFormat::f32);
      const std::vector<double> found = dequantise(w), original = dequantise(theirs.matrices[i]);
      std::size_t wrong = 0;
      for (std::size_t at = 0; at < found.size(); at += 32) {
        float largest = 0;
        for (std::size_t k = at; k < at + 32; ++k)
          largest = std::max(largest, static_cast<float>(std::abs(original[k])));
        for (std::size_t k = at; k < at + 32; ++k) {
          wrong += found[k] != static_cast<double>(
                                   stored_value(static_cast<float>(original[k]), largest, type));
        }
      }
      EXPECT_EQ(wrong, 0u) << gguf_type(type)->name << " " << w.name;
    }
  }
}

// Every int8 under scales of all kinds: subnormal, odd fractions, the largest, negative.
TEST(GgufSource, Q8_0IsExact) {
  for (const std::uint16_t bits : {0x0001, 0x03ff, 0x1555, 0x3c01, 0x7bff, 0x9234, 0x0000}) {
    GgufTensor t{"w", gguf_type(gguf::kQ8_0), {256, 1}, {}};
    std::string bytes;
    for (int block = 0; block < 8; ++block) {
      bytes += std::string(reinterpret_cast<const char*>(&bits), 2);
      for (int i = 0; i < 32; ++i) bytes += static_cast<char>(block * 32 + i - 128);
    }
    t.bytes = std::as_bytes(std::span(bytes));
    Weight w;
    w.rows = 1;
    w.cols = 256;
    decode_gguf_matrix(t, {}, w);
    const double exponent = (bits >> 10 & 31) == 0 ? 1 : bits >> 10 & 31;
    const double fraction = (bits & 1023) + ((bits >> 10 & 31) == 0 ? 0 : 1024);
    const double scale =
        std::ldexp(fraction, static_cast<int>(exponent) - 25) * (bits & 0x8000 ? -1 : 1);
    for (int i = 0; i < 256; ++i) {
      EXPECT_EQ(static_cast<double>(load_le<float>(w.codes, 4 * static_cast<std::size_t>(i))),
                scale * (i - 128));
    }
  }
}

TEST(GgufSource, HeadsGoBackWhereTheyWere) {
  for (const auto& [keys, each] : {std::pair{4, 2}, {16, 3}, {1, 5}, {3, 1}}) {
    const GgufHeads heads{GgufHeads::Axis::rows, 7, 2, keys, each};
    for (std::int64_t k = 0; k < keys; ++k) {
      for (std::int64_t r = 0; r < each; ++r) {  // tiled row r * keys + k holds head k * each + r
        EXPECT_EQ(heads.stored(7 + 2 * (k * each + r) + 1), 7 + 2 * (r * keys + k) + 1);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
