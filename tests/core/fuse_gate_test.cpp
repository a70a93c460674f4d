// Attention and the gate behind it as one op: when, where, and in which words not.
#include <gtest/gtest.h>

#include "core/program/fuse.h"
#include "core/program/step.h"
#include "tests/core/programs.h"

namespace nibble::test {
namespace {

using ClassKind = ProgramClass::Kind;

constexpr AttentionShape kShape{4, 2, 16};
constexpr std::int64_t kCols = 64, kHidden = 64;
constexpr Fusions kFused{.gated_attention = true};

Weight weight(std::int64_t rows, std::int64_t cols) {
  Weight w;
  w.name = "w";
  w.rows = rows;
  w.cols = cols;
  return w;
}

// Two layers of gated attention; queries and gates of a head lie beside each other.
struct Net {
  Weight table = weight(10, kHidden), q = weight(2 * kCols, kHidden), kv = weight(32, kHidden), out = weight(kHidden, kCols);

  Program trace(const Fusions& fusions, ClassKind kind, std::vector<Apart>* apart = nullptr) const {
    Tracer tracer({.operand = DType::bf16, .max_positions = 128, .fusions = fusions});
    Step s(tracer, {kind, 128, 4});
    Tensor x = s.embed("embed", table);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string name = std::to_string(layer);
      const Tensor in = s.linear(name + ".q", x, q);
      const Tensor k = s.linear(name + ".k", x, kv), v = s.linear(name + ".v", x, kv);
      RopeConfig rope;
      rope.rotary_dim = 16;
      const Tensor y = s.attention(name, {in, k, v, 32, nullptr, nullptr, 1e-6f, rope, kShape, 0.25f});
      x = s.linear_f32(name + ".out", s.sigmoid_gate(name + ".gate", y, in.slice(16, 2 * kCols - 16), kShape, 32), out);
    }
    Program p = s.finish(s.linear_f32("head", s.output_rows(x), table));
    if (apart != nullptr) *apart = tracer.apart();
    return p;
  }
};

TEST(FuseGate, MakesOneOpOfAllSectionsAndTheGate) {
  for (const ClassKind kind : {ClassKind::decode, ClassKind::verify, ClassKind::mixed, ClassKind::score}) {
    std::vector<Apart> apart;
    const Program parts = Net().trace({}, kind), one = Net().trace(kFused, kind, &apart);
    EXPECT_TRUE(apart.empty());
    const int sections = kind == ClassKind::mixed ? 3 : 1;
    EXPECT_EQ(count(parts, "attention"), 2 * sections);
    EXPECT_EQ(count(one, "attention"), 0);
    EXPECT_EQ(count(one, "sigmoid_gate"), 0);
    EXPECT_EQ(count(one, "gated_attention"), 2);
    EXPECT_EQ(one.ops.size(), parts.ops.size() - static_cast<std::size_t>(2 * sections));
    const Op& op = find(one, "1.gate");
    const auto& both = std::get<GatedAttention>(op.args);
    EXPECT_EQ(both.attention.layer, 1);
    EXPECT_EQ(both.attention.y, both.gate.y);
    EXPECT_EQ(both.gate.x, both.gate.y);
    EXPECT_EQ(both.gate.gate_head_stride, 32);
    EXPECT_EQ(op.reads, (std::vector{both.attention.q.buffer, both.gate.gate.buffer}));
    EXPECT_EQ(op.writes, (std::vector{both.gate.y.buffer}));
    EXPECT_EQ(std::get<Linear>(find(one, "1.out").args).x, both.gate.y);
    EXPECT_LE(one.scratch_bytes, parts.scratch_bytes);
  }
}

// Attention of one section and its gate.
struct Pair : Written {
  explicit Pair(ClassKind kind = ClassKind::decode) : Written(kind) {}
  Tensor q = make(kCols, DType::bf16), o = make(kCols, DType::bf16), gates = make(2 * kCols, DType::bf16), y = make(kCols, DType::bf16);
  Attention attention(Section section) const { return {q, kShape, 0.25f, 0, section, o}; }
  SigmoidGate gate() const { return {o, gates, 4, 16, 32, y}; }
  void write() {
    emit("attention", attention(Section::decode));
    emit("gate", gate());
  }
};

void expect_apart(const std::function<void(Pair&)>& change, const std::string& why) {
  Pair p;
  p.write();
  change(p);
  const std::size_t ops = p.program.ops.size();
  const std::vector<Apart> apart = fuse_gate(p.program);
  ASSERT_EQ(apart.size(), 1u) << why;
  EXPECT_EQ(apart[0].op, "gate") << why;
  EXPECT_STREQ(apart[0].why, why.c_str());
  EXPECT_STREQ(apart[0].option, "fused-gate");
  EXPECT_EQ(p.program.ops.size(), ops) << why;
}
SigmoidGate& gate_of(Pair& p) { return std::get<SigmoidGate>(p.program.ops.back().args); }
void collect(Pair& p) {
  for (Op& op : p.program.ops) collect_uses(op);
}

TEST(FuseGate, SaysWhyAGateStaysApart) {
  const char* const whole = "its input is not made by one attention for each section";
  expect_apart([](Pair& p) { p.program.cls.kind = ClassKind::mixed; }, whole);
  expect_apart([](Pair& p) { p.emit_at(0, "writer", SigmoidGate{p.q, p.gates, 4, 16, 32, p.o}); }, whole);
  expect_apart([](Pair& p) { p.emit_at(0, "twice", p.attention(Section::decode)); }, whole);
  expect_apart([](Pair& p) { std::swap(p.program.ops[0], p.program.ops[1]); }, "it stands before attention");
  expect_apart([](Pair& p) { p.emit_at(1, "reader", Add{p.o, p.o, p.make(kCols)}); }, "another op reads what attention makes");
  expect_apart([](Pair& p) { p.program.logits = p.o; }, "another op reads what attention makes");
  expect_apart(
      [](Pair& p) {
        gate_of(p) = {p.o.slice(0, 32), p.gates, 2, 16, 32, p.make(32, DType::bf16)};
        collect(p);
      },
      "it reads a part of what attention makes");
  expect_apart(
      [](Pair& p) {
        gate_of(p).y = p.make(kCols);
        collect(p);
      },
      "its output is not of its input's shape and type");
  expect_apart([](Pair& p) { gate_of(p).heads = 2, gate_of(p).head_dim = 32; }, "its heads are not attention's");
  const char* const again = "an input of attention is written again before it";
  expect_apart([](Pair& p) { p.emit_at(1, "writer", Add{p.gates, p.gates, p.q}); }, again);
  expect_apart(
      [](Pair& p) {
        const Tensor x = p.make(kCols, DType::bf16);
        p.emit_at(1, "keys", QkNormRope{x, 16, x, x, -1, -1, 1e-6f, 0, 0, kShape, 0, p.make(kCols, DType::bf16)});
      },
      again);
  expect_apart(
      [](Pair& p) {
        gate_of(p).y = p.q;
        collect(p);
      },
      "two of its tensors share a buffer");
}

TEST(FuseGate, KeysOfOtherLayersMayBeWritten) {
  Pair p;
  p.write();
  const Tensor x = p.make(kCols, DType::bf16);
  p.emit_at(1, "keys", QkNormRope{x, 16, x, x, -1, -1, 1e-6f, 0, 0, kShape, 1, p.make(kCols, DType::bf16)});
  EXPECT_TRUE(fuse_gate(p.program).empty());
  EXPECT_EQ(place_of(p.program, "gate"), 1u);
}

TEST(FuseGate, GatesOfOtherThingsAreNoCandidates) {
  Pair p;
  p.emit("made", Add{p.gates, p.gates, p.o});
  p.emit("gate", p.gate());
  EXPECT_TRUE(fuse_gate(p.program).empty());
  EXPECT_EQ(p.program.ops.size(), 2u);
}

}  // namespace
}  // namespace nibble::test
