// A device with delta nets as one op beside one that runs their parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "core/api/compare.h"
#include "nibble/error.h"
#include "tests/golden/fixture.h"
#include "tests/models/folder.h"
#include "tests/parity/passes_on.h"
#include "tests/parity/runs.h"

namespace nibble::test {
namespace {

constexpr int kDeltaLayers = 6;  // of eight

// Runs the parts, and shows what a device that has them as one would.
class AsOne final : public PassesOn {
 public:
  AsOne(std::unique_ptr<Backend> inner, std::vector<Program> parts)
      : PassesOn(std::move(inner)), parts_(std::move(parts)) {}

  void prepare(ModelSpec spec, const StateSizes& sizes, const std::function<bool(std::uint64_t)>& loaded) override {
    fused_ = std::move(spec.programs);
    spec.programs = std::move(parts_);
    PassesOn::prepare(std::move(spec), sizes, loaded);
  }
  void start(std::size_t index, const Batch& batch, const Observer& observer) override {
    PassesOn::start(index, batch, [&](const Op& op, std::int64_t rows, std::int64_t cols, std::span<const float> data) {
      const Op* shown = counterpart(fused_[index], op);
      if (shown == nullptr) return;
      std::vector<float> copy(data.begin(), data.end());
      if (op.name == wrong) copy.front() += 1;
      observer(*shown, rows, cols, copy);
    });
  }
  std::string wrong;  // an op that is shown with an error

 private:
  static const Op* counterpart(const Program& fused, const Op& op) {
    for (const Op& one : fused.ops) {
      if (one.name != op.name) continue;
      if (std::holds_alternative<DeltaNet>(one.args) || same_op(one, op)) return &one;
    }
    return nullptr;
  }
  std::vector<Program> parts_, fused_;
};

struct Pair {
  std::vector<Program> parts, fused;
};
Pair programs(const Draft& d, const Activations mode, const Fusions& packs) {
  Fusions all = packs;
  all.delta_net = true;
  Pair both;
  for (auto [to, fusions] : {std::pair(&both.parts, packs), std::pair(&both.fused, all)}) {
    Tracer tracer({.activations = mode, .operand = DType::f32, .max_positions = d.engine.capacity, .fusions = fusions});
    for (const Program& p : d.spec.programs) {
      Step step(tracer, p.cls);
      to->push_back(step.finish(d.decoder->forward(step)));
    }
  }
  return both;
}

ParityReport compare_as_one(const ParityOptions& how, const char* device, const Fusions& packs, bool fused_a,
                            bool fused_b, const std::string& wrong = {}) {
  const auto probe = [&](bool fused, const std::string& op) {
    Draft d = Probe::draft(model(), Device::parse(device), how);
    if (fused) {
      Pair both = programs(d, how.activations, packs);
      auto one = std::make_unique<AsOne>(std::move(d.backend), std::move(both.parts));
      one->wrong = op;
      d.backend = std::move(one);
      d.spec.programs = std::move(both.fused);
    }
    return Probe(std::move(d), how);
  };
  Probe a = probe(fused_a, {}), b = probe(fused_b, wrong);
  ParityReport report;
  compare(a, b, how, report);
  return report;
}

std::int64_t ops_of(const ParityReport& r, const std::string& kind) {
  for (const auto& k : r.kinds) {
    if (k.kind == kind) return k.ops;
  }
  return 0;
}

TEST(ParityOfFusedDelta, ComparesTheNormAndLeavesOutItsParts) {
  const ParityOptions how = options();
  const ParityReport parts = compare_as_one(how, "cpu:threads=1", {}, false, false);
  for (const auto& [a, b] : {std::pair(false, true), std::pair(true, false), std::pair(true, true)}) {
    const ParityReport r = compare_as_one(how, "cpu:threads=1", {}, a, b);
    EXPECT_TRUE(r.equal()) << r.first->op;
    // 5 steps, of each layer one gate, one convolution and one rule less
    EXPECT_EQ(r.work.ops, parts.work.ops - 5 * kDeltaLayers * 3);
    EXPECT_EQ(ops_of(r, b ? "delta_net" : "gated_rms_norm"), 5 * kDeltaLayers);
    for (const char* kind : {"delta_gates", "delta_conv", "delta_rule"}) EXPECT_EQ(ops_of(r, kind), 0) << kind;
    EXPECT_EQ(r.work.logits, parts.work.logits);
    EXPECT_EQ(r.work.state_elements, parts.work.state_elements);
    EXPECT_EQ(r.work.tokens, parts.work.tokens);
  }
}

TEST(ParityOfFusedDelta, FindsAnError) {
  const ParityReport r =
      compare_as_one(options(), "cpu:threads=1", {}, false, true, "model.layers.1.linear_attn.norm");
  ASSERT_FALSE(r.equal());
  EXPECT_EQ(r.first->op, "model.layers.1.linear_attn.norm");
  EXPECT_EQ(r.first->kind, "delta_net");
  EXPECT_EQ(r.first->row, 0);
}

// Where the norm packs, the fused op ends with the rule: shown where both have it, otherwise the norm is compared.
TEST(ParityOfFusedDelta, LeavesOutTheRuleWhereTheNormStaysApart) {
  ParityOptions how = options();
  how.activations = Activations::declared;
  const char* const device = "cpu:threads=1,fused-pack=on";
  const ParityReport parts = compare_as_one(how, device, Fusions::packs(), false, false);
  ASSERT_GT(ops_of(parts, "gated_rms_norm_pack"), 0) << "the checkpoint declares formats";
  for (const auto& [a, b] : {std::pair(false, true), std::pair(true, false), std::pair(true, true)}) {
    const ParityReport r = compare_as_one(how, device, Fusions::packs(), a, b);
    EXPECT_TRUE(r.equal()) << r.first->op;
    EXPECT_EQ(ops_of(r, "gated_rms_norm_pack"), ops_of(parts, "gated_rms_norm_pack"));
    EXPECT_EQ(ops_of(r, "delta_net"), a && b ? 5 * kDeltaLayers : 0);
    EXPECT_EQ(ops_of(r, "delta_rule"), 0);
    EXPECT_EQ(r.work.state_elements, parts.work.state_elements);
  }
}

TEST(ParityOfFusedDelta, NamesWhatIsFoldedIn) {
  const Draft d = Probe::draft(model(), Device::cpu(1), options());
  const Pair both = programs(d, Activations::a16, {});
  for (std::size_t p = 0; p < both.parts.size(); ++p) {
    const std::set<std::string> folded = folded_into(both.fused[p], both.parts[p]);
    EXPECT_EQ(folded.size(), kDeltaLayers * 3u);
    for (const char* part : {"gates", "conv1d", "delta_rule"}) {
      EXPECT_TRUE(folded.contains(std::string("model.layers.0.linear_attn.") + part)) << part;
    }
    EXPECT_TRUE(folded_into(both.parts[p], both.fused[p]).empty());
    EXPECT_TRUE(folded_into(both.fused[p], both.fused[p]).empty());
    // Shown by either, found in the other.
    OpCursor in_fused(both.fused[p]), in_parts(both.parts[p], folded);
    std::size_t at = 0;
    for (const Op& op : both.parts[p].ops) {
      if (folded.contains(op.name)) continue;
      const Op& one = both.fused[p].ops.at(at);
      EXPECT_TRUE(same_op(op, one)) << op.name;
      EXPECT_EQ(in_fused.find(op), static_cast<std::int64_t>(at++));
      EXPECT_EQ(both.parts[p].ops.at(static_cast<std::size_t>(in_parts.find(one))).name, op.name);
    }
    EXPECT_EQ(at, both.fused[p].ops.size());
  }
}

TEST(ParityOfFusedDelta, DigestsAndFloat64WantTheParts) {
  const Device fused = Device::parse("cuda:fused-delta=on");
  for (const auto& ask : {std::function<void()>([&] { digest_device(model(), fused, options()); }),
                          std::function<void()>([&] { compare_with_float64(model(), fused, options()); })}) {
    try {
      ask();
      ADD_FAILURE() << "nothing was refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("fused-delta: expected off"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace nibble::test
