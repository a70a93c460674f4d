// Goldens of an independent implementation: logits, greedy text, what routers chose and layers gave.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/moe/support.h"

namespace nibble::test {
namespace {

// As for the trained model: float32 against float32.
constexpr double kLogitBound = 3e-4, kMargin = 1e-3, kLayerBound = 2e-6;

class MoeGolden : public testing::TestWithParam<Arch> {};
INSTANTIATE_TEST_SUITE_P(All, MoeGolden, testing::Values(kMoe, kNext), arch_name);

TEST_P(MoeGolden, LogitsAndGreedyTokens) {
  const Arch& arch = GetParam();
  Model model = load(arch, options(2));
  const Golden golden = golden_of(arch);
  const Json json = read_json(std::string("archs/golden/") + arch.name + ".json");
  for (const auto& [id, prompt] : json.find("prompts")->as_object()) {
    const auto ids = golden.i32(id + ".ids");
    EXPECT_EQ(model.tokenizer().encode(prompt.find("text")->as_string()), ids) << id;
    const Result run = prefill(model, ids);
    const double worst = largest_difference(run.logits, golden.f32(id + ".logits"));
    EXPECT_LE(worst, kLogitBound) << id;
    std::printf("%s %s: logits within %.2g\n", arch.name, id.c_str(), worst);
    std::vector<double> margins;
    for (const Json& m : prompt.find("margins")->as_array()) margins.push_back(m.as_double());
    expect_greedy(model, ids, golden.i32(id + ".greedy"), margins, id == "capital" ? 0 : kMargin,
                  std::string(arch.name) + " " + id);
  }
}

TEST_P(MoeGolden, LayersAndRouters) {
  const Arch& arch = GetParam();
  Model model = load(arch, options(), Device::parse("cpu:fused-add-norm=off"));  // sums are shown
  const Golden golden = golden_of(arch);
  const std::string id = prompts_of(arch).front();
  Trace trace(model, {});
  Session session = model.new_session();
  read_all(session.generate(golden.i32(id + ".ids"), tokens(1)));
  for (int layer = 0; layer < arch.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer), key = id + ".layer" + std::to_string(layer);
    const bool full = (layer + 1) % arch.full_attention_every == 0;
    const auto near = [&](const std::string& op, const std::string& name) {
      const double error = relative_l2(trace.ops.at(at + op).values, golden.f32(key + name));
      EXPECT_LE(error, kLayerBound) << key << name;
      std::printf("%s%s: %.2g relative L2\n", key.c_str(), name.c_str(), error);
    };
    near(full ? ".self_attn.o_proj" : ".linear_attn.out_proj", ".mixer");
    near(".mlp.gate", ".router_logits");
    near(".mlp.route", ".router_weights");
    near(".mlp.combine", ".mlp");
    near(".out", ".out");
  }
}

// The checkpoint declares an input scale for each expert; they share one packed input.
TEST(MoeDeclared, RunsNearA16) {
  LoadOptions how = options();
  how.activations = Activations::declared;
  Model declared = load(kMoe, how), a16 = load(kMoe, options());
  for (const std::string& id : prompts_of(kMoe)) {
    const auto ids = golden_of(kMoe).i32(id + ".ids");
    const double off = relative_l2(prefill(declared, ids).logits, prefill(a16, ids).logits);
    std::printf("%s: declared activations, logits %.3g relative L2 from a16\n", id.c_str(), off);
    EXPECT_LE(off, 0.2) << id;
    EXPECT_GT(off, 0) << id;
  }
}

}  // namespace
}  // namespace nibble::test
