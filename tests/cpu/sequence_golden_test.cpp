// Against float64 results of another implementation. The bound stands beside what was seen.
#include "tests/cpu/sequence_world.h"
#include "tests/support/golden.h"

namespace nibble::test {
namespace {

const Golden& gdn() {
  static const Golden g(NIBBLE_TEST_DATA "/golden/gdn.safetensors");
  return g;
}
const Golden& ops() {
  static const Golden g(NIBBLE_TEST_DATA "/golden/ops.safetensors");
  return g;
}

template <class A, class B>
double worst(const A& got, const B& want) {
  EXPECT_EQ(got.size(), want.size());
  double w = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double e = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    w = e <= w ? w : e;  // NaN stays
  }
  return w;
}

struct Bench {  // arenas and a context for one layer each
  Bench(const StateLayout& layout, const StateSizes& sizes, const std::string& isa)
      : delta_memory(static_cast<std::int64_t>(cpu::DeltaArena::bytes(layout, sizes) / 4)),
        kv_memory(static_cast<std::int64_t>(cpu::KvArena::bytes(layout, sizes) / 4)),
        delta(delta_memory.bytes(), layout, sizes),
        kv(kv_memory.bytes(), layout, sizes),
        work(1 << 20),
        parallel(2),
        context{parallel, cpu::sequence_kernels(isa), work.bytes()} {
    delta.reset(0);
  }
  Floats delta_memory, kv_memory;
  cpu::DeltaArena delta;
  cpu::KvArena kv;
  Floats work;
  cpu::Parallel parallel;
  cpu::SequenceContext context;
};

// A snapshot with S as given and no past of the convolution, as bytes of the arena's own.
void set_state(Bench& bench, const DeltaShape& d, const std::vector<float>& s,
               const std::vector<float>& conv, std::int64_t position) {
  for (std::int32_t h = 0; h < d.value_heads; ++h) {
    float* to = bench.delta.s(0, 0, h);
    for (std::int64_t k = 0; k < d.key_dim; ++k) {
      for (std::int64_t v = 0; v < d.value_dim; ++v) {
        to[(v / 16 * d.key_dim + k) * 16 + v % 16] =
            s.empty() ? 0.0f : s[at((h * d.key_dim + k) * d.value_dim + v)];
      }
    }
  }
  std::vector<Range> past(1);
  past[0].rows = static_cast<std::int32_t>(position);
  bench.delta.end_step(past);
  const std::int64_t history = d.conv_kernel - 1;
  for (std::int64_t j = 0; !conv.empty() && j < history; ++j) {
    for (std::int64_t c = 0; c < d.channels(); ++c) {
      bench.delta.conv_row(0, 0, position - history + j)[c] = conv[at(c * history + j)];
    }
  }
}

// The golden q and k come before the l2 norm: normed here as the convolution op does it.
struct GdnInputs {
  explicit GdnInputs(const std::string& name) {
    const auto q = gdn().f32(name + ".q"), k = gdn().f32(name + ".k"), v = gdn().f32(name + ".v");
    const auto qs = gdn().shape(name + ".q"), vs = gdn().shape(name + ".v");
    rows = qs[0];
    shape = {static_cast<std::int32_t>(qs[1]), static_cast<std::int32_t>(vs[1]),
             static_cast<std::int32_t>(qs[2]), static_cast<std::int32_t>(vs[2]), 4};
    const auto normed = [&](const float* x, float scale) {
      const float r = num::rsqrt(num::add(num::tree_sum_squares(x, shape.key_dim), 1e-6f));
      for (std::int64_t d = 0; d < shape.key_dim; ++d)
        qkv.push_back(num::mul(num::mul(x[d], r), scale));
    };
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t h = 0; h < shape.key_heads; ++h) {
        normed(q.data() + (t * shape.key_heads + h) * shape.key_dim,
               static_cast<float>(1.0 / std::sqrt(shape.key_dim)));
      }
      for (std::int64_t h = 0; h < shape.key_heads; ++h)
        normed(k.data() + (t * shape.key_heads + h) * shape.key_dim, 1.0f);
      qkv.insert(qkv.end(), v.begin() + t * shape.value_channels(),
                 v.begin() + (t + 1) * shape.value_channels());
    }
  }
  DeltaShape shape{};
  std::int64_t rows = 0;
  Row qkv;
};

// Seen over all lengths: outputs (up to 0.37) 1.5e-7 off by rows and 3.9e-7 by chunks;
// states 4.6e-7 of their largest value.
TEST(SequenceGolden, DeltaRuleByChunksAndByRows) {
  double rows_worst = 0, chunks_worst = 0, state_worst = 0;
  for (const std::string name : {"n1", "n5", "n63", "n64", "n65", "n200"}) {
    for (const std::string& isa : isas_here()) {
      for (const bool chunked : {true, false}) {
        const GdnInputs in(name);
        const DeltaShape& d = in.shape;
        Bench bench({{}, {d}}, {}, isa);
        const auto g = gdn().f32(name + ".g"), beta = gdn().f32(name + ".beta");
        Row y(at(in.rows * d.value_channels()));
        set_state(bench, d, gdn().f32(name + ".state_in"), {}, 0);
        for (std::int64_t row = 0; row < in.rows;) {
          Range r;
          r.section = chunked ? Section::prefill : Section::decode;
          r.position = row;
          r.rows = chunked ? static_cast<std::int32_t>(in.rows) : 1;
          r.keep = bench.delta.cursors().pending(0);
          cpu::delta_rule(bench.context, bench.delta,
                          {{in.qkv.data() + row * d.channels(), d.channels()},
                           {g.data() + row * d.value_heads, d.value_heads},
                           {beta.data() + row * d.value_heads, d.value_heads},
                           0,
                           {&r, 1},
                           {y.data() + row * d.value_channels(), d.value_channels()}});
          bench.delta.end_step({&r, 1});
          row += r.rows;
        }
        double& w = chunked ? chunks_worst : rows_worst;
        w = std::max(w, worst(y, gdn().f32(name + ".out")));
        const auto host = bench.delta.to_host(0, bench.delta.cursors().pending(0), bench.context.kernels);
        const auto want = gdn().f32(name + ".state_out");
        float largest = 0;
        for (const float x : want) largest = std::max(largest, std::fabs(x));
        state_worst = std::max(state_worst, worst(host[0].s, want) / largest);
      }
    }
  }
  EXPECT_LT(rows_worst, 3e-7);
  EXPECT_LT(chunks_worst, 7e-7);
  EXPECT_LT(state_worst, 7e-7);
}

// 24 channels of plain values; q and k heads add the norm, which the golden has not, so all are v.
TEST(SequenceGolden, ConvolutionWithState) {
  for (const std::string name : {"conv.n1", "conv.n2", "conv.n3", "conv.n7"}) {
    const auto x = ops().f32(name + ".x"), w = ops().f32(name + ".weight"),
               state = ops().f32(name + ".state_in");
    const std::int32_t rows = static_cast<std::int32_t>(ops().shape(name + ".x")[0]);
    const DeltaShape d = {1, 1, 1, 24, 4};  // two channels of q and k before the 24
    Bench bench({{}, {d}}, {}, isas_here().back());
    Row wide_x, wide_w(at(2 * 4), 0.5f), wide_state(at(2 * 3), 0.25f), y(at(rows * 26));
    for (std::int64_t t = 0; t < rows; ++t) {
      wide_x.insert(wide_x.end(), {1.0f, 2.0f});
      wide_x.insert(wide_x.end(), x.begin() + t * 24, x.begin() + (t + 1) * 24);
    }
    wide_w.insert(wide_w.end(), w.begin(), w.end());
    wide_state.insert(wide_state.end(), state.begin(), state.end());
    Row taps(wide_w.size());
    cpu::pack_conv_taps(wide_w.data(), 26, 4, taps.data());
    set_state(bench, d, {}, wide_state, 3);
    Range r;
    r.position = 3;
    r.rows = rows;
    cpu::delta_conv(bench.context, bench.delta,
                    {{wide_x.data(), 26}, taps.data(), 0, {&r, 1}, {y.data(), 26}});
    bench.delta.end_step({&r, 1});
    Row out, conv;
    for (std::int64_t t = 0; t < rows; ++t)
      out.insert(out.end(), y.begin() + t * 26 + 2, y.begin() + (t + 1) * 26);
    const double e = worst(out, ops().f64(name + ".out"));
    EXPECT_LT(e, 1e-6);  // seen 7.1e-7 of 4.9
    const auto host = bench.delta.to_host(0, 0, bench.context.kernels);
    conv.assign(host[0].conv.begin() + 2 * 3, host[0].conv.end());
    expect_bits(conv, ops().f32(name + ".state_out"), name + " state");
  }
}

double relative(const Row& got, const std::vector<double>& want) {
  double w = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double e = std::fabs(got[i] - want[i]) / std::fabs(want[i]);
    w = e <= w ? w : e;
  }
  return w;
}

struct Gates {
  Gates(const Golden& from, const std::string& name) {
    const auto a = from.f32(name + ".a"), b = from.f32(name + ".b"),
               dt = from.f32(name + ".dt_bias");
    auto neg = from.f32(name + ".A_log");
    for (float& x : neg) x = static_cast<float>(-std::exp(static_cast<double>(x)));
    const std::int64_t rows = from.shape(name + ".a")[0], h = from.shape(name + ".a")[1];
    Bench bench({}, {}, isas_here().back());
    g.resize(a.size());
    beta.resize(a.size());
    cpu::delta_gates(bench.context, {{a.data(), h},
                                     {b.data(), h},
                                     neg.data(),
                                     dt.data(),
                                     rows,
                                     h,
                                     {g.data(), h},
                                     {beta.data(), h}});
  }
  Row g, beta;
};

// Seen: g 1.9e-7 relative (float32 goldens: 2.4e-7), beta 6.6e-8.
TEST(SequenceGolden, GatesOfFloat64) {
  const Gates got(ops(), "gate");
  EXPECT_LT(relative(got.g, ops().f64("gate.g")), 4e-7);
  EXPECT_LT(worst(got.beta, ops().f64("gate.beta")), 1.2e-7);
}

// In these goldens rows 1 to 3 are not gates of a and b: beta is set to 0, beta to 1, g to 0.
TEST(SequenceGolden, GatesOfTheDeltaRule) {
  for (const std::string name : {"n1", "n5", "n63", "n64", "n65", "n200"}) {
    Gates got(gdn(), name);
    auto g = gdn().f32(name + ".g"), beta = gdn().f32(name + ".beta");
    for (Row* x : {&got.g, &got.beta, &g, &beta}) {
      if (x->size() > 4) x->erase(x->begin() + 4, x->begin() + 16);
    }
    EXPECT_LT(relative(got.g, {g.begin(), g.end()}), 4e-7);
    EXPECT_LT(worst(got.beta, beta), 1.2e-7);
  }
}

Row rope_table(std::int64_t positions, std::int64_t rotary) {
  Row t;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (const bool cosine : {true, false}) {
      for (std::int64_t i = 0; i < rotary / 2; ++i) {
        const double angle =
            static_cast<double>(p) *
            std::pow(1e7, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
        t.push_back(static_cast<float>(cosine ? std::cos(angle) : std::sin(angle)));
      }
    }
  }
  return t;
}

TEST(SequenceGolden, Rotation) {
  for (const std::string name : {"rope.tiny", "rope.real"}) {
    const auto x = ops().f32(name + ".x");
    const auto positions = ops().i32(name + ".pos");
    const std::int32_t dim = static_cast<std::int32_t>(ops().shape(name + ".x")[2]);
    const AttentionShape s = {2, 1, dim};
    const std::int64_t last = *std::max_element(positions.begin(), positions.end());
    Bench bench({{s}, {}}, {.pages = 1}, isas_here().back());
    Row y(x.size());
    const Row kv(at(dim), 0.0f);
    // the table of a position is found by its number: one row a call, all in page 0
    const std::vector<std::int32_t> pages(at(last / 64 + 1), 0);
    const Row table = rope_table(last + 1, dim / 4);
    for (std::size_t t = 0; t < positions.size(); ++t) {
      Range r;
      r.position = positions[t];
      r.rows = 1;
      const std::size_t offset = t * at(2 * dim);
      cpu::qk_norm_rope(bench.context, bench.kv,
                        {{x.data() + offset, 2 * dim},
                         dim,
                         {kv.data(), dim},
                         {kv.data(), dim},
                         nullptr,
                         nullptr,
                         1e-6f,
                         table.data(),
                         last + 1,
                         dim / 4,
                         0,
                         {&r, 1},
                         pages,
                         {y.data() + offset, 2 * dim}});
    }
    const double e = worst(y, ops().f64(name + ".out"));
    EXPECT_LT(e, 4e-7);  // seen 2.4e-7
  }
}

TEST(SequenceGolden, AttentionOfALayer) {
  const auto q = ops().f32("attn.q_proj"), k = ops().f32("attn.k_proj"),
             v = ops().f32("attn.v_proj");
  auto qw = ops().f32("attn.q_norm"), kw = ops().f32("attn.k_norm");
  for (float& w : qw) w += 1.0f;
  for (float& w : kw) w += 1.0f;
  const AttentionShape s = {4, 2, 64};
  const Row table = rope_table(13, 16);
  const std::vector<std::int32_t> pages = {0};
  for (const bool prefill : {true, false}) {
    Bench bench({{s}, {}}, {.pages = 1}, isas_here().back());
    Row rotated(13 * 256), y(13 * 256);
    for (std::int32_t row = 0; row < 13;) {
      Range r;
      r.section = prefill ? Section::prefill : Section::decode;
      r.position = row;
      r.first_row = row;
      r.rows = prefill ? 13 : 1;
      cpu::qk_norm_rope(bench.context, bench.kv,
                        {{q.data(), 512},
                         128,
                         {k.data(), 128},
                         {v.data(), 128},
                         qw.data(),
                         kw.data(),
                         1e-6f,
                         table.data(),
                         13,
                         16,
                         0,
                         {&r, 1},
                         pages,
                         {rotated.data(), 256}});
      cpu::attention(bench.context, bench.kv,
                     {{rotated.data(), 256}, 0.125f, 0, {&r, 1}, pages, {y.data(), 256}});
      row += r.rows;
    }
    for (std::size_t t = 0; t < 13; ++t) {
      for (std::size_t c = 0; c < 256; ++c)
        y[t * 256 + c] *= num::sigmoid(q[t * 512 + c / 64 * 128 + 64 + c % 64]);
    }
    const double e = worst(y, ops().f64("attn.out"));
    EXPECT_LT(e, 7e-7);  // seen 4.0e-7
  }
}

}  // namespace
}  // namespace nibble::test
