// Whole checkpoints with sums and norms, and attention and its gate, as one op, against ops one by one: the same bits in
// every profile, fewer ops. Packing and parity: fused_pack_test.cpp.
#include "nibble/parity.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

constexpr const char* kFolders[] = {"model/hf-nvfp4-ct", "mixed/hf-mixed-modelopt"};

struct Result {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  HostState state;
  std::uint64_t ops = 0;  // of a decode step
  std::map<std::string, int> kinds;
  std::vector<std::string> notes;
};

Result run(const std::string& folder, const std::string& device, Activations mode) {
  LoadOptions how = options();
  how.activations = mode;
  Model model = Model::load(data(folder), Device::parse(device), how);
  Session session = model.new_session();
  Trace trace(model, {kLogits});
  Result r;
  r.tokens = read_all(session.generate(long_prompt(77), tokens(6)));
  r.logits = trace.ops.at(kLogits).values;
  r.state = state_of(session);
  r.ops = model.stats().last_launches;
  for (const auto& [kind, by] : model.stats().kernels) ++r.kinds[kind];
  r.notes = model.info().notes;
  return r;
}

struct Param {
  const char* name;
  const char* device;
};

class FusedOps : public testing::TestWithParam<Param> {};
INSTANTIATE_TEST_SUITE_P(Profile, FusedOps,
                         testing::Values(Param{"f32", "cpu:"}, Param{"bf16", "cpu:profile=bf16,"}, Param{"sm70", "cpu:mirror=sm70,"},
                                         Param{"sm90", "cpu:mirror=sm90,"}, Param{"sm120", "cpu:mirror=sm120,"}),
                         [](const auto& tested) { return std::string(tested.param.name); });

constexpr int kLayers = 8, kAttentionLayers = 2;  // of the checkpoints

TEST_P(FusedOps, GiveTheBitsOfTheOpsOneByOne) {
  const std::string device = GetParam().device;
  for (const char* folder : kFolders) {
    for (const Activations mode : {Activations::a16, Activations::declared}) {
      const Result off = run(folder, device + "fused-add-norm=off,fused-gate=off", mode);
      EXPECT_EQ(off.kinds.count("add_rms_norm") + off.kinds.count("add_rms_norm_pack") + off.kinds.count("gated_attention"), 0u);
      const auto expect_same = [&](const Result& on, std::uint64_t fewer) {
        EXPECT_EQ(on.tokens, off.tokens) << folder;
        EXPECT_TRUE(same_bytes(on.logits, off.logits)) << folder;
        expect_same_state(on.state, off.state, folder);
        EXPECT_EQ(on.ops + fewer, off.ops) << folder;
        EXPECT_EQ(on.notes, off.notes) << "nothing stays apart";
      };
      const Result norms = run(folder, device + "fused-add-norm=on,fused-gate=off", mode);
      expect_same(norms, 2 * kLayers - 1);
      EXPECT_EQ(norms.kinds.count("add"), 1u) << "the last sum's rows are gathered";
      const Result gates = run(folder, device + "fused-add-norm=off,fused-gate=on", mode);
      expect_same(gates, kAttentionLayers);
      EXPECT_EQ(gates.kinds.count("attention") + gates.kinds.count("sigmoid_gate"), 0u);
      const Result plain = run(folder, device + "threads=2", mode);  // as they are by default
      expect_same(plain, 2 * kLayers - 1 + kAttentionLayers);
    }
  }
}

ParityOptions parity_options(Activations mode) {
  ParityOptions how;
  how.prompt = long_prompt(70);
  how.decode = 2;
  how.chunk = 64;
  how.activations = mode;
  return how;
}
std::int64_t ops_of(const ParityReport& r, const std::string& kind) {
  for (const auto& k : r.kinds) {
    if (k.kind == kind) return k.ops;
  }
  return 0;
}

TEST(FusedOpsParity, ComparesTheNormAndTheGateAndLeavesOutWhatIsFoldedIn) {
  const auto model = data(kFolders[0]);
  constexpr int kSteps = 4;  // two chunks, two rows
  for (const Activations mode : {Activations::a16, Activations::declared}) {
    const ParityOptions how = parity_options(mode);
    for (const std::string packs : {"off", "on"}) {
      const Device parts = Device::parse("cpu:fused-pack=" + packs),
                   one = Device::parse("cpu:fused-pack=" + packs + ",fused-add-norm=on,fused-gate=on");
      const ParityReport plain = compare_devices(model, parts, parts, how);
      EXPECT_GT(ops_of(plain, "add"), 0) << "ops one by one where nothing is said";
      for (const auto& [a, b] : {std::pair(&parts, &one), std::pair(&one, &parts), std::pair(&one, &one)}) {
        const ParityReport r = compare_devices(model, *a, *b, how);
        EXPECT_TRUE(r.equal()) << r.first->op;
        EXPECT_EQ(r.work.ops, plain.work.ops - kSteps * (2 * kLayers - 1 + kAttentionLayers));
        EXPECT_EQ(ops_of(r, "attention"), 0);
        EXPECT_EQ(ops_of(r, "add"), kSteps);
        const bool fused = b == &one;
        EXPECT_EQ(ops_of(r, "gated_attention"), fused ? kSteps * kAttentionLayers : 0);
        EXPECT_EQ(ops_of(r, "add_rms_norm") + ops_of(r, "add_rms_norm_pack"), fused ? kSteps * (2 * kLayers - 1) : 0);
        EXPECT_EQ(r.work.logits, plain.work.logits);
        EXPECT_EQ(r.work.state_elements, plain.work.state_elements);
      }
    }
  }
}

TEST(FusedOpsParity, DigestsAndFloat64WantTheParts) {
  for (const char* option : {"fused-add-norm", "fused-gate"}) {
    const Device on = Device::parse(std::string("cpu:") + option + "=on");
    EXPECT_NE(message_of([&] { compare_with_float64(data(kFolders[0]), on, parity_options(Activations::a16)); })
                  .find(std::string(option) + ": expected off"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace nibble::test
