// Experts stored one by one or stacked, delta-net projections apart or fused: the same values, the same bits.
#include <gtest/gtest.h>

#include <cstring>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/weights.h"
#include "core/parity/weight_rows.h"
#include "tests/moe/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

constexpr std::int64_t kExperts = 8;

std::vector<float> logits_of(const std::filesystem::path& dir) {
  Model model = Model::load(dir, Device::cpu(), options());
  return prefill(model, long_ids(kMoe), 3).logits;
}

// A matrix of the file as float32, and its tensors taken out.
std::string decoded(Folder& f, const Weights& at, std::int64_t rows, std::int64_t cols) {
  const Weight w = at.matrix(rows, cols);
  std::vector<double> row(static_cast<std::size_t>(cols));
  std::vector<float> values;
  for (std::int64_t r = 0; r < rows; ++r) {
    weight_row(w, r, row.data());
    for (const double v : row) values.push_back(static_cast<float>(v));
  }
  std::erase_if(f.tensors, [&](const auto& entry) { return entry.first.starts_with(at.path() + "."); });
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Experts decoded to float32, as matrices of their own or stacked.
void decode_experts(Folder& f, const Arch& arch, std::int64_t hidden, std::int64_t width, bool stacked) {
  const Weights w = Weights::root(std::make_shared<Checkpoint>(data(folder_of(arch))));
  for (int layer = 0; layer < arch.layers; ++layer) {
    const Weights experts = w / "model.layers" / layer / "mlp.experts";
    std::string gate_up, down;
    for (int e = 0; e < kExperts; ++e) {
      const Weights one = experts / e;
      const std::string gate = decoded(f, one / "gate_proj", width, hidden), up = decoded(f, one / "up_proj", width, hidden),
                        out = decoded(f, one / "down_proj", hidden, width);
      if (stacked) {
        gate_up += gate + up;
        down += out;
      } else {
        f.tensors[(one / "gate_proj").path() + ".weight"] = {DType::f32, {width, hidden}, gate};
        f.tensors[(one / "up_proj").path() + ".weight"] = {DType::f32, {width, hidden}, up};
        f.tensors[(one / "down_proj").path() + ".weight"] = {DType::f32, {hidden, width}, out};
      }
    }
    if (!stacked) continue;
    f.tensors[experts.path() + ".gate_up_proj"] = {DType::f32, {kExperts, 2 * width, hidden}, gate_up};
    f.tensors[experts.path() + ".down_proj"] = {DType::f32, {kExperts, hidden, width}, down};
  }
}

TEST(MoeLayouts, StackedExpertsEqualSingleOnesAndTheOracle) {
  Folder single(folder_of(kMoe)), stacked(folder_of(kMoe));
  decode_experts(single, kMoe, 128, 64, false);
  decode_experts(stacked, kMoe, 128, 64, true);
  single.write();
  stacked.write();
  const auto logits = logits_of(stacked.path);
  EXPECT_TRUE(same_bytes(logits, logits_of(single.path)));
  // The first of the rows is the prompt's last; the oracle computed it from decoded weights too.
  const Golden golden = golden_of(kMoe);
  EXPECT_LE(largest_difference(std::span(logits).first(512), golden.f32("long196.logits")), 3e-4);
}

// Qwen3-Next's BF16 experts, stacked as transformers 5 saves what was loaded so.
TEST(MoeLayouts, StackedBf16EqualsSingleBf16) {
  Folder f(folder_of(kNext));
  const std::int64_t hidden = 128, width = 32;
  for (int layer = 0; layer < kNext.layers; ++layer) {
    const std::string experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::string gate_up, down;
    for (int e = 0; e < kExperts; ++e) {
      const auto take = [&](const char* name) {
        return f.tensors.extract(experts + std::to_string(e) + "." + name + ".weight").mapped().bytes;
      };
      gate_up += take("gate_proj");
      gate_up += take("up_proj");
      down += take("down_proj");
    }
    f.tensors[experts + "gate_up_proj"] = {DType::bf16, {kExperts, 2 * width, hidden}, gate_up};
    f.tensors[experts + "down_proj"] = {DType::bf16, {kExperts, hidden, width}, down};
  }
  f.write();
  Model stacked = Model::load(f.path, Device::cpu(), options()), single = load(kNext, options());
  EXPECT_TRUE(same_bytes(prefill(stacked, long_ids(kNext), 3).logits, prefill(single, long_ids(kNext), 3).logits));
  // Matrices are named alike, and a stack is counted once.
  std::vector<TensorRow> a, b;
  const ModelInfo of_stacked = Model::inspect(f.path, &a), of_single = Model::inspect(data(folder_of(kNext)), &b);
  const auto matrices = [](const std::vector<TensorRow>& rows) {
    std::vector<std::string> names;
    for (const TensorRow& r : rows) names.push_back(r.name);
    return names;
  };
  EXPECT_EQ(matrices(a), matrices(b));
  EXPECT_EQ(of_stacked.experts.parameters, 2 * kExperts * 3 * hidden * width);
  EXPECT_EQ(of_stacked.experts.active_parameters, 2 * 3 * 3 * hidden * width);
  EXPECT_EQ(of_single.experts.per_token, 3);
  EXPECT_EQ(of_single.experts.intermediate, width);
}

// A layer without experts in between: mlp_only_layers and decoder_sparse_step say the same of it.
TEST(MoeLayouts, DenseLayersAmongSparseOnes) {
  Folder f(folder_of(kNext));
  std::erase_if(f.tensors, [](const auto& entry) { return entry.first.starts_with("model.layers.0.mlp."); });
  std::string weights(256 * 128 * 2, '\0');
  for (std::size_t i = 0; i < weights.size(); i += 2) {
    weights[i] = static_cast<char>(i * 37);
    weights[i + 1] = static_cast<char>(0x3c + (i / 2 % 3 == 0 ? 0x80 : 0));  // about 0.01
  }
  for (const char* name : {"gate_proj", "up_proj"}) {
    f.tensors[std::string("model.layers.0.mlp.") + name + ".weight"] = {DType::bf16, {256, 128}, weights};
  }
  f.tensors["model.layers.0.mlp.down_proj.weight"] = {DType::bf16, {128, 256}, weights};
  const auto run = [&] {
    f.write();
    Model model = Model::load(f.path, Device::cpu(), options());
    EXPECT_EQ(model.info().experts.layers, 1);
    return prefill(model, long_ids(kNext), 3).logits;
  };
  f.config.set("mlp_only_layers", Json::Array{0});
  const auto listed = run();
  f.config.set("mlp_only_layers", Json::Array{});
  f.config.set("decoder_sparse_step", 2);
  EXPECT_TRUE(same_bytes(listed, run()));
}

}  // namespace
}  // namespace nibble::test
