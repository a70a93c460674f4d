// A residual sum and the norm of it as one op: when, where, and in which words not.
#include <gtest/gtest.h>

#include "core/program/fuse.h"
#include "core/program/step.h"
#include "tests/core/programs.h"

namespace nibble::test {
namespace {

using Kind = ActivationFormat::Kind;

constexpr std::int64_t kHidden = 64;
constexpr Fusions kFused{.add_norm = true};

Weight weight(std::int64_t rows, ActivationFormat format = {}) {
  Weight w;
  w.name = "w";
  w.rows = rows;
  w.cols = kHidden;
  w.activation = format;
  return w;
}

// Two layers, each of two sums and two norms; the last norm is of gathered rows.
struct Net {
  Weight table = weight(10), mix = weight(kHidden), mlp = weight(kHidden, {Kind::fp8_token, 0});
  std::vector<float> norm = std::vector<float>(kHidden, 1.0f);

  Program trace(const Fusions& fusions, std::vector<Apart>* apart = nullptr) const {
    Tracer tracer({.activations = Activations::declared, .operand = DType::bf16, .fusions = fusions});
    Step s(tracer, {ProgramClass::Kind::mixed, 128, 4});
    Tensor x = s.embed("embed", table);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = std::to_string(layer);
      x = s.add(name + ".mixed", x, s.linear_f32(name + ".mix", s.rms_norm(name + ".in", x, norm, 1e-6f), mix));
      x = s.add(name + ".out", x, s.linear_f32(name + ".mlp", s.rms_norm(name + ".post", x, norm, 1e-5f), mlp));
    }
    Program p = s.finish(s.linear_f32("head", s.rms_norm("norm", s.output_rows(x), norm, 1e-6f), table));
    if (apart != nullptr) *apart = tracer.apart();
    return p;
  }
};

TEST(FuseAddNorm, MakesOneOpOfASumAndItsNorm) {
  std::vector<Apart> apart;
  const Program two = Net().trace({}), one = Net().trace(kFused, &apart);
  EXPECT_TRUE(apart.empty()) << "norms of what is no sum are no candidates";
  EXPECT_EQ(count(two, "add"), 4);
  EXPECT_EQ(count(one, "add"), 1) << "the last sum's rows are gathered";
  EXPECT_EQ(count(one, "add_rms_norm"), 3);
  EXPECT_EQ(count(one, "rms_norm"), 2) << "the first one and that of gathered rows";
  EXPECT_EQ(one.ops.size() + 3, two.ops.size());
  const Op& op = find(one, "0.post");
  const auto& both = std::get<AddRmsNorm>(op.args);
  EXPECT_EQ(both.norm.x, both.add.y);
  EXPECT_EQ(both.norm.eps, 1e-5f);
  EXPECT_EQ(both.add.y.dtype, DType::f32);
  EXPECT_EQ(both.norm.y.dtype, DType::bf16);
  EXPECT_EQ(op.writes, (std::vector{both.norm.y.buffer, both.add.y.buffer})) << "the norm is what an observer sees";
  EXPECT_EQ(place_of(one, "0.mix") + 1, place_of(one, "0.post"));
}

TEST(FuseAddNorm, TheSumLiesOverItsFirstInput) {
  const Program p = Net().trace(kFused);
  for (const char* name : {"0.post", "1.in", "1.post"}) {
    const auto& both = std::get<AddRmsNorm>(find(p, name).args);
    EXPECT_EQ(both.add.y.buffer, both.add.a.buffer) << name;
    EXPECT_EQ(both.norm.x.buffer, both.add.a.buffer) << name;
    EXPECT_NE(both.add.b.buffer, both.add.a.buffer) << name;
  }
  // The norm's output needs room while the second input is still there.
  EXPECT_LE(p.scratch_bytes, Net().trace({}).scratch_bytes + 128 * kHidden * 2);
}

TEST(FuseAddNorm, TakesAPackedNorm) {
  Fusions all = Fusions::packs();
  all.add_norm = true;
  const Program packs = Net().trace(Fusions::packs()), p = Net().trace(all);
  EXPECT_EQ(count(packs, "rms_norm_pack"), 2);
  EXPECT_EQ(count(p, "rms_norm_pack"), 0);
  EXPECT_EQ(count(p, "add_rms_norm_pack"), 2);
  EXPECT_EQ(count(p, "add_rms_norm"), 1);
  const Op& op = find(p, "0.post");
  const auto& all_three = std::get<Packed<AddRmsNorm>>(op.args);
  EXPECT_TRUE(nibble::packs(op.args));
  EXPECT_FALSE(all_three.op.norm.y.valid());
  EXPECT_EQ(all_three.op.norm.y.cols, kHidden);
  EXPECT_EQ(all_three.op.norm.x, all_three.op.add.y);
  EXPECT_EQ(all_three.op.add.y.buffer, all_three.op.add.a.buffer);
  EXPECT_EQ(op.writes,
            (std::vector{all_three.op.add.y.buffer, all_three.pack.codes.buffer, all_three.pack.scales.buffer}));
  EXPECT_EQ(std::get<Linear>(find(p, "0.mlp").args).x, all_three.pack.codes);
}

// A sum, perhaps something between, its norm, and something that reads both.
struct Pair : Written {
  Tensor a = make(kHidden), b = make(kHidden), sum = make(kHidden), y = make(kHidden, DType::bf16), out = make(kHidden);
  Pair() {
    emit("sum", Add{a, b, sum});
    emit("norm", RmsNorm{sum, 0, 1e-6f, y});
    emit("behind", Add{sum, a, out});
    program.logits = out;
  }
};

void expect_apart(const std::function<void(Pair&)>& change, const std::string& why) {
  Pair p;
  change(p);
  const std::size_t ops = p.program.ops.size();
  const std::vector<Apart> apart = fuse_add_norm(p.program);
  ASSERT_EQ(apart.size(), 1u) << why;
  EXPECT_EQ(apart[0].op, "norm") << why;
  EXPECT_STREQ(apart[0].why, why.c_str());
  EXPECT_STREQ(apart[0].option, "fused-add-norm");
  EXPECT_EQ(p.program.ops.size(), ops) << why;
}

TEST(FuseAddNorm, OthersMayReadTheSumBehindIt) {
  Pair p;
  EXPECT_TRUE(fuse_add_norm(p.program).empty());
  ASSERT_EQ(p.program.ops.size(), 2u);
  EXPECT_EQ(p.program.ops[0].name, "norm");
  EXPECT_EQ(std::get<AddRmsNorm>(p.program.ops[0].args).add.b, p.b);
}

TEST(FuseAddNorm, SaysWhyANormStaysApart) {
  expect_apart([](Pair& p) { p.emit_at(0, "writer", Add{p.a, p.b, p.sum}); }, "another op writes the sum");
  expect_apart([](Pair& p) { p.emit_at(1, "reader", Add{p.sum, p.b, p.make(kHidden)}); },
               "another op reads the sum before it");
  expect_apart([](Pair& p) { p.emit_at(1, "writer", Add{p.b, p.b, p.a}); }, "an input of the sum is written again before it");
  expect_apart([](Pair& p) { p.emit_at(1, "writer", Add{p.a, p.a, p.b}); }, "an input of the sum is written again before it");
  expect_apart(
      [](Pair& p) {
        p.program.ops.erase(p.program.ops.begin() + 1);
        p.emit("norm", RmsNorm{p.sum.slice(0, 32), 0, 1e-6f, p.make(32, DType::bf16)});
      },
      "it reads a part of the sum");
  expect_apart(
      [](Pair& p) {
        p.program.ops.erase(p.program.ops.begin());
        p.emit_at(1, "sum", Add{p.a, p.b, p.sum});
      },
      "it stands before the sum");
  expect_apart(
      [](Pair& p) {
        p.program.ops.clear();
        p.emit("sum", Add{p.a, p.b, p.sum});
        p.emit("norm", RmsNorm{p.sum, 0, 1e-6f, p.b});
      },
      "two of its tensors share a buffer");
}

TEST(FuseAddNorm, OneNormOfTwo) {
  Pair p;
  p.emit_at(2, "second", RmsNorm{p.sum, 0, 1e-6f, p.make(kHidden, DType::bf16)});
  const std::vector<Apart> apart = fuse_add_norm(p.program);
  ASSERT_EQ(apart.size(), 1u);
  EXPECT_EQ(apart[0].op, "second");
  EXPECT_STREQ(apart[0].why, "another norm of the sum is fused with it");
  EXPECT_TRUE(std::holds_alternative<AddRmsNorm>(find(p.program, "norm").args));
}

TEST(FuseAddNorm, NormsOfOtherRowsAreNoCandidates) {
  Written p;
  const Tensor x = p.make(kHidden), rows = p.make(kHidden, DType::f32, Rows::outputs);
  p.emit("sum", Add{x, x, p.make(kHidden)});
  p.emit("rows", GatherRows{std::get<Add>(p.program.ops[0].args).y, rows});
  p.emit("norm", RmsNorm{rows, 0, 1e-6f, p.make(kHidden, DType::bf16, Rows::outputs)});
  EXPECT_TRUE(fuse_add_norm(p.program).empty());
  EXPECT_EQ(p.program.ops.size(), 3u);
}

}  // namespace
}  // namespace nibble::test
