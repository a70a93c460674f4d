// Whole checkpoints with norms and SwiGLU that pack what they make, against ops one by one: the same bits
// in every profile, fewer ops; parity sees ops one by one unless it is asked for the fused ones.
#include <cstdio>

#include "nibble/parity.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

constexpr const char* kFolders[] = {"model/hf-nvfp4-ct", "model/hf-nvfp4-modelopt", "mixed/hf-mixed-ct",
                                    "mixed/hf-mixed-modelopt", "mixed/hf-fp8-block"};

LoadOptions declared(Activations mode = Activations::declared) {
  LoadOptions how = options();
  how.activations = mode;
  return how;
}

struct Result {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  HostState state;
  std::uint64_t ops = 0;  // of a decode step
  std::map<std::string, int> kinds;
};

Result run(const std::string& folder, const Device& on, const LoadOptions& how, std::size_t prompt) {
  Model model = Model::load(data(folder), on, how);
  Session session = model.new_session();
  Trace trace(model, {kLogits});
  Result r;
  r.tokens = read_all(session.generate(long_prompt(prompt), tokens(6)));
  r.logits = trace.ops.at(kLogits).values;
  r.state = state_of(session);
  r.ops = model.stats().last_launches;
  for (const auto& [kind, by] : model.stats().kernels) ++r.kinds[kind];
  return r;
}

class FusedPack : public testing::TestWithParam<const char*> {
 protected:
  Device device(const char* fused) const {
    return Device::parse(std::string("cpu:") + GetParam() + "fused-pack=" + fused);
  }
};
INSTANTIATE_TEST_SUITE_P(Profile, FusedPack,
                         testing::Values("", "mirror=sm70,", "mirror=sm90,", "mirror=sm120,"),
                         [](const auto& tested) {
                           const std::string text = tested.param;
                           return text.empty() ? std::string("f32") : text.substr(7, text.size() - 8);
                         });

TEST_P(FusedPack, GivesTheBitsOfTheOpsOneByOne) {
  for (const char* folder : kFolders) {
    const Result on = run(folder, device("on"), declared(), 77), off = run(folder, device("off"), declared(), 77);
    EXPECT_EQ(on.tokens, off.tokens) << folder;
    EXPECT_TRUE(same_bytes(on.logits, off.logits)) << folder;
    expect_same_state(on.state, off.state, folder);
    EXPECT_LT(on.ops, off.ops) << folder;
    EXPECT_EQ(off.kinds.count("swiglu_pack") + off.kinds.count("rms_norm_pack"), 0u);
    std::printf("%s %s: %llu ops of a decode step one by one, %llu fused\n", folder, device("on").text().c_str(),
                static_cast<unsigned long long>(off.ops), static_cast<unsigned long long>(on.ops));
  }
}

TEST_P(FusedPack, ChangesNothingWhereNothingIsQuantised) {
  const Result on = run(kFolders[0], device("on"), declared(Activations::a16), 20),
               off = run(kFolders[0], device("off"), declared(Activations::a16), 20);
  EXPECT_EQ(on.ops, off.ops);
  EXPECT_EQ(on.kinds, off.kinds);
  EXPECT_TRUE(same_bytes(on.logits, off.logits));
}

TEST(FusedPacks, AreTheCpusDefault) {
  const Result plain = run(kFolders[0], Device::cpu(), declared(), 20),
               on = run(kFolders[0], Device::parse("cpu:fused-pack=on"), declared(), 20);
  EXPECT_EQ(plain.kinds, on.kinds);
  for (const char* kind : {"rms_norm_pack", "gated_rms_norm_pack", "swiglu_pack"}) {
    EXPECT_EQ(plain.kinds.count(kind), 1u) << kind;
  }
  EXPECT_EQ(plain.kinds.count("quantize"), 1u) << "attention's output is packed by itself";
}

// q, k, v and z, gate and up declare the same input and share one packed copy.
TEST(FusedPacks, ProjectionsShareOnePackedInput) {
  Model model = Model::load(data(kFolders[0]), Device::cpu(), declared());
  const auto& state = model.info();
  Trace trace(model, {});
  Session session = model.new_session();
  read_all(session.generate(long_prompt(5), tokens(1)));
  std::int64_t inputs = 0;
  for (const auto& [name, rows] : trace.ops) inputs += name.size() > 6 && name.substr(name.size() - 6) == ".input";
  // What is left are the inputs of o_proj, behind attention's gate.
  EXPECT_EQ(inputs, state.attention.layers);
}

TEST(FusedPacks, ParityIsOpByOpUnlessAsked) {
  ParityOptions how;
  how.prompt = long_prompt(70);
  how.decode = 2;
  how.activations = Activations::declared;
  const auto model = data(kFolders[0]);
  const Device plain = Device::cpu(), on = Device::parse("cpu:fused-pack=on");
  const ParityReport each = compare_devices(model, plain, plain, how), fused = compare_devices(model, on, on, how);
  EXPECT_TRUE(each.equal());
  EXPECT_TRUE(fused.equal());
  const auto knows = [](const ParityReport& r, const std::string& kind) {
    return std::any_of(r.kinds.begin(), r.kinds.end(), [&](const auto& k) { return k.kind == kind; });
  };
  EXPECT_FALSE(knows(each, "swiglu_pack"));
  EXPECT_TRUE(knows(each, "swiglu"));
  EXPECT_TRUE(knows(fused, "swiglu_pack"));
  EXPECT_FALSE(knows(fused, "swiglu"));
  EXPECT_NE(message_of([&] {
              compare_devices(model, plain, on, how);
            }).find("fused-pack: expected the same on A and B"),
            std::string::npos);
  EXPECT_NE(message_of([&] { compare_with_float64(model, on, how); }).find("fused-pack: expected off"),
            std::string::npos);
  EXPECT_EQ(compare_with_float64(model, plain, how).work.ops, each.work.ops);
}

// Norms lose a buffer, but where the MLP needs most, a fused SwiGLU needs gate, up and its codes at once;
// by itself its y lies over the gate, and up is gone when the codes come.
TEST(FusedPacks, ScratchGrowsByTheCodesOfOneMlpAtMost) {
  for (const char* folder : kFolders) {
    const auto bytes = [&](const char* device) {
      return Model::load(data(folder), Device::parse(device), declared()).info().scratch_bytes;
    };
    const std::uint64_t off = bytes("cpu:fused-pack=off"), on = bytes("cpu:fused-pack=on");
    std::printf("%s: scratch %llu bytes one by one, %llu fused\n", folder, static_cast<unsigned long long>(off),
                static_cast<unsigned long long>(on));
    constexpr std::uint64_t kInner = 768, kRows = 1024;
    EXPECT_LE(on, off + kRows * (kInner + kInner / 16)) << folder;
  }
}

}  // namespace
}  // namespace nibble::test
