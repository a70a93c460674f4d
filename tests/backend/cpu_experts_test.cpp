// A layer with a mixture of experts, described as a model would, on the CPU in each profile.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "backends/cpu/cpu_backend.h"
#include "core/parity/reference.h"
#include "core/program/step.h"
#include "nibble/error.h"
#include "tests/cases/linear_cases.h"
#include "tests/support/buffers.h"
#include "tests/support/complaint.h"

namespace nibble::test {
namespace {

constexpr std::int64_t kVocab = 50, kHidden = 64, kInner = 48, kExperts = 9;
constexpr std::int32_t kPerToken = 3;

// Weights of one layer, as a model's members would be.
struct ExpertModel {
  std::vector<std::unique_ptr<OwnedWeight>> owned;
  Weight table, router, shared_up, shared_gate, head;
  std::vector<Weight> gate, up, down;
  std::vector<float> norm = std::vector<float>(kHidden, 1.0f);

  explicit ExpertModel(const Combination& c) {
    const Combination plain{WeightFormat::f32, ScaleLayout::none, Kind::none};
    table = make(plain, kVocab, kHidden);
    router = make(plain, kExperts, kHidden);
    shared_up = make(plain, kHidden, kHidden);
    shared_gate = make(plain, 1, kHidden);
    head = make(plain, kVocab, kHidden);
    for (std::int64_t e = 0; e < kExperts; ++e) {
      gate.push_back(make(c, kInner, kHidden));
      up.push_back(make(c, kInner, kHidden));
      down.push_back(make(c, kHidden, kInner));
    }
  }
  Weight make(const Combination& c, std::int64_t n, std::int64_t k) {
    owned.push_back(std::make_unique<OwnedWeight>(c, Case{n, k, 0, false, false, 0}, 100 + owned.size()));
    Weight& w = owned.back()->weight;
    w.name += std::to_string(owned.size());
    w.activation = format_of(c.kind);
    for (std::byte& b : owned.back()->block_scales) b &= std::byte{0x7F};
    for (float& s : w.scales) s = std::fabs(s) * 0x1p-3f;
    return w;
  }
  // y = x + mixture(norm(x)), then the head.
  Program describe(Tracer& tracer, const ProgramClass& cls) const {
    Step s(tracer, cls);
    const Tensor x = s.embed("embed", table), h = s.rms_norm("norm", x, norm, 1e-6f);
    const ExpertRoute route = s.route("route", s.linear_f32("router", h, router), kPerToken, true);
    const Tensor inner = s.swiglu("swiglu", s.grouped_linear("gate", h, route, gate), s.grouped_linear("up", h, route, up));
    const Tensor out = s.grouped_linear_f32("down", inner, route, down);
    const Tensor mixed = s.combine("combine", out, route, s.linear_f32("shared", h, shared_up),
                                   s.linear_f32("shared_gate", h, shared_gate));
    const Tensor last = s.output_rows(s.rms_norm("last", s.add("residual", x, mixed), norm, 1e-6f));
    return s.finish(s.linear_f32("head", last, head));
  }
  ModelSpec spec(DType operand, bool declared) const {
    const Activations mode = declared ? Activations::declared : Activations::a16;
    Tracer tracer({.activations = mode, .operand = operand, .max_positions = 16});
    Program decode = describe(tracer, {ProgramClass::Kind::decode, 4, 4});
    Program mixed = describe(tracer, {ProgramClass::Kind::mixed, 70, 70});
    ModelSpec spec = std::move(tracer.spec());
    spec.programs = {std::move(decode), std::move(mixed)};
    return spec;
  }
};

Batch batch_of(const std::vector<std::int32_t>& tokens) {
  Batch b;
  b.tokens = tokens;
  b.ranges = {{Section::prefill, 0, 0, static_cast<std::int32_t>(tokens.size()), 0, 0, 0}};
  for (std::size_t i = 0; i < tokens.size(); ++i) b.output_rows.push_back(static_cast<std::int32_t>(i));
  b.sampling.resize(tokens.size());
  return b;
}

std::vector<std::int32_t> tokens_of(std::int64_t count) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(static_cast<std::int32_t>(i * 17 % kVocab));
  return all;
}

constexpr StateSizes kSizes{1, 0, 1, kVocab};

struct Tested {
  const char* profile;
  Combination of;
};
std::vector<Tested> all_tested() {
  using F = WeightFormat;
  using L = ScaleLayout;
  std::vector<Tested> all;
  for (const char* profile : {"", "sm70", "sm90", "sm120"}) {
    for (const Combination& c : {Combination{F::nvfp4, L::tensor, Kind::none}, {F::nvfp4, L::tensor, Kind::nvfp4_static},
                                 {F::fp8_e4m3, L::row, Kind::fp8_token}, {F::fp8_e4m3, L::block128, Kind::fp8_token_group128},
                                 {F::bf16, L::none, Kind::none}}) {
      all.push_back({profile, c});
    }
  }
  return all;
}

class CpuExperts : public testing::TestWithParam<Tested> {};

// As many rows as a batch may have, each alone, and each op within rounding of float64.
TEST_P(CpuExperts, RowsOfABatchAreRowsAlone) {
  const ExpertModel model(GetParam().of);
  BackendOptions how;
  how.threads = 2;
  how.mirror = GetParam().profile;
  cpu::CpuBackend backend(how);
  const ModelSpec spec = model.spec(backend.device().operand, GetParam().of.kind != Kind::none);
  EXPECT_GT(backend.plan(spec, kSizes).scratch, 0u);
  backend.prepare(spec, kSizes, {});
  EXPECT_TRUE(std::any_of(backend.stats().kernels.begin(), backend.stats().kernels.end(),
                          [](const auto& k) { return k.first.starts_with("grouped linear"); }));

  const std::vector<std::int32_t> tokens = tokens_of(70);
  const Batch all = batch_of(tokens);
  Reference reference(spec);
  reference.begin(spec.programs[1], all);
  std::map<std::string, std::vector<float>> shown;
  StepOutput out;
  backend.run(1, all, out, [&](const Op& op, std::int64_t, std::int64_t, std::span<const float> data) {
    shown[op.name].assign(data.begin(), data.end());
    const Reference::Result want = reference.evaluate(op);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < data.size() && i < want.values.size(); ++i) {
      error += std::pow(static_cast<double>(data[i]) - want.values[i], 2);
      size += want.values[i] * want.values[i];
    }
    ASSERT_EQ(data.size(), want.values.size()) << op.name;
    const double bound = *GetParam().profile == '\0' ? 2e-6 : 5e-3;
    if (want.exact) {
      EXPECT_EQ(error, 0) << op.name;
    } else {
      EXPECT_LE(std::sqrt(error / size), bound) << op.name;
    }
    reference.show(op, data);
  });
  std::set<float> weights(shown["route"].begin(), shown["route"].end());
  EXPECT_GT(weights.size(), 20u);
  const std::vector<float> logits = shown["head"];
  ASSERT_EQ(logits.size(), 70u * kVocab);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    backend.run(1, batch_of({tokens[t]}), out, [&](const Op& op, std::int64_t, std::int64_t, std::span<const float> data) {
      if (op.name != "head") return;
      for (std::size_t n = 0; n < kVocab; ++n) {
        ASSERT_TRUE(same_bits(data[n], logits[t * kVocab + n])) << "row " << t << " logit " << n;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuExperts, testing::ValuesIn(all_tested()), [](const auto& tested) {
  return std::string(*tested.param.profile == '\0' ? "f32" : tested.param.profile) + "_" + combination_name(tested.param.of);
});

TEST(DescribeExperts, RefusesWhatDoesNotFit) {
  const auto bad = [](auto change) {
    ExpertModel model({WeightFormat::nvfp4, ScaleLayout::tensor, Kind::nvfp4_static});
    change(model);
    return complaint([&] { model.spec(DType::f32, true); });
  };
  EXPECT_EQ(bad([](ExpertModel&) {}), "");
  EXPECT_NE(bad([](ExpertModel& m) { m.up[3].rows = 32; }).find("expected the shape of the first expert, [48, 64], found [32, 64]"),
            std::string::npos);
  EXPECT_NE(bad([](ExpertModel& m) { m.up[8].scale_layout = ScaleLayout::row; }).find("found nvfp4 with row"), std::string::npos);
  EXPECT_NE(bad([](ExpertModel& m) { m.gate[1].activation.scale = 1; }).find("share one packed input"), std::string::npos);
  EXPECT_NE(bad([](ExpertModel& m) { m.down.pop_back(); }).find("expected 9 experts, found 8"), std::string::npos);
  EXPECT_NE(bad([](ExpertModel& m) { m.down.clear(); }).find("at least one expert"), std::string::npos);
  EXPECT_NE(bad([](ExpertModel& m) { m.router.rows = 2; }).find("1 to 2 experts a token, found 3"), std::string::npos);
  EXPECT_NE(bad([](ExpertModel& m) { m.router.rows = 1025; }).find("at most 1024 experts"), std::string::npos);
}

// Ids of experts follow one another, whatever was described before, and twice over.
TEST(DescribeExperts, GiveIdsInOrder) {
  const ExpertModel model({WeightFormat::bf16, ScaleLayout::none, Kind::none});
  Tracer tracer({});
  EXPECT_EQ(tracer.weight(model.table), 0);
  EXPECT_EQ(tracer.experts("gate", model.gate), 1);
  EXPECT_EQ(tracer.experts("up", model.up), 1 + kExperts);
  EXPECT_EQ(tracer.experts("gate", model.gate), 1);
  EXPECT_NE(complaint([&] {
              const std::vector<Weight> mixed(2);
              tracer.weight(mixed[1]);
              tracer.experts("mixed", mixed);
            }),
            "");
}

// Only layers of their own take FP8 inputs.
TEST(DescribeExperts, ModeA8LeavesThemAsTheyAre) {
  const ExpertModel model({WeightFormat::nvfp4, ScaleLayout::tensor, Kind::nvfp4_static});
  for (const Activations mode : {Activations::a8, Activations::declared}) {
    Tracer tracer({.activations = mode, .max_positions = 16});
    int grouped = 0;
    for (const Op& op : model.describe(tracer, {ProgramClass::Kind::decode, 4, 4}).ops) {
      const auto* const g = std::get_if<GroupedLinear>(&op.args);
      if (g == nullptr) continue;
      EXPECT_EQ(g->x_format.kind, mode == Activations::a8 ? Kind::none : Kind::nvfp4_static) << op.name;
      ++grouped;
    }
    EXPECT_EQ(grouped, 3);
  }
}

}  // namespace
}  // namespace nibble::test
