// The mixture layer over a checkpoint: what it binds and what it describes.
#include "core/layers/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/synthetic.h"
#include "models/registry.h"
#include "tests/moe/support.h"

namespace nibble::test {
namespace {

std::unique_ptr<Decoder> make(const JsonView& config, const Weights& w) {
  for (const ModelEntry& entry : model_registry()) {
    if (config.string("model_type") == entry.model_type) return entry.make(config, w);
  }
  throw std::runtime_error("no such model");
}

TEST(MixtureLayer, BindsEveryTensorOnce) {
  for (const Arch& arch : {kMoe, kNext}) {
    const Json config = read_json(folder_of(arch) + "/config.json");
    const Weights w = Weights::root(std::make_shared<Checkpoint>(data(folder_of(arch))));
    const auto model = make(JsonView(config, "config.json"), w);
    EXPECT_TRUE(w.report().twice.empty()) << arch.name;
    EXPECT_TRUE(w.report().unbound.empty()) << arch.name;
    EXPECT_EQ(model->info().layers, arch.layers);
  }
  for (const ModelPreset& preset : model_presets()) {
    if (!std::string_view(preset.name).starts_with("tiny-")) continue;
    const Json config = Json::parse(preset.config, preset.name);
    const Weights w = Weights::root(std::make_shared<SyntheticSource>(1));
    make(JsonView(config, preset.name), w);
    EXPECT_TRUE(w.report().twice.empty()) << preset.name;
  }
}

// Experts declare input scales of their own; gate and up of all of them read one packed input, whose scale
// is the largest.
TEST(MixtureLayer, SharesTheLargestInputScale) {
  const Json config = read_json(folder_of(kMoe) + "/config.json");
  const Weights w = Weights::root(std::make_shared<Checkpoint>(data(folder_of(kMoe))),
                                  QuantConfig::read(JsonView(config, "config.json")));
  const Weights mlp = w / "model.layers.1.mlp";
  const MixtureLayer layer(mlp, {128, 64, 8, 2, true, 64});
  const auto largest = [&](std::initializer_list<const char*> names, bool expect_differences) {
    std::vector<float> scales;
    for (int e = 0; e < 8; ++e) {
      for (const char* name : names) {
        const Weight one = (mlp / "experts" / e / name).matrix(name[0] == 'd' ? 128 : 64, name[0] == 'd' ? 64 : 128);
        scales.push_back(one.activation.scale);
      }
    }
    EXPECT_EQ(expect_differences, *std::min_element(scales.begin(), scales.end()) < scales[0] ||
                                      *std::max_element(scales.begin(), scales.end()) > scales[0]);
    return *std::max_element(scales.begin(), scales.end());
  };
  const float in = largest({"gate_proj", "up_proj"}, true), middle = largest({"down_proj"}, true);

  Tracer tracer({.activations = Activations::declared, .operand = DType::f32, .max_positions = 64});
  Step step(tracer, {ProgramClass::Kind::decode, 4, 4});
  const EmbeddingLayer table(w / "model.embed_tokens", 512, 128);
  const Program program = step.finish(layer(step, table(step)));
  int grouped = 0, packed = 0;
  for (const Op& op : program.ops) {
    if (const auto* g = std::get_if<GroupedLinear>(&op.args)) {
      const bool down = op.name.ends_with("down_proj");
      EXPECT_EQ(g->x_format.kind, ActivationFormat::Kind::nvfp4_static);
      EXPECT_EQ(g->x_format.scale, down ? middle : in) << op.name;
      ++grouped;
    }
    packed += std::holds_alternative<Quantize>(op.args) && op.name.find(".experts.") != std::string::npos;
  }
  EXPECT_EQ(grouped, 3);
  EXPECT_EQ(packed, 2);  // one for gate and up, one for down
}

}  // namespace
}  // namespace nibble::test
