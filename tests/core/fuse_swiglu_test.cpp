// Linear layers of gate and up with SwiGLU behind them as one op: when, and in which words not.
#include <gtest/gtest.h>

#include <functional>

#include "core/program/fuse.h"
#include "core/program/planner.h"
#include "core/program/step.h"

namespace nibble {
namespace {

using Kind = ActivationFormat::Kind;

constexpr std::int64_t kHidden = 64, kInner = 256, kRows = 128;

Weight weight(std::int64_t rows, std::int64_t cols, ActivationFormat format = {}) {
  Weight w;
  w.name = "w";
  w.format = WeightFormat::bf16;
  w.rows = rows;
  w.cols = cols;
  w.activation = format;
  return w;
}

// Two MLPs behind norms; what tests change is of the first one.
struct Net {
  Weight table = weight(10, kHidden), head = weight(10, kHidden);
  Weight gate[2] = {weight(kInner, kHidden), weight(kInner, kHidden)}, up[2] = {gate[0], gate[1]},
         down[2] = {weight(kHidden, kInner), weight(kHidden, kInner)};
  std::vector<float> norm = std::vector<float>(kHidden, 1.0f);
  // Describes the first SwiGLU instead of the usual one.
  std::function<Tensor(Step&, Tensor x, Tensor h)> first;

  struct Traced {
    Program program;
    std::vector<Apart> apart;
  };
  Traced trace(const Fusions& fusions, Activations mode = Activations::a16) const {
    Tracer tracer({.activations = mode, .operand = DType::bf16, .fusions = fusions});
    Step s(tracer, {ProgramClass::Kind::mixed, kRows, 4});
    Tensor x = s.embed("embed", table);
    for (int layer = 0; layer < 2; ++layer) {
      const Tensor h = s.rms_norm("norm", x, norm, 1e-6f);
      const std::string name = std::to_string(layer);
      Tensor y;
      if (layer == 0 && first) {
        y = first(s, x, h);
      } else {
        const Tensor g = s.linear(name + ".gate", h, gate[layer]), u = s.linear(name + ".up", h, up[layer]);
        y = s.swiglu(name + ".swiglu", g, u);
      }
      x = s.add(name + ".out", x, s.linear_f32(name + ".down", y, down[layer]));
    }
    Traced t;
    t.program = s.finish(s.linear_f32("head", s.rms_norm("norm", s.output_rows(x), norm, 1e-6f), head));
    t.apart = tracer.apart();
    return t;
  }
};

constexpr Fusions kFused{.linear_swiglu = true};

const Op& find(const Program& p, const std::string& name) {
  for (const Op& op : p.ops) {
    if (op.name == name) return op;
  }
  throw std::runtime_error("no op " + name);
}
int count(const Program& p, const std::string& kind) {
  int n = 0;
  for (const Op& op : p.ops) n += kind == op_kind(op.args);
  return n;
}

TEST(FuseSwiGlu, MakesOneOpOfThree) {
  const Net net;
  const Program three = net.trace({}).program;
  const auto [one, apart] = net.trace(kFused);
  EXPECT_TRUE(apart.empty());
  EXPECT_EQ(count(three, "swiglu"), 2);
  EXPECT_EQ(count(one, "swiglu"), 0);
  EXPECT_EQ(count(one, "linear_swiglu"), 2);
  EXPECT_EQ(one.ops.size(), three.ops.size() - 4);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = std::to_string(layer);
    const Op& op = find(one, name + ".swiglu");
    const auto& fused = std::get<LinearSwiGlu>(op.args);
    EXPECT_EQ(fused.gate, std::get<Linear>(find(three, name + ".gate").args).weight);
    EXPECT_EQ(fused.up, std::get<Linear>(find(three, name + ".up").args).weight);
    EXPECT_EQ(fused.x.cols, kHidden);
    EXPECT_EQ(fused.x.dtype, DType::bf16);
    EXPECT_EQ(fused.y.cols, kInner);
    EXPECT_EQ(fused.y.dtype, DType::bf16);
    EXPECT_EQ(op.reads, (std::vector{fused.x.buffer}));
    EXPECT_EQ(op.writes, (std::vector{fused.y.buffer}));
    EXPECT_EQ(std::get<Linear>(find(one, name + ".down").args).x, fused.y);
  }
  // At most the residual, x, gate and up were needed at once, now it is the residual, y and what down makes of it.
  EXPECT_EQ(three.scratch_bytes, kRows * (kHidden * 4 + kHidden * 2 + 2 * kInner * 2));
  EXPECT_EQ(one.scratch_bytes, kRows * (2 * kHidden * 4 + kInner * 2));
}

TEST(FuseSwiGlu, KeepsTheOrderOfGateAndUp) {
  Net net;
  net.first = [&](Step& s, Tensor, Tensor h) {
    const Tensor u = s.linear("u", h, net.up[0]), g = s.linear("g", h, net.gate[0]);
    return s.swiglu("first", g, u);
  };
  const Program three = net.trace({}).program;
  const auto [one, apart] = net.trace(kFused);
  EXPECT_TRUE(apart.empty());
  const auto& fused = std::get<LinearSwiGlu>(find(one, "first").args);
  EXPECT_EQ(fused.gate, std::get<Linear>(find(three, "g").args).weight);
  EXPECT_EQ(fused.up, std::get<Linear>(find(three, "u").args).weight);
}

TEST(FuseSwiGlu, TakesQuantisedInputs) {
  Net net;
  for (int layer = 0; layer < 2; ++layer) net.gate[layer].activation = net.up[layer].activation = {Kind::fp8_token, 0};
  const auto [p, apart] = net.trace(kFused, Activations::declared);
  EXPECT_TRUE(apart.empty());
  const Op& op = find(p, "1.swiglu");
  const auto& fused = std::get<LinearSwiGlu>(op.args);
  EXPECT_EQ(fused.x_format.kind, Kind::fp8_token);
  EXPECT_EQ(op.reads, (std::vector{fused.x.buffer, fused.x_scales.buffer}));
  EXPECT_EQ(std::get<Quantize>(find(p, "1.gate.input").args).codes, fused.x);
}

// The first of the two stays apart for this reason, the second is fused.
void expect_apart(const Net& net, const char* why, Fusions fusions = kFused, Activations mode = Activations::a16) {
  const auto [p, apart] = net.trace(fusions, mode);
  ASSERT_EQ(apart.size(), 1u) << why;
  EXPECT_STREQ(apart[0].why, why);
  EXPECT_EQ(count(p, "linear_swiglu"), 1) << why;
  EXPECT_EQ(find(p, apart[0].op).args.index(), OpArgs(SwiGlu{}).index()) << why;
}

TEST(FuseSwiGlu, LeavesWeightsThatDoNotFit) {
  Net net;
  net.up[0].format = WeightFormat::fp8_e4m3;
  expect_apart(net, "weights of gate and up differ in format");
  net = {};
  net.up[0].activation = {Kind::nvfp4_static, 0.5f};
  expect_apart(net, "weights of gate and up differ in format");
  for (Weight* w : {&net.gate[0], &net.up[0]}) {
    net = {};
    w->scale_layout = ScaleLayout::block128;
    expect_apart(net, "weights have scales of 128x128 blocks");
  }
  net = {};
  net.gate[0].rows = net.up[0].rows = net.down[0].cols = 252;
  expect_apart(net, "it has columns that are no multiple of 8");
  // Tensor and row scales may differ: a row of the image has its own.
  net = {};
  net.up[0].scale_layout = ScaleLayout::row;
  EXPECT_TRUE(net.trace(kFused).apart.empty());
}

TEST(FuseSwiGlu, LeavesWhatOthersRead) {
  Net net;
  const Weight extra = weight(4, kInner);
  net.first = [&](Step& s, Tensor, Tensor h) {
    const Tensor g = s.linear("g", h, net.gate[0]), u = s.linear("u", h, net.up[0]);
    s.linear_f32("extra", g, extra);
    return s.swiglu("first", g, u);
  };
  expect_apart(net, "another op reads gate or up");
  net.first = [&](Step& s, Tensor, Tensor h) {
    const Tensor g = s.linear("g", h, net.gate[0]), u = s.linear("u", h, net.up[0]);
    s.linear_f32("again", h, net.up[0]);
    return s.swiglu("first", g, u);
  };
  expect_apart(net, "another op reads a weight of theirs");
  net.first = [&](Step& s, Tensor, Tensor h) {
    return s.swiglu("first", s.linear("g", h, net.gate[0]), s.linear("u", h, net.gate[0]));
  };
  expect_apart(net, "another op reads a weight of theirs");
}

TEST(FuseSwiGlu, LeavesOtherShapesOfGateAndUp) {
  Net net;
  const Weight both = weight(2 * kInner, kHidden);
  net.first = [&](Step& s, Tensor, Tensor h) {
    const Tensor two = s.linear("both", h, both);
    return s.swiglu("first", two.slice(0, kInner), two.slice(kInner, kInner));
  };
  expect_apart(net, "gate or up is a part of what a linear layer makes");
  net.first = [&](Step& s, Tensor, Tensor h) {
    const Tensor g = s.linear("g", h, net.gate[0]);
    return s.swiglu("first", g, g);
  };
  expect_apart(net, "gate or up is a part of what a linear layer makes");
  const Weight third = weight(kInner, kHidden);
  net.first = [&](Step& s, Tensor, Tensor h) {
    const Tensor g = s.linear("g", h, net.gate[0]), u = s.linear("u", h, net.up[0]);
    return s.swiglu("first", s.swiglu("inner", g, u), s.linear("v", h, third));
  };
  const auto [p, apart] = net.trace(kFused);
  ASSERT_EQ(apart.size(), 1u);
  EXPECT_EQ(apart[0].op, "first");
  EXPECT_STREQ(apart[0].why, "gate or up is not made by one linear layer");
  net.first = [&](Step& s, Tensor x, Tensor h) {
    const Tensor other = s.rms_norm("other", x, net.norm, 1e-5f);
    return s.swiglu("first", s.linear("g", h, net.gate[0]), s.linear("u", other, net.up[0]));
  };
  expect_apart(net, "gate and up read different inputs");
  net.first = [&](Step& s, Tensor, Tensor h) {
    return s.swiglu("first", s.linear_f32("g", h, net.gate[0]), s.linear_f32("u", h, net.up[0]));
  };
  expect_apart(net, "gate and up are not of the output's type");
}

TEST(FuseSwiGlu, LeavesAPackedOutputAndTheFp8Unit) {
  Net net;
  net.down[0].activation = {Kind::fp8_token, 0};
  Fusions all = Fusions::packs();
  all.linear_swiglu = true;
  const auto [p, apart] = net.trace(all, Activations::declared);
  ASSERT_EQ(apart.size(), 1u);
  EXPECT_EQ(apart[0], (Apart{"0.swiglu", apart[0].why, apart[0].option}));
  EXPECT_STREQ(apart[0].why, "its output is packed");
  EXPECT_STREQ(apart[0].option, "fused-swiglu");
  EXPECT_EQ(count(p, "swiglu_pack"), 1);
  EXPECT_EQ(count(p, "linear_swiglu"), 1);
  // As an op of its own, packing reads the fused op's output.
  const auto [q, none] = net.trace(kFused, Activations::declared);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(std::get<Quantize>(find(q, "0.down.input").args).x, std::get<LinearSwiGlu>(find(q, "0.swiglu").args).y);
  net = {};
  net.gate[0].format = net.up[0].format = WeightFormat::fp8_e4m3;
  expect_apart(net, "activations are a8", kFused, Activations::a8);
}

TEST(FuseSwiGlu, ABackendMayRefuse) {
  Net net;
  net.gate[0].format = net.up[0].format = WeightFormat::nvfp4;
  Fusions some = kFused;
  some.refusal = [](const Weight& gate, const ActivationFormat& x) -> const char* {
    return gate.format == WeightFormat::nvfp4 && x.kind == Kind::none ? "no kernel" : nullptr;
  };
  expect_apart(net, "no kernel", some);
}

}  // namespace
}  // namespace nibble
