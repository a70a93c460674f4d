// Linear of the CPU's mirror against digests of what a card computed for the same cases
// (tests/data/digests/ops.linear.*). All of them; with sanitizers those of up to kMostProducts products.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "backends/cpu/ops/linear_fused.h"
#include "tests/cases/linear_digests.h"
#include "tests/support/buffers.h"
#include "tests/support/sanitized.h"

namespace nibble::test {
namespace {

using cuda::ArchPath;

constexpr std::int64_t kMostProducts = std::int64_t{1} << (kSanitized ? 22 : 40);

DigestFile file_of(const LinearProfile& p) {
  return DigestFile(std::filesystem::path(NIBBLE_TEST_DATA) / "digests" / p.file());
}

// What the profile's buffers hold, as the CPU's do.
std::vector<float> widened(const LinearInput& x, ArchPath path) {
  std::vector<float> wide;
  const std::size_t cols = x.values.size() / static_cast<std::size_t>(x.rows);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    wide.push_back(path == ArchPath::sm70 ? std::ldexp(num::f16_to_float(x.values[i]), x.exponents[i / cols])
                                          : num::bf16_to_float(x.values[i]));
  }
  return wide;
}

std::vector<float> on_cpu(const LinearCase& l, const LinearProfile& p) {
  const cpu::Profile profile = cpu::profile_from_names("", p.name);
  const cpu::Isa isa = cpu::available_isas().front();
  cpu::Parallel one(1);
  const OwnedWeight w = weight_of(l);
  const Aligned arena(cpu::packed_bytes(w.weight, cpu::weight_operand(profile)));
  const cpu::PackedWeight packed =
      cpu::pack(w.weight, arena.data, one, cpu::nibble_order(isa), cpu::weight_operand(profile));
  const Case& s = l.sizes;
  const LinearInput x = input_of(l, p.path);
  const std::vector<float> wide = widened(x, p.path);
  const Aligned workspace(static_cast<std::uint64_t>(cpu::linear_fused_workspace_bytes(s.t, s.k)));
  std::vector<float> y(static_cast<std::size_t>(s.t * s.n), std::numeric_limits<float>::quiet_NaN());
  cpu::LinearArgs a;
  a.weight = &packed;
  a.rows = s.t;
  a.format = format_of(l.of.kind);
  a.x = wide.data();
  a.x_stride = l.of.kind == Kind::nvfp4_static ? s.k / 2 : s.k;
  a.x_exponents = x.exponents.data();
  a.codes = x.codes.data();
  a.scales = l.of.kind == Kind::nvfp4_static ? static_cast<const void*>(x.byte_scales.data()) : x.scales.data();
  a.scale_stride = l.of.kind == Kind::nvfp4_static  ? s.k / 16
                   : l.of.kind == Kind::fp8_token ? 1
                                                  : (s.k + 127) / 128;
  a.y = y.data();
  a.y_stride = s.n;
  a.workspace = workspace.data;
  cpu::linear_fused(profile, isa, one, a);
  if (s.bf16_output) cpu::round_bf16(isa, one, s.t, s.n, {y.data(), s.n});
  return y;
}

std::uint64_t digest_of(const std::vector<float>& y) {
  OpDigest digest;
  digest.add(y);
  return digest.value();
}

struct Tested {
  LinearProfile profile;
  Combination of;
};
std::vector<Tested> all_tested() {
  std::vector<Tested> all;
  for (const LinearProfile& p : kLinearProfiles) {
    for (const Combination& c : p.table()) all.push_back({p, c});
  }
  return all;
}

class LinearDigests : public testing::TestWithParam<Tested> {};

TEST_P(LinearDigests, MirrorReproducesTheCard) {
  const LinearProfile& profile = GetParam().profile;
  const DigestFile file = file_of(profile);
  int computed = 0;
  each_linear_case(profile.path, GetParam().of, [&](const LinearCase& l) {
    if (l.products() > kMostProducts) return;
    ++computed;
    EXPECT_EQ(file.fault(l.key(), digest_of(on_cpu(l, profile))), "");
  });
  RecordProperty("cases", computed);
  EXPECT_GE(computed, kSanitized ? 40 : 66);
}

INSTANTIATE_TEST_SUITE_P(All, LinearDigests, testing::ValuesIn(all_tested()), [](const auto& tested) {
  return std::string(tested.param.profile.name) + "_" + combination_name(tested.param.of);
});

TEST(LinearDigestFiles, HaveEveryCaseAndNoOther) {
  for (const LinearProfile& p : kLinearProfiles) {
    std::vector<std::string> table;
    for (const Combination& c : p.table()) {
      each_linear_case(p.path, c, [&](const LinearCase& l) { table.push_back(l.key()); });
    }
    for (const std::string& fault : file_of(p).faults(table)) ADD_FAILURE() << fault;
  }
}

// A single bit of a single output.
TEST(LinearDigestFiles, AFlippedBitIsFound) {
  for (const LinearProfile& p : kLinearProfiles) {
    const DigestFile file = file_of(p);
    const LinearCase l{p.table()[0], cases_of(p.table()[0])[0], 0};
    std::vector<float> y = on_cpu(l, p);
    ASSERT_EQ(file.fault(l.key(), digest_of(y)), "");
    for (float& v : y) {
      const float kept = v;
      v = num::bit_cast<float>(num::bit_cast<std::uint32_t>(v) ^ 1u << 16);
      if (kept != kept) continue;
      ASSERT_NE(file.fault(l.key(), digest_of(y)).find("\"" + l.key() + "\": the card computed"), std::string::npos);
      v = kept;
    }
  }
}

}  // namespace
}  // namespace nibble::test
