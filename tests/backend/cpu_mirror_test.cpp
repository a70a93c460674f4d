// The CPU's mirrors on programs made by hand: rows of f16 with their exponents from op to op, and weights
// that a profile refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>

#include "backends/cpu/cpu_backend.h"
#include "core/numerics/row_scale.h"
#include "core/program/planner.h"
#include "nibble/error.h"
#include "tests/backend/toy.h"

namespace nibble::cpu {
namespace {

using test::ProgramBuilder;

BackendOptions mirror(const char* profile) {
  BackendOptions how;
  how.threads = 2;
  how.mirror = profile;
  return how;
}

// A mirror plans again, so the ops must say what they use.
Program whole(ProgramBuilder& p) {
  Program program = p.take();
  for (Op& op : program.ops) collect_uses(op);
  return program;
}

// embed -> rms_norm (f16) -> gather (moves h and e) -> head. Norms past f16's range.
TEST(CpuMirror, RowsOfF16CarryTheirExponents) {
  constexpr std::int64_t kN = 5, kK = 8;
  ModelSpec spec;
  Weight w;
  w.name = "table";
  w.format = WeightFormat::f32;
  w.rows = kN;
  w.cols = kK;
  std::vector<float> values;
  for (int i = 0; i < kN * kK; ++i) values.push_back(static_cast<float>(i % 7 + 1) * (i / kK == 1 ? -1 : 1));
  w.codes = std::as_bytes(std::span(values));
  spec.weights.push_back(w);
  spec.constants.push_back({"norm", {kK}, std::vector<float>(kK, 3e5f)});
  ProgramBuilder p({ProgramClass::Kind::mixed, 3, 3});
  const Tensor x = p.buffer(Rows::tokens, kK), y = p.buffer(Rows::tokens, kK, DType::f16),
               z = p.buffer(Rows::outputs, kK, DType::f16), logits = p.buffer(Rows::outputs, kN);
  p.op("embed", Embed{0, x});
  p.op("norm", RmsNorm{x, 0, 1e-6f, y});
  p.op("last", GatherRows{y, z});
  p.op("head", nibble::Linear{z, {}, {}, 0, logits});
  p.op("sample", nibble::Sample{logits});
  spec.programs.push_back(whole(p));

  CpuBackend backend(mirror("sm70"));
  EXPECT_EQ(backend.device().profile, "sm70");
  EXPECT_EQ(backend.device().operand, DType::f16);
  const MemoryPlan plan = backend.plan(spec, {1, 0, 1, kN});
  EXPECT_GT(plan.scratch, 0u);
  backend.prepare(std::move(spec), {1, 0, 1, kN}, {});
  Batch b;
  b.tokens = {4, 1, 3};
  b.ranges = {{Section::prefill, 0, 0, 3, 0, 0, 0}};
  b.output_rows = {1, 2};
  b.sampling.resize(2);
  StepOutput out;
  std::vector<float> normed, gathered, got;
  backend.run(0, b, out, [&](const Op& op, auto, auto, auto data) {
    if (op.name == "norm") normed.assign(data.begin(), data.end());
    if (op.name == "last") gathered.assign(data.begin(), data.end());
    if (op.name == "head") got.assign(data.begin(), data.end());
  });
  ASSERT_EQ(normed.size(), 3u * kK);
  ASSERT_EQ(gathered.size(), 2u * kK);
  EXPECT_EQ(std::memcmp(gathered.data(), normed.data() + kK, 2 * kK * 4), 0);
  ASSERT_EQ(got.size(), 2u * kN);
  for (std::size_t o = 0; o < 2; ++o) {
    EXPECT_GT(std::fabs(gathered[o * kK]), 65504.0f);
    for (std::size_t n = 0; n < kN; ++n) {
      double exact = 0;
      for (std::size_t k = 0; k < kK; ++k) {
        exact += static_cast<double>(gathered[o * kK + k]) * static_cast<double>(values[n * kK + k]);
      }
      EXPECT_NEAR(got[o * kN + n] / exact, 1, 1e-6) << o << " " << n;
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
