// The shipped model on the CPU's mirror of sm90: the oracle's text, logits near profile f32, bf16 where
// the profile says so, and the same bits whatever the cut, the threads and the instruction set.
#include <cstdio>

#include "backends/cpu/isa.h"
#include "core/numerics/codecs.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

const Device kMirror = Device::parse("cpu:mirror=sm90");

bool is_bf16(float v) { return (num::bit_cast<std::uint32_t>(v) & 0xFFFFu) == 0; }
bool all_bf16(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), is_bf16);
}

struct Result {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  HostState state;
};

Result prefill(Model& model, std::span<const std::int32_t> prompt, int answer = 1) {
  Session session = model.new_session();
  Trace trace(model, {kLogits});
  Result run;
  run.tokens = read_all(session.generate(prompt, tokens(answer)));
  run.logits = trace.ops.at(kLogits).values;
  run.state = state_of(session);
  return run;
}

std::vector<std::int32_t> ids_of(const std::string& prompt) {
  return Golden(data("golden/prompts.safetensors")).i32(prompt + ".ids");
}

TEST(Mirror, WritesTheOraclesText) {
  const Json prompts = read_json("golden/prompts.json");
  const Json* all = prompts.find("prompts") != nullptr ? prompts.find("prompts") : &prompts;
  const Json* capital = all->find("capital");
  Model model = load(options(), kMirror);
  EXPECT_EQ(model.info().profile, "sm90");
  EXPECT_NE(model.info().kernels.find("mirror"), std::string::npos);
  const std::string text = capital->find("text")->as_string();
  EXPECT_EQ(text, "The capital of France is");
  Session session = model.new_session();
  std::string answer;
  for (const Piece& p : session.generate(model.tokenizer().encode(text), tokens(32))) answer += p.text;
  EXPECT_EQ(answer, capital->find("greedy_text")->as_string());
  EXPECT_EQ(answer.substr(0, 42), " Paris.\nThe capital of Germany is Berlin.\n");
}

TEST(Mirror, LogitsLieNearThoseOfF32) {
  Model f32 = load(options()), mirror = load(options(), kMirror);
  EXPECT_EQ(f32.info().profile, "f32");
  for (const char* name : {"capital", "chat_japan", "arithmetic", "long700"}) {
    const auto ids = ids_of(name);
    const Result a = prefill(mirror, ids), b = prefill(f32, ids);
    const double off = relative_l2(a.logits, b.logits);
    std::printf("%s: logits %.3g relative L2 from f32\n", name, off);
    EXPECT_LE(off, 2e-2) << name;
    EXPECT_GT(off, 0) << name;
  }
}

TEST(Mirror, BuffersHoldBf16) {
  Model model = load(options(), kMirror);
  const auto prompt = ids_of("long700");
  Trace trace(model, {});
  Session session = model.new_session();
  read_all(session.generate(std::span(prompt).first(100), tokens(3)));
  // Float32: the residual stream and what is added to it, gates, logits. Everything else is rounded.
  const auto ends = [](const std::string& s, const std::string& tail) {
    return s.size() >= tail.size() && s.compare(s.size() - tail.size(), tail.size(), tail) == 0;
  };
  int rounded = 0, wide = 0;
  for (const auto& [name, rows] : trace.ops) {
    if (name == "sample") continue;
    const bool bf16 = all_bf16(rows.values);
    (bf16 ? rounded : wide) += 1;
    for (const char* must : {"norm", "qkv_proj", "gate_proj", "up_proj", "q_proj", "k_proj", "v_proj",
                             ".conv1d", ".delta_rule", ".rope", ".attention", ".in_proj_qkv", ".in_proj_z"}) {
      if (ends(name, must)) EXPECT_TRUE(bf16) << name;
    }
    for (const char* must : {"down_proj", "o_proj", "out_proj", ".gates", ".in_proj_a", ".in_proj_b",
                             "lm_head"}) {
      if (ends(name, must)) EXPECT_FALSE(bf16) << name;
    }
  }
  EXPECT_GE(rounded, 50);
  EXPECT_GE(wide, 30);
  const HostState state = state_of(session);
  ASSERT_FALSE(state.kv.empty());
  ASSERT_FALSE(state.delta.empty());
  for (const auto& layer : state.kv) {
    EXPECT_TRUE(all_bf16(layer.k));
    EXPECT_TRUE(all_bf16(layer.v));
  }
  for (const auto& layer : state.delta) {
    EXPECT_TRUE(all_bf16(layer.conv));
    EXPECT_FALSE(all_bf16(layer.s));
  }
}

TEST(Mirror, PrefillCutAtMultiplesOf64GivesTheSameBits) {
  const auto all = ids_of("long700");
  const auto prompt = std::span(all).first(330);
  Model whole_model = load(options(), kMirror);
  const Result whole = prefill(whole_model, prompt);
  for (const int step_tokens : {128, 192, 256}) {
    Model model = load(options(1, step_tokens), kMirror);
    const Result cut = prefill(model, prompt);
    EXPECT_TRUE(same_bytes(cut.logits, whole.logits)) << "steps of " << step_tokens;
    expect_same_state(cut.state, whole.state, "steps of " + std::to_string(step_tokens));
  }
}

TEST(Mirror, ThreadsAndInstructionSetsGiveTheSameBits) {
  const auto all = ids_of("long700");
  const auto prompt = std::span(all).first(70);
  Model first = load(options(), Device::parse("cpu:mirror=sm90,threads=1"));
  const Result want = prefill(first, prompt, 4);
  std::vector<std::string> devices = {"cpu:mirror=sm90,threads=2", "cpu:mirror=sm90,threads=7"};
  for (const cpu::Isa isa : cpu::available_isas()) {
    devices.push_back(std::string("cpu:mirror=sm90,kernels=") + cpu::isa_name(isa));
  }
  for (const std::string& device : devices) {
    Model model = load(options(), Device::parse(device));
    const Result got = prefill(model, prompt, 4);
    EXPECT_EQ(got.tokens, want.tokens) << device;
    EXPECT_TRUE(same_bytes(got.logits, want.logits)) << device;
    expect_same_state(got.state, want.state, device);
  }
}

TEST(Mirror, DeclaredActivationsRun) {
  LoadOptions how = options();
  how.activations = Activations::declared;
  for (const char* folder : {"model/hf-nvfp4-ct", "mixed/hf-mixed-ct", "mixed/hf-fp8-block"}) {
    Model model = Model::load(data(folder), kMirror, how), f32 = Model::load(data(folder), Device::cpu(), how);
    const auto ids = ids_of("capital");
    const double off = relative_l2(prefill(model, ids).logits, prefill(f32, ids).logits);
    std::printf("%s: declared activations, logits %.3g relative L2 from f32\n", folder, off);
    EXPECT_LE(off, 0.2) << folder;
  }
}

std::string complaint(const Device& on) {
  try {
    load(options(), on);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    return e.what();
  }
  return "";
}

TEST(Mirror, OtherProfilesAreRefused) {
  const std::string what = complaint(Device::parse("cpu:mirror=sm70"));
  EXPECT_NE(what.find("sm70"), std::string::npos) << what;
  EXPECT_NE(what.find("sm90"), std::string::npos) << what;
}

}  // namespace
}  // namespace nibble::test
