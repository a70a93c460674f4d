// Cuts of a prompt, neighbours and profiles of models with experts.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/moe/support.h"

namespace nibble::test {
namespace {

class MoeInvariance : public testing::TestWithParam<std::tuple<Arch, const char*>> {
 protected:
  Arch arch() const { return std::get<0>(GetParam()); }
  Device device() const { return Device::parse(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(All, MoeInvariance,
                         testing::Combine(testing::Values(kMoe, kNext),
                                          testing::Values("cpu", "cpu:mirror=sm70", "cpu:mirror=sm90",
                                                          "cpu:mirror=sm120")),
                         [](const auto& tested) {
                           const std::string on = std::get<1>(tested.param);
                           return std::string(std::get<0>(tested.param).layers == 4 ? "qwen3_5_moe_" : "qwen3_next_") +
                                  (on == "cpu" ? on : on.substr(on.find('=') + 1));
                         });

TEST_P(MoeInvariance, PromptsCutAtMultiplesOf64GiveTheSameBits) {
  const auto prompt = long_ids(arch());
  ASSERT_GT(prompt.size(), 192u);
  Model whole_model = load(arch(), options(), device());
  const Result whole = prefill(whole_model, prompt, 4);
  Model cut_model = load(arch(), options(1, 128), device());
  const Result cut = prefill(cut_model, prompt, 4);
  EXPECT_EQ(cut.tokens, whole.tokens);
  EXPECT_TRUE(same_bytes(cut.logits, whole.logits));
  expect_same_state(cut.state, whole.state, "steps of 128");
}

TEST_P(MoeInvariance, ARowInABatchIsTheRowAlone) {
  const Golden golden = golden_of(arch());
  Model alone = load(arch(), options(), device()), together = load(arch(), options(4), device());
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& id : prompts_of(arch())) prompts.push_back(golden.i32(id + ".ids"));
  std::vector<Session> sessions;
  std::vector<TokenStream> streams;
  for (const auto& p : prompts) {
    sessions.push_back(together.new_session());
    streams.push_back(sessions.back().generate(p, tokens(8)));
  }
  std::vector<std::vector<std::int32_t>> answers(prompts.size());
  for (int turn = 0; turn < 8; ++turn) {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      Piece piece;
      if (streams[i].next(piece) && piece.token >= 0) answers[i].push_back(piece.token);
    }
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const auto rest = read_all(std::move(streams[i]));
    answers[i].insert(answers[i].end(), rest.begin(), rest.end());
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Result want = prefill(alone, prompts[i], 8);
    EXPECT_EQ(answers[i], want.tokens) << i;
    expect_same_state(state_of(sessions[i]), want.state, "sequence " + std::to_string(i));
  }
}

TEST_P(MoeInvariance, LogitsLieNearTheOracles) {
  const Golden golden = golden_of(arch());
  Model model = load(arch(), options(), device());
  const bool f32 = device().mirror.empty(), f16 = device().mirror == "sm70";
  for (const std::string& id : prompts_of(arch())) {
    const Result run = prefill(model, golden.i32(id + ".ids"));
    const double off = relative_l2(run.logits, golden.f32(id + ".logits"));
    std::printf("%s on %s, %s: logits %.3g relative L2\n", arch().name, std::get<1>(GetParam()), id.c_str(), off);
    EXPECT_LE(off, f32 ? 1e-5 : f16 ? 4e-3 : 2e-2) << id;
  }
}

TEST_P(MoeInvariance, ThreadsGiveTheSameBits) {
  const auto prompt = long_ids(arch());
  Device one = device(), seven = device();
  one.threads = 1;
  seven.threads = 7;
  Model a = load(arch(), options(), one), b = load(arch(), options(), seven);
  const Result x = prefill(a, prompt, 3), y = prefill(b, prompt, 3);
  EXPECT_TRUE(same_bytes(x.logits, y.logits));
  expect_same_state(x.state, y.state, "7 threads");
}

// Inputs of experts that are packed behind the norm and behind SwiGLU, as cards do it.
TEST(MoeFusedPacks, ChangeNoBit) {
  const auto prompt = long_ids(kMoe);
  LoadOptions how = options();
  how.activations = Activations::declared;
  for (const std::string mirror : {"cpu:mirror=sm90", "cpu:mirror=sm120"}) {
    Model apart = load(kMoe, how, Device::parse(mirror + ",fused-pack=off"));
    Model fused = load(kMoe, how, Device::parse(mirror + ",fused-pack=on"));
    EXPECT_LT(fused.info().programs.front().ops, apart.info().programs.front().ops);
    const Result a = prefill(apart, prompt, 4), b = prefill(fused, prompt, 4);
    EXPECT_TRUE(same_bytes(a.logits, b.logits)) << mirror;
    expect_same_state(a.state, b.state, mirror);
  }
}

}  // namespace
}  // namespace nibble::test
