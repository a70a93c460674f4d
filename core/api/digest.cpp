// digest.cpp: what a device computed, in a few numbers that a file can keep.
#include <cstdio>

#include "core/api/probe.h"
#include "core/numerics/scalar.h"
#include "nibble/parity.h"

namespace nibble {
namespace {

// FNV-1a over the 32-bit patterns of values, all NaN as one.
class Hash {
 public:
  void add(std::span<const float> values) {
    for (const float v : values) {
      const std::uint32_t bits = v == v ? num::bit_cast<std::uint32_t>(v) : 0x7FFFFFFFu;
      for (int shift = 0; shift < 32; shift += 8) {
        hash_ = (hash_ ^ (bits >> shift & 255u)) * 0x100000001B3ull;
      }
    }
  }
  std::string text() const {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash_));
    return digits;
  }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325ull;
};

struct Sum {
  ParityDigest::Kind row;
  Hash hash;
};

Sum& of_kind(std::vector<Sum>& sums, const std::string& kind) {
  for (Sum& s : sums) {
    if (s.row.kind == kind) return s;
  }
  sums.push_back({{kind, 0, 0, {}}, {}});
  return sums.back();
}

}  // namespace

ParityDigest digest_device(const std::filesystem::path& model, const Device& on,
                           const ParityOptions& how) {
  expect_ops_one_by_one(on, "a digest has ops one by one");
  ParityDigest digest;
  Probe probe(Probe::draft(model, on, how), how);
  digest.device = describe_device(on, probe.device());
  std::vector<Sum> sums;
  const auto add = [&](const std::string& kind, std::span<const float> values) {
    Sum& sum = of_kind(sums, kind);
    ++sum.row.ops;
    sum.row.elements += static_cast<std::int64_t>(values.size());
    sum.hash.add(values);
  };
  const bool ended = walk(how, digest.work, [&](const ProbeStep& s, bool&) {
    const Program& program = probe.program(s.section);
    const Observer look = [&](const Op& op, std::int64_t, std::int64_t,
                              std::span<const float> data) {
      add(op_kind(op.args), data);
      ++digest.work.ops;
      digest.work.elements += static_cast<std::int64_t>(data.size());
      if (gives_logits(program, op)) {
        digest.work.logits += static_cast<std::int64_t>(data.size());
        add("logits", data);
      }
    };
    return probe.run(s.section, s.tokens, look).tokens.back();
  });
  if (ended) {
    const HostState state = probe.state();
    for (const auto& d : state.delta) {
      add("state", d.s);
      add("state", d.conv);
    }
    for (const auto& a : state.kv) {
      add("state", a.k);
      add("state", a.v);
    }
    digest.work.state_elements = of_kind(sums, "state").row.elements;
  }
  for (Sum& s : sums) {
    s.row.digest = s.hash.text();
    digest.kinds.push_back(std::move(s.row));
  }
  return digest;
}

}  // namespace nibble
