// The shipped model in mode a8: the oracle's text, logits near those of a16, and the same bits whatever the cut, the
// neighbours, the threads and the instruction set.
#include <cstdio>

#include "backends/cpu/isa.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

LoadOptions a8(int sequences = 1, int step_tokens = 1024) {
  LoadOptions how = options(sequences, step_tokens);
  how.activations = Activations::a8;
  return how;
}

class A8 : public testing::TestWithParam<const char*> {
 protected:
  Device device(const std::string& more = "") const {
    const std::string base = GetParam();
    return Device::parse(more.empty() ? base : base + (base == "cpu" ? ":" : ",") + more);
  }
};
INSTANTIATE_TEST_SUITE_P(All, A8, testing::Values("cpu", "cpu:mirror=sm90", "cpu:mirror=sm70", "cpu:mirror=sm120"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name == "cpu" ? "f32" : name.substr(name.find('=') + 1);
                         });

// The text rule of 16-bit profiles, whatever the profile: a8 loses more than they do.
TEST_P(A8, WritesTheOraclesText) {
  constexpr double kMargin = 0.15;
  Model model = load(a8(), device());
  EXPECT_EQ(model.info().activations, "a8");
  const Golden golden(data("golden/prompts.safetensors"));
  const Json json = read_json("golden/prompts.json");
  const Json* prompts = json.find("prompts") != nullptr ? json.find("prompts") : &json;
  for (const char* id : {"capital", "one_token", "chat_japan", "chat_multi", "arithmetic", "unicode", "long700"}) {
    std::vector<double> margins;
    for (const Json& m : prompts->find(id)->find("margins")->as_array()) margins.push_back(m.as_double());
    expect_greedy(model, golden.i32(std::string(id) + ".ids"), golden.i32(std::string(id) + ".greedy"), margins, kMargin,
                  std::string(GetParam()) + " a8 " + id);
  }
}

// Beside a16 of the same device: weights 1.4 percent off, inputs 2.6. Seen: at most 0.068.
TEST_P(A8, LogitsLieNearThoseOfA16) {
  for (const char* folder : {"model/hf-nvfp4-ct", "model/hf-nvfp4-modelopt", "mixed/hf-mixed-ct", "mixed/hf-fp8-block"}) {
    LoadOptions how = options();
    Model a16 = Model::load(data(folder), device(), how);
    how.activations = Activations::a8;
    Model model = Model::load(data(folder), device(), how);
    for (const char* name : {"capital", "chat_japan"}) {
      const auto ids = ids_of(name);
      const double off = relative_l2(prefill(model, ids).logits, prefill(a16, ids).logits);
      std::printf("%s, %s %s: a8 logits %.3g relative L2 from a16\n", GetParam(), folder, name, off);
      EXPECT_LE(off, 0.1) << folder << " " << name;
      EXPECT_GT(off, 0) << folder << " " << name;
    }
  }
}

TEST_P(A8, PrefillCutAtMultiplesOf64GivesTheSameBits) {
  const auto all = ids_of("long700");
  const auto prompt = std::span(all).first(330);
  Model whole_model = load(a8(), device());
  const Result whole = prefill(whole_model, prompt);
  Model model = load(a8(1, 128), device());
  const Result cut = prefill(model, prompt);
  EXPECT_TRUE(same_bytes(cut.logits, whole.logits));
  expect_same_state(cut.state, whole.state, "steps of 128");
}

TEST_P(A8, ThreadsAndInstructionSetsGiveTheSameBits) {
  const auto all = ids_of("long700");
  const auto prompt = std::span(all).first(70);
  Model first = load(a8(), device("threads=1"));
  const Result want = prefill(first, prompt, 4);
  std::vector<std::string> devices = {"threads=2"};
  for (const cpu::Isa isa : cpu::available_isas()) devices.push_back(std::string("kernels=") + cpu::isa_name(isa));
  for (const std::string& more : devices) {
    Model model = load(a8(), device(more));
    const Result got = prefill(model, prompt, 4);
    EXPECT_EQ(got.tokens, want.tokens) << more;
    EXPECT_TRUE(same_bytes(got.logits, want.logits)) << more;
    expect_same_state(got.state, want.state, more);
  }
}

// A row's neighbours are other sequences: alone and beside them it has the same bits.
TEST_P(A8, ASequenceDoesNotFeelItsNeighbours) {
  Model alone = load(a8(), device()), together = load(a8(3), device());
  const auto a = ids_of("capital"), b = ids_of("chat_japan"), c = ids_of("arithmetic");
  const auto want = read_all(alone.new_session().generate(b, tokens(8)));
  Session first = together.new_session(), second = together.new_session(), third = together.new_session();
  TokenStream x = first.generate(a, tokens(8)), y = second.generate(b, tokens(8)), z = third.generate(c, tokens(8));
  read_all(std::move(x));
  EXPECT_EQ(read_all(std::move(y)), want);
  read_all(std::move(z));
  Session lone = alone.new_session();
  read_all(lone.generate(b, tokens(8)));
  expect_same_state(state_of(second), state_of(lone), GetParam());
}

TEST_P(A8, OnlySm90HasTheFp8Unit) {
  Model model = load(a8(), device());
  const StepStats stats = model.stats();
  int on_unit = 0, quantised = 0;
  for (const auto& [op, how] : stats.kernels) {
    on_unit += how.find("FP8 fused sums") != std::string::npos;
    quantised += op == "linear fp8_e4m3 x fp8_token";
    EXPECT_EQ(op.find("nvfp4"), std::string::npos) << op;
  }
  EXPECT_EQ(on_unit, std::string(GetParam()) == "cpu:mirror=sm90" ? 1 : 0);
  EXPECT_EQ(quantised, 1);
}

}  // namespace
}  // namespace nibble::test
