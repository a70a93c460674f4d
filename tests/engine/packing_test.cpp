// Whole checkpoints whose weights stay where their files are mapped, against packed ones: the same bits in every
// profile, on every instruction set; small arenas; what cannot stay is packed, and what would all be is refused.
#include <cstdio>

#include "backends/cpu/bf16_unit.h"
#include "nibble/parity.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

constexpr const char* kFolders[] = {"model/hf-nvfp4-ct", "model/hf-nvfp4-modelopt", "mixed/hf-mixed-ct",
                                    "mixed/hf-mixed-modelopt", "mixed/hf-fp8-block"};
constexpr std::size_t kShipped = 2;

LoadOptions with(Activations mode) {
  LoadOptions how = options();
  how.activations = mode;
  return how;
}

Result run(const std::string& folder, const std::string& device, Activations mode, int answer = 4) {
  Model model = Model::load(data(folder), Device::parse(device), with(mode));
  return prefill(model, long_prompt(77), answer);
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_TRUE(same_bytes(a.logits, b.logits)) << what;
  expect_same_state(a.state, b.state, what);
}

class PackingOff : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Profile, PackingOff, testing::Values("", "profile=bf16,", "mirror=sm70,", "mirror=sm90,", "mirror=sm120,"),
                         [](const auto& tested) {
                           const std::string text = tested.param;
                           return text.empty() ? std::string("f32") : text.substr(text.find('=') + 1, text.size() - text.find('=') - 2);
                         });

TEST_P(PackingOff, GivesTheBitsOfPackedWeights) {
  const std::string profile = GetParam();
  for (const Activations mode : {Activations::a16, Activations::declared}) {
    for (std::size_t i = 0; i < std::size(kFolders); ++i) {
      const Result packed = run(kFolders[i], "cpu:" + profile + "threads=2", mode);
      for (const cpu::Kernels& kernels : cpu::available_kernels(profile == "profile=bf16,")) {
        // Portable 16-bit products are slow: the shipped checkpoints with what they declare are enough there.
        if (kernels.isa == cpu::Isa::portable && !profile.empty() && (i >= kShipped || mode == Activations::a16)) continue;
        for (const char* threads : {"1", "2"}) {
          if (*threads == '1' && i >= kShipped) continue;
          const std::string device =
              "cpu:" + profile + "threads=" + threads + ",packing=off,kernels=" + cpu::kernels_name(kernels);
          expect_same(packed, run(kFolders[i], device, mode), std::string(kFolders[i]) + " " + device);
        }
      }
    }
  }
}

TEST(Packing, OffKeepsScalesInTheArenaOnly) {
  for (const char* folder : kFolders) {
    const ModelInfo on = Model::inspect(data(folder), nullptr, Device::parse("cpu:packing=on")),
                    off = Model::inspect(data(folder), nullptr, Device::parse("cpu:packing=off"));
    EXPECT_TRUE(on.packing);
    EXPECT_FALSE(off.packing);
    EXPECT_EQ(on.mapped_bytes, 0u);
    EXPECT_LT(off.weight_bytes, on.weight_bytes / 20) << folder;
    EXPECT_GT(off.mapped_bytes, on.weight_bytes * 8 / 10) << folder;
    EXPECT_EQ(off.total_bytes() - off.weight_bytes, on.total_bytes() - on.weight_bytes);
    std::printf("%s: %llu bytes packed; off: %llu packed, %llu mapped\n", folder,
                static_cast<unsigned long long>(on.weight_bytes), static_cast<unsigned long long>(off.weight_bytes),
                static_cast<unsigned long long>(off.mapped_bytes));
  }
}

TEST(Packing, OffOutlivesTheSourceAndSaysWhatServes) {
  Model model = Model::load(data(kFolders[0]), Device::parse("cpu:packing=off"), options());
  EXPECT_FALSE(model.info().packing);
  prefill(model, long_prompt(5));
  bool mapped = false;
  for (const auto& [kind, by] : model.stats().kernels) {
    if (kind == "linear nvfp4") mapped = by.find("rows of the mapped file") != std::string::npos;
  }
  EXPECT_TRUE(mapped);
}

// A mirror's matrix units take f16 with exponents: bf16 weights are converted, so packed; the others stay.
TEST(Packing, OffPacksWhatAProfileConverts) {
  const ModelInfo f32 = Model::inspect(data(kFolders[0]), nullptr, Device::parse("cpu:packing=off")),
                  sm70 = Model::inspect(data(kFolders[0]), nullptr, Device::parse("cpu:mirror=sm70,packing=off"));
  EXPECT_GT(sm70.weight_bytes, f32.weight_bytes);
  EXPECT_GT(sm70.mapped_bytes, 0u);
  EXPECT_LT(sm70.mapped_bytes, f32.mapped_bytes);
}

TEST(Packing, OffPacksWhatA8ReEncodes) {
  const std::string profile = "cpu:mirror=sm90";
  const Result packed = run(kFolders[0], profile, Activations::a8),
               off = run(kFolders[0], profile + ",packing=off", Activations::a8);
  expect_same(packed, off, "a8");
  const ModelInfo info =
      Model::inspect(data(kFolders[0]), nullptr, Device::parse(profile + ",packing=off"), with(Activations::a8));
  EXPECT_GT(info.mapped_bytes, 0u);
  EXPECT_GT(info.weight_bytes, info.mapped_bytes / 2);
}

TEST(Packing, OffIsRefusedWhereNothingLiesInAFile) {
  const std::string said = message_of([] { Model::synthetic({"tiny"}, Device::parse("cpu:packing=off")); });
  EXPECT_NE(said.find("packing: expected on"), std::string::npos) << said;
  EXPECT_NE(said.find("found \"off\""), std::string::npos) << said;
}

TEST(Packing, ParityComparesBothWays) {
  ParityOptions how;
  how.prompt = long_prompt(70);
  how.decode = 2;
  const Device on = Device::cpu(), off = Device::parse("cpu:packing=off");
  EXPECT_TRUE(compare_devices(data(kFolders[0]), on, off, how).equal());
  EXPECT_TRUE(compare_devices(data(kFolders[0]), off, on, how).equal());
}

}  // namespace
}  // namespace nibble::test
