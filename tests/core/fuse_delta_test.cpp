// A delta net between its projections and its output as one op: when, where, and in which words not.
#include <gtest/gtest.h>

#include <functional>

#include "core/program/fuse.h"
#include "core/program/planner.h"
#include "core/program/step.h"

namespace nibble {
namespace {

using ClassKind = ProgramClass::Kind;
using Change = std::function<void(Program&)>;

constexpr std::int64_t kHidden = 64, kRows = 128;
constexpr DeltaShape kShape{2, 4, 16, 32, 4};
constexpr std::int64_t kChannels = kShape.channels(), kValues = kShape.value_channels();
constexpr Fusions kFused{.delta_net = true};

Weight weight(std::int64_t rows, std::int64_t cols) {
  Weight w;
  w.name = "w";
  w.format = WeightFormat::bf16;
  w.rows = rows;
  w.cols = cols;
  return w;
}

const Op& find(const Program& p, const std::string& name) {
  for (const Op& op : p.ops) {
    if (op.name == name) return op;
  }
  throw std::runtime_error("no op " + name);
}
Op& find(Program& p, const std::string& name) { return const_cast<Op&>(find(std::as_const(p), name)); }
std::size_t at(const Program& p, const std::string& name) {
  return static_cast<std::size_t>(&find(p, name) - p.ops.data());
}
int count(const Program& p, const std::string& kind) {
  int n = 0;
  for (const Op& op : p.ops) n += kind == op_kind(op.args);
  return n;
}
std::vector<std::string> names(const Program& p) {
  std::vector<std::string> all;
  for (const Op& op : p.ops) all.push_back(op.name);
  return all;
}

// Two delta nets; what tests change is of the first one.
struct Net {
  Weight table = weight(10, kHidden), head = weight(10, kHidden);
  Weight qkv[2] = {weight(kChannels, kHidden), weight(kChannels, kHidden)}, z[2] = {weight(kValues, kHidden), z[0]},
         a[2] = {weight(kShape.value_heads, kHidden), a[0]}, b[2] = {a[0], a[0]},
         out[2] = {weight(kHidden, kValues), weight(kHidden, kValues)};
  std::vector<float> conv[2] = {std::vector<float>(kChannels * kShape.conv_kernel), conv[0]},
                     heads[4] = {std::vector<float>(4), heads[0], heads[0], heads[0]},
                     groups[2] = {std::vector<float>(32, 1.0f), groups[0]}, norm = std::vector<float>(kHidden, 1.0f);
  // What stands between the first rule and out, instead of its norm.
  std::function<Tensor(Step&, Tensor o, Tensor z)> first;

  struct Traced {
    Program program;
    std::vector<Apart> apart;
  };
  Traced trace(const Fusions& fusions, ClassKind kind = ClassKind::mixed, Activations mode = Activations::a16) const {
    Tracer tracer({.activations = mode, .operand = DType::bf16, .fusions = fusions});
    Step s(tracer, {kind, kRows, 4});
    Tensor x = s.embed("embed", table);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = std::to_string(layer);
      const Tensor h = s.rms_norm(name + ".in", x, norm, 1e-6f);
      const Tensor raw = s.linear(name + ".qkv", h, qkv[layer]), gate = s.linear(name + ".z", h, z[layer]);
      const Tensor da = s.linear_f32(name + ".a", h, a[layer]), db = s.linear_f32(name + ".b", h, b[layer]);
      const Tensor o =
          s.delta_net(name, {raw, da, db, &conv[layer], &heads[2 * layer], &heads[2 * layer + 1], kShape});
      const bool other = layer == 0 && first;
      const Tensor y = other ? first(s, o, gate) : s.gated_rms_norm(name + ".norm", o, gate, groups[layer], 1e-6f);
      x = s.add(name + ".add", x, s.linear_f32(name + ".out", y, out[layer]));
    }
    Traced t;
    t.program = s.finish(s.linear_f32("head", s.rms_norm("norm", s.output_rows(x), norm, 1e-6f), head));
    t.apart = tracer.apart();
    return t;
  }
  // Rewritten by hand after a change of the traced program.
  Traced changed(const Change& change, ClassKind kind = ClassKind::decode) const {
    Traced t = trace({}, kind);
    change(t.program);
    for (Op& op : t.program.ops) collect_uses(op);
    t.apart = fuse_delta(t.program);
    plan(t.program);
    return t;
  }
};

constexpr ClassKind kKinds[] = {ClassKind::decode, ClassKind::verify, ClassKind::mixed, ClassKind::score};

// Everything that a fused op touches has bytes of its own while it runs.
void expect_room(const Program& p, const Op& op) {
  std::vector<std::int32_t> all = op.reads;
  all.insert(all.end(), op.writes.begin(), op.writes.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Buffer& x = p.buffers[static_cast<std::size_t>(all[i])];
    EXPECT_GT(x.bytes, 0);
    EXPECT_LE(x.offset + x.bytes, p.scratch_bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const Buffer& y = p.buffers[static_cast<std::size_t>(all[j])];
      EXPECT_NE(all[i], all[j]);
      EXPECT_TRUE(x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset) << all[i] << " and " << all[j];
    }
  }
}

TEST(FuseDelta, MakesOneOpOfAll) {
  const Net net;
  for (const ClassKind kind : kKinds) {
    const Program parts = net.trace({}, kind).program;
    const auto [one, apart] = net.trace(kFused, kind);
    const int sections = kind == ClassKind::mixed ? 3 : 1;
    EXPECT_TRUE(apart.empty());
    EXPECT_EQ(count(parts, "delta_rule"), 2 * sections);
    EXPECT_EQ(count(parts, "delta_net"), 0);
    EXPECT_EQ(count(one, "delta_net"), 2);
    EXPECT_EQ(one.ops.size(), parts.ops.size() - 2 * static_cast<std::size_t>(1 + 2 * sections));
    std::vector<std::string> rest;  // what stays, in its order, the norms too
    for (const Op& op : parts.ops) {
      const std::string op_kind = nibble::op_kind(op.args);
      if (op_kind.rfind("delta", 0) != 0) rest.push_back(op.name);
    }
    EXPECT_EQ(names(one), rest);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = std::to_string(layer);
      const Op& op = find(one, name + ".norm");
      const auto& net_op = std::get<DeltaNet>(op.args);
      const auto& conv = std::get<DeltaConv>(find(parts, name + ".conv1d").args);
      const auto& gates = std::get<DeltaGates>(find(parts, name + ".gates").args);
      const auto& rule = std::get<DeltaRule>(find(parts, name + ".delta_rule").args);
      const auto& norm = std::get<GatedRmsNorm>(find(parts, name + ".norm").args);
      EXPECT_TRUE(net_op.normed);
      EXPECT_EQ(net_op.conv.x, conv.x);
      EXPECT_EQ(net_op.conv.weight, conv.weight);
      EXPECT_EQ(net_op.conv.layer, layer);
      EXPECT_EQ(net_op.gates.a, gates.a);
      EXPECT_EQ(net_op.gates.b, gates.b);
      EXPECT_EQ(net_op.gates.neg_exp_a, gates.neg_exp_a);
      EXPECT_EQ(net_op.gates.dt_bias, gates.dt_bias);
      EXPECT_EQ(net_op.rule.layer, layer);
      EXPECT_EQ(net_op.rule.shape.value_dim, kShape.value_dim);
      EXPECT_EQ(net_op.rule.qkv, net_op.conv.y);
      EXPECT_EQ(net_op.rule.g, net_op.gates.g);
      EXPECT_EQ(net_op.rule.beta, net_op.gates.beta);
      EXPECT_EQ(net_op.rule.y.cols, rule.y.cols);
      EXPECT_EQ(net_op.rule.y, norm.y);  // the norm works in its place
      EXPECT_EQ(net_op.norm.x, net_op.rule.y);
      EXPECT_EQ(net_op.norm.z, norm.z);
      EXPECT_EQ(net_op.norm.weight, norm.weight);
      EXPECT_EQ(net_op.norm.y, norm.y);
      EXPECT_EQ(op.reads, (std::vector{conv.x.buffer, gates.a.buffer, gates.b.buffer, norm.z.buffer}));
      EXPECT_EQ(op.writes, (std::vector{norm.y.buffer, net_op.conv.y.buffer, gates.g.buffer, gates.beta.buffer}));
      EXPECT_EQ(std::get<Linear>(find(one, name + ".out").args).x, net_op.norm.y);
      expect_room(one, op);
    }
  }
}

TEST(FuseDelta, StandsForTheRuleWhereThereIsNoNorm) {
  Net net;
  net.first = [](Step&, Tensor o, Tensor) { return o; };
  for (const ClassKind kind : kKinds) {
    const Program parts = net.trace({}, kind).program;
    const auto [one, apart] = net.trace(kFused, kind);
    EXPECT_TRUE(apart.empty());
    EXPECT_EQ(count(one, "delta_net"), 2);
    const Op& op = find(one, "0.delta_rule");
    const auto& net_op = std::get<DeltaNet>(op.args);
    EXPECT_FALSE(net_op.normed);
    EXPECT_FALSE(net_op.norm.y.valid());
    EXPECT_EQ(op.reads, (std::vector{net_op.conv.x.buffer, net_op.gates.a.buffer, net_op.gates.b.buffer}));
    EXPECT_EQ(op.writes, (std::vector{net_op.rule.y.buffer, net_op.conv.y.buffer, net_op.gates.g.buffer,
                                      net_op.gates.beta.buffer}));
    EXPECT_EQ(at(one, "0.delta_rule") + 1, at(one, "0.out"));
    EXPECT_EQ(std::get<Linear>(find(one, "0.out").args).x, net_op.rule.y);
    EXPECT_TRUE(std::get<DeltaNet>(find(one, "1.norm").args).normed);
    expect_room(one, op);
  }
}

// All that lies between has room at once: the output and a and b beside what the convolution needs, which is the most that
// a part does.
TEST(FuseDelta, NeedsRoomForAllThatLiesBetween) {
  const Net net;
  const std::int64_t parts = net.trace({}).program.scratch_bytes, one = net.trace(kFused).program.scratch_bytes;
  const std::int64_t residual = kHidden * 4, gates = 2 * kShape.value_heads * 4, bf16 = 2;
  EXPECT_EQ(parts, kRows * (residual + gates + (2 * kChannels + kValues) * bf16));
  EXPECT_EQ(one, parts + kRows * (gates + kValues * bf16));
}

// A change of the first net keeps all of it apart for this reason, the second is fused.
void expect_apart(const Change& change, const char* why, ClassKind kind = ClassKind::decode) {
  const Net net;
  const auto [p, apart] = net.changed(change, kind);
  ASSERT_EQ(apart.size(), 1u) << why;
  EXPECT_EQ(apart[0].op, "0.delta_rule") << why;
  EXPECT_STREQ(apart[0].why, why);
  EXPECT_STREQ(apart[0].option, "fused-delta");
  EXPECT_EQ(count(p, "delta_net"), 1) << why;
  for (const char* name : {"0.gates", "0.conv1d", "0.delta_rule", "0.norm"}) find(p, name);
  EXPECT_TRUE(std::holds_alternative<GatedRmsNorm>(find(p, "0.norm").args)) << why;
}
// It keeps the norm apart.
void expect_norm_apart(const Change& change, const char* why, ClassKind kind = ClassKind::decode) {
  const Net net;
  const auto [p, apart] = net.changed(change, kind);
  ASSERT_EQ(apart.size(), 1u) << why;
  EXPECT_EQ(apart[0], (Apart{"0.norm", apart[0].why, apart[0].option}));
  EXPECT_STREQ(apart[0].why, why);
  EXPECT_STREQ(apart[0].option, "fused-delta");
  EXPECT_EQ(count(p, "delta_net"), 2) << why;
  EXPECT_FALSE(std::get<DeltaNet>(find(p, "0.delta_rule").args).normed) << why;
  EXPECT_TRUE(std::holds_alternative<GatedRmsNorm>(find(p, "0.norm").args)) << why;
  EXPECT_TRUE(std::get<DeltaNet>(find(p, "1.norm").args).normed) << why;
}

template <class Part>
Part& part(Program& p, const std::string& name) {
  return std::get<Part>(find(p, name).args);
}
void insert(Program& p, std::size_t place, OpArgs args, const char* name = "extra") {
  p.ops.insert(p.ops.begin() + static_cast<std::ptrdiff_t>(place), Op{name, std::move(args), {}, {}});
}
Tensor fresh(Program& p, const Tensor& like) {
  Tensor t = like;
  t.buffer = static_cast<std::int32_t>(p.buffers.size());
  p.buffers.push_back(p.buffers[static_cast<std::size_t>(like.buffer)]);
  return t;
}
// An op that reads, or writes, this tensor.
OpArgs reader(Program& p, const Tensor& t) { return RmsNorm{t, 0, 1e-6f, fresh(p, t)}; }
OpArgs writer(Program& p, const Tensor& t) { return RmsNorm{fresh(p, t), 0, 1e-6f, t}; }

TEST(FuseDelta, LeavesOtherSections) {
  const char* const why = "it has not one convolution and one rule for each section";
  expect_apart([](Program& p) { part<DeltaConv>(p, "0.conv1d").section = Section::verify; }, why);
  expect_apart([](Program& p) { insert(p, at(p, "0.conv1d"), find(p, "0.conv1d").args); }, why);
  expect_apart([](Program& p) { part<DeltaRule>(p, "0.delta_rule").layer = 7; }, why);
  for (int skipped = 0; skipped < 3; ++skipped) {
    expect_apart([&](Program& p) { p.ops[at(p, "0.conv1d") + static_cast<std::size_t>(skipped)].args = Add{}; }, why,
                 ClassKind::mixed);
  }
  expect_apart(
      [](Program& p) {
        auto& second = std::get<DeltaRule>(p.ops[at(p, "0.delta_rule") + 1].args);
        second.y = fresh(p, second.y);
      },
      why, ClassKind::mixed);
}

TEST(FuseDelta, LeavesPartsOfOthers) {
  const char* const why = "the rule does not read what gates and a convolution made before it";
  const auto other = [](auto member) {
    return [member](Program& p) {
      auto& rule = part<DeltaRule>(p, "0.delta_rule");
      rule.*member = fresh(p, rule.*member);
    };
  };
  expect_apart(other(&DeltaRule::g), why);
  expect_apart(other(&DeltaRule::beta), why);
  expect_apart(other(&DeltaRule::qkv), why);
  expect_apart([](Program& p) { std::swap(find(p, "0.conv1d"), find(p, "0.delta_rule")); }, why);
  expect_apart([](Program& p) { std::swap(find(p, "0.gates"), find(p, "0.delta_rule")); }, why);
}

TEST(FuseDelta, LeavesWhatOthersUse) {
  const char* const between = "another op uses its gates or its convolution's output";
  for (const bool reads : {true, false}) {
    const auto add = [&](auto tensor) {
      return [=](Program& p) {
        const Tensor t = tensor(p);
        insert(p, at(p, "0.norm"), reads ? reader(p, t) : writer(p, t));
      };
    };
    expect_apart(add([](Program& p) { return part<DeltaConv>(p, "0.conv1d").y; }), between);
    expect_apart(add([](Program& p) { return part<DeltaGates>(p, "0.gates").g; }), between);
    expect_apart(add([](Program& p) { return part<DeltaGates>(p, "0.gates").beta; }), between);
    expect_apart(
        [&](Program& p) {
          const Tensor t = part<DeltaRule>(p, "0.delta_rule").y;
          insert(p, at(p, "0.delta_rule") + 2, reads ? reader(p, t) : writer(p, t));
        },
        "another op uses its output before it is whole", ClassKind::mixed);
  }
  expect_apart([](Program& p) { p.logits = part<DeltaConv>(p, "0.conv1d").y; }, between);
}

TEST(FuseDelta, LeavesInputsThatAreWrittenAgain) {
  const char* const why = "an input of it is written again before the rule";
  const char* const norm_why = "an input of the rule is written again before it";
  const std::function<Tensor(Program&)> inputs[] = {
      [](Program& p) { return part<DeltaConv>(p, "0.conv1d").x; },
      [](Program& p) { return part<DeltaGates>(p, "0.gates").a; },
      [](Program& p) { return part<DeltaGates>(p, "0.gates").b; },
  };
  for (const auto& input : inputs) {
    expect_apart([&](Program& p) { insert(p, at(p, "0.delta_rule"), writer(p, input(p))); }, why);
    expect_norm_apart([&](Program& p) { insert(p, at(p, "0.norm"), writer(p, input(p))); }, norm_why);
    // Behind the norm, or before the first part, it does not matter.
    for (const char* place : {"0.out", "0.gates"}) {
      const auto [p, apart] = Net().changed([&](Program& q) { insert(q, at(q, place), writer(q, input(q))); });
      EXPECT_TRUE(apart.empty());
      EXPECT_EQ(count(p, "delta_net"), 2);
    }
  }
  // The norm reads z where it always did.
  const auto [p, apart] = Net().changed(
      [](Program& q) { insert(q, at(q, "0.norm"), writer(q, part<GatedRmsNorm>(q, "0.norm").z)); });
  EXPECT_TRUE(apart.empty());
  EXPECT_EQ(at(p, "extra") + 1, at(p, "0.norm"));
}

TEST(FuseDelta, LeavesSharedBuffers) {
  const char* const why = "two of its tensors share a buffer";
  expect_apart([](Program& p) { part<DeltaRule>(p, "0.delta_rule").y = part<GatedRmsNorm>(p, "0.norm").x =
                                    part<DeltaConv>(p, "0.conv1d").x.slice(0, kValues); }, why);
  expect_norm_apart([](Program& p) { part<GatedRmsNorm>(p, "0.norm").y = part<GatedRmsNorm>(p, "0.norm").z; }, why);
  expect_norm_apart([](Program& p) { part<GatedRmsNorm>(p, "0.norm").z = part<GatedRmsNorm>(p, "0.norm").x; }, why);
}

TEST(FuseDelta, LeavesNorms) {
  expect_norm_apart([](Program& p) { part<GatedRmsNorm>(p, "0.norm").group = 16; },
                    "its groups are not the rule's heads");
  const char* const read = "another op reads the rule's output";
  for (const ClassKind kind : kKinds) {
    expect_norm_apart([](Program& p) { insert(p, at(p, "0.out"), reader(p, part<GatedRmsNorm>(p, "0.norm").x)); }, read,
                      kind);
  }
  expect_norm_apart([](Program& p) { p.logits = part<GatedRmsNorm>(p, "0.norm").x; }, read);
  expect_norm_apart([](Program& p) { insert(p, at(p, "0.out"), writer(p, part<GatedRmsNorm>(p, "0.norm").x)); },
                    "another op writes the rule's output");
  expect_norm_apart(
      [](Program& p) {
        auto& norm = part<GatedRmsNorm>(p, "0.norm");
        norm.x = norm.x.slice(0, 64);
      },
      "it reads a part of the rule's output");
  expect_norm_apart(
      [](Program& p) {
        Op norm = find(p, "0.norm");
        p.ops.erase(p.ops.begin() + static_cast<std::ptrdiff_t>(at(p, "0.norm")));
        insert(p, at(p, "0.gates"), norm.args, "0.norm");
      },
      "it stands before the rule");
  // Each of two.
  Net net;
  net.first = [&](Step& s, Tensor o, Tensor z) {
    const Tensor one = s.gated_rms_norm("one", o, z, net.groups[0], 1e-6f);
    return s.gated_rms_norm("two", o, one, net.groups[0], 1e-6f);
  };
  const auto [p, apart] = net.trace(kFused);
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_EQ(apart[0].op, "one");
  EXPECT_EQ(apart[1].op, "two");
  EXPECT_STREQ(apart[0].why, read);
  EXPECT_STREQ(apart[1].why, read);
  EXPECT_FALSE(std::get<DeltaNet>(find(p, "0.delta_rule").args).normed);
}

TEST(FuseDelta, LeavesAPackedNorm) {
  Net net;
  net.out[0].activation = {ActivationFormat::Kind::fp8_token, 0};
  Fusions all = Fusions::packs();
  all.delta_net = true;
  for (const ClassKind kind : kKinds) {
    const auto [p, apart] = net.trace(all, kind, Activations::declared);
    ASSERT_EQ(apart.size(), 1u);
    EXPECT_EQ(apart[0].op, "0.norm");
    EXPECT_STREQ(apart[0].why, "its output is packed");
    EXPECT_STREQ(apart[0].option, "fused-delta");
    const auto& first = std::get<DeltaNet>(find(p, "0.delta_rule").args);
    EXPECT_FALSE(first.normed);
    EXPECT_EQ(std::get<Packed<GatedRmsNorm>>(find(p, "0.norm").args).op.x, first.rule.y);
    EXPECT_EQ(at(p, "0.delta_rule") + 1, at(p, "0.norm"));
    EXPECT_TRUE(std::get<DeltaNet>(find(p, "1.norm").args).normed);
    // As an op of its own, packing reads the fused op's output.
    const auto [q, none] = net.trace(kFused, kind, Activations::declared);
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(std::get<Quantize>(find(q, "0.out.input").args).x, std::get<DeltaNet>(find(q, "0.norm").args).norm.y);
  }
}

// A buffer is renamed in every place that names it.
TEST(FuseDelta, KeepsItsPartsTogetherWhenOpsWriteInPlace) {
  Net net;
  net.first = [](Step& s, Tensor o, Tensor z) { return s.swiglu("inplace", o, z); };
  const Program p = net.trace(kFused).program;
  const auto& op = std::get<DeltaNet>(find(p, "0.delta_rule").args);
  EXPECT_EQ(std::get<SwiGlu>(find(p, "inplace").args).y.buffer, op.rule.y.buffer) << "this one does";
  EXPECT_EQ(op.rule.qkv, op.conv.y);
  OpArgs args = std::get<DeltaNet>(find(p, "1.norm").args);
  visit_tensors(args, [](Tensor&) {}, [](Tensor& t) { t.buffer += 1000; });
  const auto& moved = std::get<DeltaNet>(args);
  EXPECT_EQ(moved.rule.qkv, moved.conv.y);
  EXPECT_EQ(moved.rule.g, moved.gates.g);
  EXPECT_EQ(moved.rule.beta, moved.gates.beta);
  EXPECT_EQ(moved.norm.x, moved.rule.y);
  EXPECT_GE(moved.norm.y.buffer, 1000);
  EXPECT_LT(moved.norm.z.buffer, 1000);
}

}  // namespace
}  // namespace nibble
