// The same weights in several layouts: the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>

#include "backends/cpu/ops/linear.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/weights.h"
#include "models/qwen3_5_config.h"
#include "tests/golden/fixture.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

constexpr const char* kCt = "model/hf-nvfp4-ct";
constexpr const char* kModelOpt = "model/hf-nvfp4-modelopt";

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Answer {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // of every step
};

Answer greedy(Model& model, std::span<const std::int32_t> ids) {
  Session session = model.new_session();
  Sampling how;
  how.max_new_tokens = 32;
  how.ignore_model_stop_tokens = true;
  Answer answer;
  Trace trace(model, {kLogits});
  for (const Piece& p : session.generate(ids, how)) {
    if (p.token >= 0) answer.tokens.push_back(p.token);
  }
  answer.logits = trace.ops.at(kLogits).values;
  return answer;
}

TEST(Layouts, CompressedTensorsAndModelOptGiveEqualBits) {
  Model a = Model::load(data(kCt), Device::cpu()), b = Model::load(data(kModelOpt), Device::cpu());
  const Golden golden(data("golden/prompts.safetensors"));
  int prompts = 0;
  const Json json = read_json("golden/prompts.json");
  for (const auto& [id, prompt] : json.as_object()) {
    const auto ids = golden.i32(id + ".ids");
    const Answer of_a = greedy(a, ids), of_b = greedy(b, ids);
    EXPECT_EQ(of_a.tokens, of_b.tokens) << id;
    EXPECT_EQ(of_a.logits.size(), 32u * 4096u) << id;
    EXPECT_TRUE(same_bytes(of_a.logits, of_b.logits)) << id;
    ++prompts;
  }
  EXPECT_EQ(prompts, 8);
}

// The linear ops of one checkpoint's MLPs, each on an input that depends on its place alone.
class Mlps {
 public:
  explicit Mlps(const std::string& folder)
      : json_(read_json_object(data(folder + "/config.json"))),
        config_(read_qwen3_5_config(JsonView(json_, folder))),
        weights_(Weights::root(std::make_shared<Checkpoint>(data(folder)),
                               QuantConfig::read(JsonView(json_, folder)))) {}

  // Nothing where the checkpoint keeps this matrix in another format.
  std::optional<std::vector<float>> output(cpu::Isa isa, int layer, const std::string& name) const {
    const bool down = name == "down_proj";
    const std::int64_t n = down ? config_.hidden : config_.intermediate;
    const std::int64_t k = down ? config_.intermediate : config_.hidden;
    const Weight w =
        (weights_ / "model.layers" / layer / "mlp" / name).shared_matrix(n, k);
    if (w.format != WeightFormat::nvfp4) return std::nullopt;
    cpu::Parallel parallel(1);
    const Aligned arena(cpu::packed_bytes(w));
    const cpu::PackedWeight packed = cpu::pack(w, arena.data, parallel, cpu::nibble_order(isa));
    std::mt19937 random(static_cast<std::uint32_t>(layer) * 16 + static_cast<std::uint32_t>(name[0]));
    std::vector<float> x(static_cast<std::size_t>(kRows * k));
    for (float& v : x) v = static_cast<float>(random()) * 0x1p-31f - 1;
    std::vector<float> y(static_cast<std::size_t>(kRows * n));
    cpu::LinearArgs args;
    args.weight = &packed;
    args.rows = kRows;
    args.x = x.data();
    args.x_stride = k;
    args.y = y.data();
    args.y_stride = n;
    cpu::linear(isa, parallel, args);
    return y;
  }

 private:
  static constexpr std::int64_t kRows = 37;  // one row and many have kernels of their own: same bits
  Json json_;
  Qwen3_5Config config_;
  Weights weights_;
};

struct Other {
  const char* folder;
  int equal;  // matrices that it has in NVFP4, as hf-nvfp4-ct has
};

void PrintTo(const Other& o, std::ostream* out) { *out << o.folder; }

class MixedLayouts : public testing::TestWithParam<Other> {};

// Mixed checkpoints keep some MLPs in NVFP4 with the codes and scales of hf-nvfp4-ct, under the names
// and conventions of their own tools.
TEST_P(MixedLayouts, MlpsGiveTheBitsOfCompressedTensors) {
  const Mlps ct(kCt), other(GetParam().folder);
  for (const cpu::Isa isa : cpu::available_isas()) {
    int compared = 0;
    for (int layer = 0; layer < 8; ++layer) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        const auto expected = ct.output(isa, layer, name), found = other.output(isa, layer, name);
        ASSERT_TRUE(expected.has_value()) << layer << " " << name;
        if (!found) continue;
        EXPECT_TRUE(same_bytes(*found, *expected)) << cpu::isa_name(isa) << " layer " << layer << " " << name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, GetParam().equal) << cpu::isa_name(isa);
  }
}
INSTANTIATE_TEST_SUITE_P(All, MixedLayouts,
                         testing::Values(Other{kModelOpt, 24}, Other{"mixed/hf-mixed-ct", 18},
                                         Other{"mixed/hf-mixed-modelopt", 24}));

}  // namespace
}  // namespace nibble::test
