#include "core/program/planner.h"

#include <gtest/gtest.h>

#include <random>

#include "core/program/step.h"

namespace nibble {
namespace {

Weight weight(const char* name, std::int64_t rows, std::int64_t cols) {
  Weight w;
  w.name = name;
  w.rows = rows;
  w.cols = cols;
  return w;
}

// Two buffers that some op needs at the same time must not share bytes.
void expect_no_overlap(const Program& p) {
  const std::size_t n = p.buffers.size();
  std::vector<int> first(n, -1), last(n, -1);
  for (int i = 0; i < static_cast<int>(p.ops.size()); ++i) {
    const Op& op = p.ops[static_cast<std::size_t>(i)];
    for (const auto* list : {&op.reads, &op.writes}) {
      for (const auto b : *list) {
        auto at = static_cast<std::size_t>(b);
        if (first[at] < 0) first[at] = i;
        last[at] = i;
      }
    }
  }
  for (std::size_t a = 0; a < n; ++a) {
    if (first[a] < 0) continue;
    EXPECT_EQ(p.buffers[a].offset % kBufferAlign, 0);
    EXPECT_LE(p.buffers[a].offset + p.buffers[a].bytes, p.scratch_bytes);
    for (std::size_t b = a + 1; b < n; ++b) {
      if (first[b] < 0 || first[a] > last[b] || first[b] > last[a]) continue;
      const Buffer &x = p.buffers[a], &y = p.buffers[b];
      EXPECT_TRUE(x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset)
          << "buffers " << a << " and " << b;
    }
  }
}

TEST(Planner, SharesWhatIsNotAliveTogether) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Program p;
    p.cls.max_rows = 16;
    const int buffers = 3 + static_cast<int>(random() % 30);
    for (int i = 0; i < buffers; ++i) {
      const std::int64_t cols = 1 + static_cast<std::int64_t>(random() % 500);
      p.buffers.push_back({Rows::tokens, cols, DType::f32, cols * 64, -1});
    }
    const auto tensor = [&](std::uint32_t b) {
      Tensor t;
      t.buffer = static_cast<std::int32_t>(b % static_cast<std::uint32_t>(buffers));
      t.cols = t.stride = p.buffers[static_cast<std::size_t>(t.buffer)].cols;
      return t;
    };
    for (int i = 0; i < 40; ++i) {
      Op op{"x", SwiGlu{tensor(random()), tensor(random()), tensor(random())}, {}, {}};
      collect_uses(op);
      p.ops.push_back(op);
    }
    plan(p, {.in_place = false});
    expect_no_overlap(p);
  }
}

TEST(Planner, TracedBlockReusesBuffersAndAddsInPlace) {
  const Weight table = weight("embed", 100, 64), up = weight("up", 256, 64), down = weight("down", 64, 256);
  const std::vector<float> norm(64, 1.0f);
  const auto trace = [&](bool in_place) {
    Tracer tracer({});
    Step s(tracer, {ProgramClass::Kind::mixed, 128, 4});
    Tensor x = s.embed("embed", table);
    for (int layer = 0; layer < 6; ++layer) {
      const Tensor h = s.rms_norm("norm", x, norm, 1e-6f);
      x = s.add("add", x, s.linear("linear", s.swiglu("act", s.linear("linear", h, up), s.linear("linear", h, up)), down));
    }
    Program p = s.finish(s.linear("linear", s.output_rows(x), table));
    plan(p, {.in_place = in_place});
    EXPECT_EQ(tracer.spec().weights.size(), 3u) << "each weight once";
    EXPECT_EQ(tracer.spec().constants.size(), 1u);
    return p;
  };
  const Program p = trace(true);
  expect_no_overlap(p);
  for (const Op& op : p.ops) {
    if (const auto* add = std::get_if<Add>(&op.args)) {
      EXPECT_EQ(add->a.buffer, add->y.buffer);
    }
  }
  // Residual, normed, gate and up: nothing that grows with the number of layers.
  const std::int64_t row = (64 + 64 + 256 + 256) * 4;
  EXPECT_LE(p.scratch_bytes, 128 * row + 4 * 100 * 4 + 16 * kBufferAlign);
}

TEST(Planner, KeepsAnInputThatIsReadLater) {
  Tracer tracer({});
  Step s(tracer, {ProgramClass::Kind::mixed, 8, 1});
  const Weight table = weight("embed", 10, 16);
  const Tensor x = s.embed("embed", table), y = s.embed("embed", table);
  const Tensor sum = s.add("first", x, y);
  const Tensor again = s.add("second", sum, x);
  Program p = s.finish(s.linear("linear", s.output_rows(again), table));
  const auto& first = std::get<Add>(p.ops[2].args);
  EXPECT_NE(first.a.buffer, first.y.buffer);
  expect_no_overlap(p);
}

TEST(Tracer, QuantisesAnInputOnceForAllThatDeclareTheSame) {
  Weight gate = weight("gate", 32, 64), up = weight("up", 32, 64), other = weight("other", 32, 64);
  gate.activation = up.activation = {ActivationFormat::Kind::nvfp4_static, 0.5f};
  other.activation = {ActivationFormat::Kind::fp8_token, 0};
  const Weight table = weight("embed", 10, 64);
  for (const bool declared : {false, true}) {
    Tracer tracer({.activations = declared ? Activations::declared : Activations::a16});
    Step s(tracer, {ProgramClass::Kind::mixed, 8, 1});
    const Tensor x = s.embed("embed", table);
    s.linear("linear", x, gate);
    s.linear("linear", x, up);
    s.linear("linear", x, other);
    const Program p = s.finish(s.linear("linear", s.output_rows(x), table));
    int quantised = 0;
    for (const Op& op : p.ops) quantised += std::holds_alternative<Quantize>(op.args);
    EXPECT_EQ(quantised, declared ? 2 : 0);
  }
}

TEST(Tracer, A8QuantisesWhatFourAndEightBitWeightsRead) {
  Weight gate = weight("gate", 32, 64), up = weight("up", 32, 64), other = weight("other", 32, 64);
  gate.format = WeightFormat::nvfp4;
  gate.activation = {ActivationFormat::Kind::nvfp4_static, 0.5f};
  up.format = WeightFormat::fp8_e4m3;
  other.format = WeightFormat::bf16;
  other.activation = {ActivationFormat::Kind::fp8_token, 0};
  const Weight table = weight("embed", 10, 64);
  Tracer tracer({.activations = Activations::a8});
  Step s(tracer, {ProgramClass::Kind::mixed, 8, 1});
  const Tensor x = s.embed("embed", table);
  for (const Weight* w : {&gate, &up, &other}) s.linear("linear", x, *w);
  const Program p = s.finish(s.linear("linear", s.output_rows(x), table));
  int quantised = 0, on_unit = 0, plain = 0;
  for (const Op& op : p.ops) {
    if (const auto* q = std::get_if<Quantize>(&op.args)) {
      ++quantised;
      EXPECT_EQ(q->format, (ActivationFormat{ActivationFormat::Kind::fp8_token, 0}));
    }
    if (const auto* l = std::get_if<Linear>(&op.args)) {
      ++(l->fp8_unit ? on_unit : plain);
      EXPECT_EQ(l->fp8_unit, l->x_format.kind == ActivationFormat::Kind::fp8_token);
    }
  }
  EXPECT_EQ(quantised, 1);
  EXPECT_EQ(on_unit, 2);
  EXPECT_EQ(plain, 2);
}

}  // namespace
}  // namespace nibble
