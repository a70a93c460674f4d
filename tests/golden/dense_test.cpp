// Dense models, attention and SwiGLU alone: what their layers make, cuts of a prompt, marks without
// a recurrent state, mirrors, and rotary frequencies as the configuration scales them.
#include <cstdio>
#include <random>

#include "backends/cpu/isa.h"
#include "core/numerics/codecs.h"
#include "tests/engine/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

// float32 against float32, relative L2: 1e-6 was seen.
constexpr double kLayerBound = 2e-6;

class Dense : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return data(std::string("archs/") + GetParam()); }
  Golden golden() const {
    return Golden(data(std::string("archs/golden/") + GetParam() + ".safetensors"));
  }
  Json prompts() const {
    return *read_json(std::string("archs/golden/") + GetParam() + ".json").find("prompts");
  }
  Model load(const LoadOptions& how, const char* device = "cpu") const {
    return Model::load(folder(), Device::parse(device), how);
  }
  // The longest of the oracle, and its answer: 176 and more.
  std::vector<std::int32_t> long_ids() const {
    const std::string id = prompts().as_object().back().first;
    auto ids = golden().i32(id + ".ids");
    const auto answer = golden().i32(id + ".greedy");
    ids.insert(ids.end(), answer.begin(), answer.end());
    return ids;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Dense, testing::Values("qwen3", "llama"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(Dense, LayersMatchTheOracle) {
  Model model = load(options(), "cpu:fused-add-norm=off");  // sums are shown
  const std::string id = prompts().as_object().front().first;
  Trace trace(model, {});
  Session session = model.new_session();
  read_all(session.generate(golden().i32(id + ".ids"), tokens(1)));
  double worst = 0;
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer),
                      key = id + ".layer" + std::to_string(layer);
    for (const auto& [op, name] :
         {std::pair{".self_attn.o_proj", ".mixer"}, {".mlp.down_proj", ".mlp"}, {".out", ".out"}}) {
      const double error = relative_l2(trace.ops.at(at + op).values, golden().f32(key + name));
      EXPECT_LE(error, kLayerBound) << key << name;
      worst = std::max(worst, error);
    }
  }
  std::printf("%s: layers within %.2g relative L2\n", GetParam(), worst);
}

TEST_P(Dense, PrefillCutAtMultiplesOf64GivesTheSameBits) {
  const auto prompt = long_ids();
  ASSERT_GT(prompt.size(), 128u + 40);
  for (const char* device : {"cpu", "cpu:mirror=sm70", "cpu:mirror=sm90", "cpu:mirror=sm120"}) {
    Model whole_model = load(options(), device), in_steps = load(options(1, 128), device);
    const Result whole = prefill(whole_model, prompt), steps = prefill(in_steps, prompt);
    EXPECT_TRUE(same_bytes(steps.logits, whole.logits)) << device;
    EXPECT_TRUE(whole.state.delta.empty());
    EXPECT_EQ(whole.state.kv.size(), 2u);
    expect_same_state(steps.state, whole.state, device);
    for (const std::size_t at : {64u, 128u}) {
      Session session = whole_model.new_session();
      session.score(std::span(prompt).first(at + 1));  // runs `at` rows
      Trace trace(whole_model, {kLogits});
      read_all(session.generate(std::span(prompt).subspan(at + 1), tokens(1)));
      EXPECT_TRUE(same_bytes(trace.ops.at(kLogits).values, whole.logits))
          << device << " cut at " << at;
      expect_same_state(state_of(session), whole.state, device);
    }
  }
}

TEST_P(Dense, RewindGoesBackToTheBit) {
  const auto prompt = long_ids();
  for (const char* device : {"cpu", "cpu:mirror=sm90"}) {
    Model model = load(options(2), device);
    Session session = model.new_session(), fresh = model.new_session();
    read_all(session.generate(std::span(prompt).first(100), tokens(5)));
    read_all(fresh.generate(std::span(prompt).first(100), tokens(5)));
    const Mark mark = session.mark();
    EXPECT_EQ(mark.tokens(), 105);
    for (int i = 0; i < 2; ++i) {  // as often as one likes
      read_all(session.generate(prompt, tokens(40)));
      session.rewind(mark);
      expect_same_state(state_of(session), state_of(fresh), device);
    }
    EXPECT_EQ(read_all(session.generate({}, tokens(30))), read_all(fresh.generate({}, tokens(30))))
        << device;
    expect_same_state(state_of(session), state_of(fresh), device);
  }
}

// A stream that is dropped, or stopped by a text, takes tokens back that a step ran ahead.
TEST_P(Dense, ADroppedStreamEndsAtTheLastPieceTaken) {
  const auto prompt = long_ids();
  Model model = load(options(3));
  Session dropped = model.new_session(), other = model.new_session(), counted = model.new_session();
  {
    auto stream = dropped.generate(std::span(prompt).first(70), tokens(50));
    auto beside = other.generate(std::span(prompt).first(33), tokens(50));
    Piece piece;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(stream.next(piece));
      ASSERT_TRUE(beside.next(piece));
    }
    ASSERT_TRUE(beside.next(piece));  // makes one more token of ours, which nobody reads
  }
  read_all(counted.generate(std::span(prompt).first(70), tokens(3)));
  expect_same_state(state_of(dropped), state_of(counted), "dropped");
  EXPECT_EQ(read_all(dropped.generate({}, tokens(8))), read_all(counted.generate({}, tokens(8))));
}

TEST_P(Dense, ThreadsKernelsAndNeighboursChangeNothing) {
  const auto all = long_ids();
  const auto prompt = std::span(all).first(90);
  for (const std::string profile :
       {"cpu:", "cpu:mirror=sm70,", "cpu:mirror=sm90,", "cpu:mirror=sm120,"}) {
    Model first = load(options(), (profile + "threads=1").c_str());
    const Result want = prefill(first, prompt, 4);
    for (const cpu::Isa isa : cpu::available_isas()) {
      const std::string device = profile + "threads=3,kernels=" + cpu::isa_name(isa);
      Model model = load(options(2), device.c_str());
      Session neighbour = model.new_session(), session = model.new_session();
      TokenStream beside = neighbour.generate(std::span(all).first(77), tokens(6));
      TokenStream ours = session.generate(prompt, tokens(4));
      read_all(std::move(beside));
      EXPECT_EQ(read_all(std::move(ours)), want.tokens) << device;
      expect_same_state(state_of(session), want.state, device);
    }
  }
}

// Profiles of 16-bit operands against the oracle; BF16 in transformers itself is 6e-3 to 2.2e-2
// away.
TEST_P(Dense, MirrorsLieNearTheOracle) {
  const Json all = prompts();
  for (const std::string profile : {"sm70", "sm90", "sm120"}) {
    Model model = load(options(), ("cpu:mirror=" + profile).c_str());
    for (const auto& [id, prompt] : all.as_object()) {
      const auto ids = golden().i32(id + ".ids");
      const double off = relative_l2(prefill(model, ids).logits, golden().f32(id + ".logits"));
      std::printf("%s %s %s: logits %.3g relative L2\n", GetParam(), profile.c_str(), id.c_str(),
                  off);
      EXPECT_LE(off, profile == "sm70" ? 4e-3 : 2e-2) << id;
      std::vector<double> margins;
      for (const Json& m : prompt.find("margins")->as_array()) margins.push_back(m.as_double());
      expect_greedy(model, ids, golden().i32(id + ".greedy"), margins, 0.15, profile + " " + id);
    }
  }
}

// The oracle's logits again where the file says the same in other words, and others where it does
// not.
std::vector<float> logits_of(const Folder& f, std::span<const std::int32_t> ids) {
  f.write();
  Model model = Model::load(f.path, Device::cpu(), options());
  return prefill(model, ids).logits;
}

Json scaling(const char* type, double factor) {
  return Json::Object{{"rope_type", type},
                      {"factor", factor},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 128}};
}

TEST(DenseRope, SpellingsOfOneScaling) {
  const auto ids = Golden(data("archs/golden/llama.safetensors")).i32("long152.ids");
  Folder f("archs/llama");
  const auto shipped = logits_of(f, ids);
  Json parameters = scaling("llama3", 8);
  parameters.set("rope_theta", 10000.0);
  f.config.set("rope_scaling", Json());
  f.config.set("rope_theta", Json());
  f.config.set("rope_parameters", parameters);
  EXPECT_TRUE(same_bytes(logits_of(f, ids), shipped));
  f.config.set("rope_parameters", Json());
  f.config.set("rope_theta", 10000.0);
  Json older = scaling("llama3", 8);
  older.set("rope_type", Json());
  older.set("type", "llama3");
  f.config.set("rope_scaling", older);
  EXPECT_TRUE(same_bytes(logits_of(f, ids), shipped));
  // No head_dim in Llama 3's own files: the hidden size over the heads.
  f.config.set("head_dim", Json());
  EXPECT_TRUE(same_bytes(logits_of(f, ids), shipped));
}

TEST(DenseRope, EachScalingIsAnother) {
  const Golden golden(data("archs/golden/llama.safetensors"));
  const auto ids = golden.i32("long152.ids");
  const auto oracle = golden.f32("long152.logits");
  Folder f("archs/llama");
  const auto shipped = logits_of(f, ids);
  f.config.set("rope_scaling", Json());
  const auto none = logits_of(f, ids);
  f.config.set("rope_scaling", scaling("default", 1));
  EXPECT_TRUE(same_bytes(logits_of(f, ids), none));
  f.config.set("rope_scaling", scaling("linear", 1));
  EXPECT_TRUE(same_bytes(logits_of(f, ids), none));
  f.config.set("rope_scaling", scaling("linear", 8));
  const auto linear = logits_of(f, ids);
  EXPECT_LE(relative_l2(shipped, oracle), 1e-5);
  EXPECT_GE(relative_l2(none, oracle), 0.1);
  EXPECT_GE(relative_l2(linear, oracle), 0.1);
  EXPECT_GE(relative_l2(linear, none), 0.1);
}

// FP8 and NVFP4 matrices of random codes whose scales are powers of two, beside the float32 values
// that they stand for: scaling by such a number is exact, so the bits are the same.
class Pair {
 public:
  Folder coded, decoded;

  explicit Pair(const std::string& source) : coded(source), decoded(source) {}

  void fp8(const std::string& name, float scale) {
    const auto shape = coded.tensors.at(name + ".weight").shape;
    std::string codes(static_cast<std::size_t>(shape[0] * shape[1]), '\0');
    std::vector<float> values;
    for (char& c : codes) {
      c = static_cast<char>((random_() & 0x80) | (0x28 + random_() % 0x18));  // 0.25 .. 1.875
      values.push_back(num::e4m3_to_float(static_cast<std::uint8_t>(c)) * scale);
    }
    coded.tensors[name + ".weight"] = {DType::f8_e4m3, shape, codes};
    coded.tensors[name + ".weight_scale"] = {DType::f32, {}, bytes_of(&scale, 1)};
    decoded.tensors[name + ".weight"] = {DType::f32, shape, bytes_of(values.data(), values.size())};
  }

  void nvfp4(const std::string& name, float scale) {
    const auto shape = coded.tensors.at(name + ".weight").shape;
    const auto rows = static_cast<std::size_t>(shape[0]), cols = static_cast<std::size_t>(shape[1]);
    std::string codes(rows * cols / 2, '\0'), blocks(rows * cols / 16, '\0');
    for (char& c : codes) c = static_cast<char>(random_());
    for (char& c : blocks) c = static_cast<char>(0x30 + random_() % 0x10);  // 0.5 .. 1.875
    std::vector<float> values(rows * cols);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto pair = static_cast<std::uint8_t>(codes[i / 2]);
      values[i] = num::e2m1_to_float(i % 2 == 0 ? pair & 15 : pair >> 4) *
                  num::e4m3_to_float(static_cast<std::uint8_t>(blocks[i / 16])) * scale;
    }
    coded.tensors[name + ".weight"] = {DType::u8, {shape[0], shape[1] / 2}, codes};
    coded.tensors[name + ".weight_scale"] = {DType::f8_e4m3, {shape[0], shape[1] / 16}, blocks};
    coded.tensors[name + ".weight_scale_2"] = {DType::f32, {}, bytes_of(&scale, 1)};
    decoded.tensors[name + ".weight"] = {DType::f32, shape, bytes_of(values.data(), values.size())};
  }

 private:
  static std::string bytes_of(const float* values, std::size_t count) {
    return {reinterpret_cast<const char*>(values), count * sizeof(float)};
  }
  std::mt19937 random_{11};
};

TEST_P(Dense, QuantisedMatricesGiveTheBitsOfTheirValues) {
  Pair pair(std::string("archs/") + GetParam());
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      pair.fp8(layer + "self_attn." + name, 0x1p-4f);
    }
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      pair.nvfp4(layer + "mlp." + name, 0x1p-6f);
    }
  }
  const auto prompt = long_ids();
  const auto coded = logits_of(pair.coded, prompt), decoded = logits_of(pair.decoded, prompt);
  for (const float v : coded) ASSERT_TRUE(std::isfinite(v));
  EXPECT_TRUE(same_bytes(coded, decoded));
}

}  // namespace
}  // namespace nibble::test
