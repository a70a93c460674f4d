// The rewrites of core/program/fuse.h on traced programs.
#include "core/program/fuse.h"

#include <gtest/gtest.h>

#include "core/program/planner.h"
#include "core/program/step.h"

namespace nibble {
namespace {

using Kind = ActivationFormat::Kind;

constexpr std::int64_t kHidden = 64, kInner = 256;

Weight weight(std::int64_t rows, std::int64_t cols, ActivationFormat format = {}) {
  Weight w;
  w.name = "w";
  w.rows = rows;
  w.cols = cols;
  w.activation = format;
  return w;
}

constexpr ActivationFormat kFp4{Kind::nvfp4_static, 0.5f};

// Two layers of norm, a gated norm and an MLP. `plain`: a projection that reads the norm as it is;
// `second`: one that declares another format.
struct Net {
  Weight table = weight(10, kHidden), in = weight(kHidden, kHidden, kFp4), plain = weight(4, kHidden),
         second = weight(4, kHidden, {Kind::fp8_token, 0}), out = weight(kHidden, kHidden, kFp4),
         up = weight(kInner, kHidden, kFp4), down = weight(kHidden, kInner, {Kind::fp8_token_group128, 0});
  std::vector<float> norm = std::vector<float>(kHidden, 1.0f), gate = std::vector<float>(16, 1.0f);
  bool reads_plain = false, reads_second = false;

  Program trace(const Fusions& fusions, bool declared = true) const {
    const Activations mode = declared ? Activations::declared : Activations::a16;
    Tracer tracer({.activations = mode, .operand = DType::bf16, .fusions = fusions});
    Step s(tracer, {ProgramClass::Kind::mixed, 128, 4});
    Tensor x = s.embed("embed", table);
    for (int layer = 0; layer < 2; ++layer) {
      const Tensor h = s.rms_norm("norm_in", x, norm, 1e-6f);
      const Tensor a = s.linear("q", h, in), z = s.linear("k", h, in);
      if (reads_plain) s.linear_f32("plain", h, plain);
      if (reads_second) s.linear_f32("second", h, second);
      x = s.add("mixed", x, s.linear_f32("o", s.gated_rms_norm("gated", a, z, gate, 1e-6f), out));
      const Tensor m = s.rms_norm("norm_out", x, norm, 1e-6f);
      const Tensor g = s.linear("gate", m, up), u = s.linear("up", m, up);
      x = s.add("out", x, s.linear_f32("down", s.swiglu("act", g, u), down));
    }
    return s.finish(s.linear_f32("head", s.rms_norm("norm", s.output_rows(x), norm, 1e-6f), table));
  }
};

int count(const Program& p, const std::string& kind) {
  int n = 0;
  for (const Op& op : p.ops) n += kind == op_kind(op.args);
  return n;
}

const Op& find(const Program& p, const std::string& name) {
  for (const Op& op : p.ops) {
    if (op.name == name) return op;
  }
  throw std::runtime_error("no op " + name);
}

TEST(Fuse, PacksBehindNormsAndSwiGlu) {
  const Net net;
  const Program two = net.trace({}), one = net.trace(Fusions::packs());
  EXPECT_EQ(count(two, "quantize"), 8);
  EXPECT_EQ(one.ops.size(), two.ops.size() - 8);
  EXPECT_EQ(count(one, "quantize"), 0);
  EXPECT_EQ(count(one, "rms_norm_pack"), 4);
  EXPECT_EQ(count(one, "rms_norm"), 1) << "the head's input is not quantised";
  EXPECT_EQ(count(one, "gated_rms_norm_pack"), 2);
  EXPECT_EQ(count(one, "swiglu_pack"), 2);
  // The name is that of the op in front, what is read and written that of both.
  const Op& op = find(one, "act");
  const auto& act = std::get<Packed<SwiGlu>>(op.args);
  EXPECT_EQ(op.reads, (std::vector{act.op.gate.buffer, act.op.up.buffer}));
  EXPECT_EQ(op.writes, (std::vector{act.pack.codes.buffer, act.pack.scales.buffer}));
  EXPECT_EQ(act.pack.format.kind, Kind::fp8_token_group128);
  EXPECT_FALSE(act.op.y.valid());
  EXPECT_EQ(act.op.y.dtype, DType::bf16);
  EXPECT_EQ(act.op.y.cols, kInner);
  const auto& down = std::get<Linear>(find(one, "down").args);
  EXPECT_EQ(down.x.buffer, act.pack.codes.buffer);
  EXPECT_EQ(down.x_scales.buffer, act.pack.scales.buffer);
}

TEST(Fuse, EachRewriteIsSwitchedByItself) {
  const Net net;
  const Program norms = net.trace({.rms_norm_pack = true}), gated = net.trace({.gated_rms_norm_pack = true}),
                act = net.trace({.swiglu_pack = true}), none = net.trace(Fusions::packs(), false);
  EXPECT_EQ(count(norms, "rms_norm_pack"), 4);
  EXPECT_EQ(count(norms, "quantize"), 4);
  EXPECT_EQ(count(gated, "gated_rms_norm_pack"), 2);
  EXPECT_EQ(count(gated, "quantize"), 6);
  EXPECT_EQ(count(act, "swiglu_pack"), 2);
  EXPECT_EQ(count(act, "quantize"), 6);
  for (const Op& op : none.ops) EXPECT_FALSE(packs(op.args)) << "nothing is quantised";
}

TEST(Fuse, KeepsWhatOthersRead) {
  Net net;
  net.reads_plain = true;
  const Program p = net.trace(Fusions::packs());
  const Op& op = find(p, "norm_in");
  const auto& norm = std::get<Packed<RmsNorm>>(op.args);
  EXPECT_TRUE(norm.op.y.valid());
  EXPECT_EQ(op.writes.size(), 3u);
  EXPECT_EQ(std::get<Linear>(find(p, "plain").args).x.buffer, norm.op.y.buffer);
  EXPECT_FALSE(std::get<Packed<RmsNorm>>(find(p, "norm_out").args).op.y.valid());
}

TEST(Fuse, ASecondFormatStaysAnOpOfItsOwn) {
  Net net;
  net.reads_second = true;
  const Program p = net.trace(Fusions::packs());
  const auto& norm = std::get<Packed<RmsNorm>>(find(p, "norm_in").args);
  EXPECT_EQ(norm.pack.format.kind, Kind::nvfp4_static);
  EXPECT_EQ(count(p, "quantize"), 2);
  const auto& other = std::get<Quantize>(find(p, "second.input").args);
  EXPECT_EQ(other.format.kind, Kind::fp8_token);
  EXPECT_EQ(other.x.buffer, norm.op.y.buffer);
}

TEST(Fuse, LeavesAViewOfTheOutputAlone) {
  Tracer tracer({.activations = Activations::declared, .fusions = Fusions::packs()});
  const Weight table = weight(10, kHidden), half = weight(8, kHidden / 2, kFp4);
  const std::vector<float> norm(kHidden, 1.0f);
  Step s(tracer, {ProgramClass::Kind::mixed, 8, 1});
  const Tensor h = s.rms_norm("norm", s.embed("embed", table), norm, 1e-6f);
  s.linear("half", h.slice(0, kHidden / 2), half);
  const Program p = s.finish(s.linear_f32("head", s.output_rows(h), table));
  EXPECT_EQ(count(p, "rms_norm"), 1);
  EXPECT_EQ(count(p, "quantize"), 1);
}

TEST(Fuse, AnUnreadIntermediateHasNoRoom) {
  const Net net;
  const Program two = net.trace({}), one = net.trace(Fusions::packs());
  ASSERT_EQ(two.buffers.size(), one.buffers.size());
  const auto used = [](const Program& p) {
    std::vector<bool> seen(p.buffers.size());
    for (const Op& op : p.ops) {
      for (const auto* list : {&op.reads, &op.writes}) {
        for (const std::int32_t b : *list) seen[static_cast<std::size_t>(b)] = true;
      }
    }
    return std::count(seen.begin(), seen.end(), true);
  };
  // SwiGLU wrote over its gate before, so only the six norms had buffers of their own.
  EXPECT_EQ(used(two) - used(one), 6);
}

// Where a norm is what needs most room, the program needs less: residual and codes, no row between.
TEST(Fuse, AProgramOfNormsNeedsLessScratch) {
  const auto bytes = [](const Fusions& fusions) {
    Tracer tracer({.activations = Activations::declared, .operand = DType::bf16, .fusions = fusions});
    const Weight table = weight(10, 1024), in = weight(16, 1024, kFp4), head = weight(10, 16);
    const std::vector<float> norm(1024, 1.0f);
    Step s(tracer, {ProgramClass::Kind::mixed, 128, 4});
    const Tensor h = s.linear("in", s.rms_norm("norm", s.embed("embed", table), norm, 1e-6f), in);
    return s.finish(s.linear_f32("head", s.output_rows(h), head)).scratch_bytes;
  };
  EXPECT_EQ(bytes({}), 128 * 1024 * (4 + 2));
  EXPECT_EQ(bytes(Fusions::packs()), 128 * 1024 * 4 + 128 * (1024 / 2 + 1024 / 16));
}

}  // namespace
}  // namespace nibble
