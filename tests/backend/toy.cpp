#include "tests/backend/toy.h"

#include <cmath>
#include <memory>
#include <random>

namespace nibble::test {
namespace {

std::vector<float> random_values(std::size_t n, float middle, float width, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(middle - width, middle + width);
  std::vector<float> values(n);
  for (float& v : values) v = uniform(random);
  return values;
}

struct Parts {
  const ToySizes& sizes;
  ModelSpec& spec;
  std::uint32_t seed;

  WeightId weight(const std::string& name, std::int64_t rows, std::int64_t cols) {
    spec.weights.push_back(random_weight(name, rows, cols, seed++));
    return static_cast<WeightId>(spec.weights.size() - 1);
  }
  ConstantId constant(const std::string& name, std::vector<std::int64_t> shape, float middle,
                      float width) {
    std::size_t n = 1;
    for (const std::int64_t d : shape) n *= static_cast<std::size_t>(d);
    spec.constants.push_back({name, std::move(shape), random_values(n, middle, width, seed++)});
    return static_cast<ConstantId>(spec.constants.size() - 1);
  }
};

struct ToyIds {
  WeightId embed, qkv, a, b, z, delta_out, q, k, v, o, gate, up, down;
  ConstantId norm[4], conv, neg_exp_a, dt_bias, gated, q_norm, k_norm, rope;
};

ToyIds load(Parts parts) {
  const ToySizes& s = parts.sizes;
  ToyIds id{};
  id.embed = parts.weight("embed", s.vocab, s.hidden);
  for (ConstantId& n : id.norm) n = parts.constant("norm", {s.hidden}, 1, 0.2f);
  id.qkv = parts.weight("qkv", s.delta.channels(), s.hidden);
  id.a = parts.weight("a", s.delta.value_heads, s.hidden);
  id.b = parts.weight("b", s.delta.value_heads, s.hidden);
  id.z = parts.weight("z", s.delta.value_channels(), s.hidden);
  id.delta_out = parts.weight("delta_out", s.hidden, s.delta.value_channels());
  id.conv = parts.constant("conv", {s.delta.channels(), s.delta.conv_kernel}, 0, 0.5f);
  id.neg_exp_a = parts.constant("neg_exp_a", {s.delta.value_heads}, -0.5f, 0.4f);
  id.dt_bias = parts.constant("dt_bias", {s.delta.value_heads}, 0, 0.5f);
  id.gated = parts.constant("gated", {s.delta.value_dim}, 1, 0.2f);
  const std::int64_t heads = s.attention.heads, dim = s.attention.head_dim;
  const std::int64_t kv = s.attention.kv_heads * dim;
  id.q = parts.weight("q", 2 * heads * dim, s.hidden);
  id.k = parts.weight("k", kv, s.hidden);
  id.v = parts.weight("v", kv, s.hidden);
  id.o = parts.weight("o", s.hidden, heads * dim);
  id.q_norm = parts.constant("q_norm", {dim}, 1, 0.2f);
  id.k_norm = parts.constant("k_norm", {dim}, 1, 0.2f);
  id.rope = parts.constant("rope", {s.positions, dim / 2}, 0, 1);
  std::vector<float>& table = parts.spec.constants.back().data;
  for (std::int64_t p = 0; p < s.positions; ++p) {
    for (std::int64_t i = 0; i < dim / 4; ++i) {
      const double angle = static_cast<double>(p) *
                           std::pow(1e4, -4.0 * static_cast<double>(i) / static_cast<double>(dim));
      table[static_cast<std::size_t>(p * dim / 2 + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<std::size_t>(p * dim / 2 + dim / 4 + i)] =
          static_cast<float>(std::sin(angle));
    }
  }
  id.gate = parts.weight("gate", s.inner, s.hidden);
  id.up = parts.weight("up", s.inner, s.hidden);
  id.down = parts.weight("down", s.hidden, s.inner);
  return id;
}

constexpr Section kSections[] = {Section::decode, Section::verify, Section::prefill};

Tensor delta_layer(ProgramBuilder& p, const ToySizes& s, const ToyIds& id, Tensor x) {
  const DeltaShape& shape = s.delta;
  const Tensor raw = p.linear("delta.qkv", x, id.qkv, shape.channels());
  const Tensor a = p.linear("delta.a", x, id.a, shape.value_heads);
  const Tensor b = p.linear("delta.b", x, id.b, shape.value_heads);
  const Tensor z = p.linear("delta.z", x, id.z, shape.value_channels());
  const Tensor qkv = p.buffer(Rows::tokens, shape.channels());
  const Tensor g = p.buffer(Rows::tokens, shape.value_heads);
  const Tensor beta = p.buffer(Rows::tokens, shape.value_heads);
  const Tensor y = p.buffer(Rows::tokens, shape.value_channels());
  const Tensor normed = p.buffer(Rows::tokens, shape.value_channels());
  p.op("delta.gates", DeltaGates{a, b, id.neg_exp_a, id.dt_bias, g, beta});
  for (const Section section : kSections) {
    if (!p.cls().has(section)) continue;
    p.op("delta.conv", DeltaConv{raw, id.conv, shape, 0, section, qkv});
    p.op("delta.rule", DeltaRule{qkv, g, beta, shape, 0, section, y});
  }
  p.op("delta.norm", GatedRmsNorm{y, z, id.gated, shape.value_dim, 1e-6f, normed});
  return p.linear("delta.out", normed, id.delta_out, s.hidden);
}

Tensor attention_layer(ProgramBuilder& p, const ToySizes& s, const ToyIds& id, Tensor x) {
  const AttentionShape& shape = s.attention;
  const std::int64_t dim = shape.head_dim, q_cols = shape.heads * dim, kv = shape.kv_heads * dim;
  const Tensor q = p.linear("attn.q", x, id.q, 2 * q_cols);  // per head: query, then gate
  const Tensor k = p.linear("attn.k", x, id.k, kv);
  const Tensor v = p.linear("attn.v", x, id.v, kv);
  const Tensor turned = p.buffer(Rows::tokens, q_cols);
  const Tensor y = p.buffer(Rows::tokens, q_cols);
  const Tensor gated = p.buffer(Rows::tokens, q_cols);
  p.op("attn.rope", QkNormRope{q, 2 * dim, k, v, id.q_norm, id.k_norm, 1e-6f, id.rope,
                               shape.head_dim / 2, shape, 0, turned});
  for (const Section section : kSections) {
    if (!p.cls().has(section)) continue;
    p.op("attn.core",
         Attention{turned, shape, 1 / std::sqrt(static_cast<float>(dim)), 0, section, y});
  }
  const Tensor gate = q.slice(dim, q.cols - dim);
  p.op("attn.gate", SigmoidGate{y, gate, shape.heads, shape.head_dim, 2 * dim, gated});
  return p.linear("attn.o", gated, id.o, s.hidden);
}

Program toy_program(const ToySizes& s, const ToyIds& id, ProgramClass cls) {
  ProgramBuilder p(cls);
  Tensor x = p.buffer(Rows::tokens, s.hidden);
  p.op("embed", Embed{id.embed, x});
  if (s.has_delta)
    x = p.add("delta.add", x, delta_layer(p, s, id, p.norm("delta.in", x, id.norm[0])));
  if (s.has_attention) {
    x = p.add("attn.add", x, attention_layer(p, s, id, p.norm("attn.in", x, id.norm[1])));
  }
  const Tensor h = p.norm("mlp.in", x, id.norm[2]);
  const Tensor gate = p.linear("mlp.gate", h, id.gate, s.inner);
  const Tensor up = p.linear("mlp.up", h, id.up, s.inner);
  const Tensor inner = p.buffer(Rows::tokens, s.inner);
  p.op("mlp.act", SwiGlu{gate, up, inner});
  x = p.add("mlp.add", x, p.linear("mlp.down", inner, id.down, s.hidden));
  const Tensor last = p.buffer(Rows::outputs, s.hidden);
  p.op("last", GatherRows{x, last});
  const Tensor logits = p.linear("lm_head", p.norm("norm", last, id.norm[3]), id.embed, s.vocab);
  if (cls.kind == ProgramClass::Kind::score) {
    p.op("logprob", TokenLogprob{logits});
  } else {
    p.op("sample", Sample{logits});
  }
  Program program = p.take();
  program.logits = logits;
  return program;
}

}  // namespace

Tensor ProgramBuilder::buffer(Rows rows, std::int64_t cols, DType dtype) {
  Buffer b;
  b.rows = rows;
  b.cols = cols;
  b.dtype = dtype;
  b.bytes = program_.rows_of(rows) * cols * dtype_bits(dtype) / 8;
  b.offset = program_.scratch_bytes;
  program_.scratch_bytes += (b.bytes + 63) / 64 * 64;
  program_.buffers.push_back(b);
  Tensor t;
  t.buffer = static_cast<std::int32_t>(program_.buffers.size() - 1);
  t.dtype = dtype;
  t.rows = rows;
  t.cols = t.stride = cols;
  return t;
}

Tensor ProgramBuilder::linear(const std::string& name, Tensor x, WeightId weight, std::int64_t n) {
  const Tensor y = buffer(x.rows, n);
  op(name, Linear{x, {}, {}, weight, y});
  return y;
}

Tensor ProgramBuilder::norm(const std::string& name, Tensor x, ConstantId weight) {
  const Tensor y = buffer(x.rows, x.cols);
  op(name, RmsNorm{x, weight, 1e-6f, y});
  return y;
}

Tensor ProgramBuilder::add(const std::string& name, Tensor a, Tensor b) {
  const Tensor y = buffer(a.rows, a.cols);
  op(name, Add{a, b, y});
  return y;
}

Weight random_weight(const std::string& name, std::int64_t rows, std::int64_t cols,
                     std::uint32_t seed) {
  Weight w;
  w.name = name;
  w.rows = rows;
  w.cols = cols;
  const auto data = std::make_shared<std::vector<float>>(
      random_values(static_cast<std::size_t>(rows * cols), 0, 0.3f, seed));
  w.codes = std::as_bytes(std::span(*data));
  w.owner = data;
  return w;
}

ModelSpec toy_model(const ToySizes& sizes, std::uint32_t seed) {
  ModelSpec spec;
  const ToyIds id = load({sizes, spec, seed * 1000});
  if (sizes.has_delta) spec.state.delta.push_back(sizes.delta);
  if (sizes.has_attention) spec.state.attention.push_back(sizes.attention);
  using Kind = ProgramClass::Kind;
  spec.programs.push_back(toy_program(sizes, id, {Kind::decode, sizes.slots, sizes.slots}));
  const std::int64_t verify = static_cast<std::int64_t>(sizes.slots) * sizes.records;
  spec.programs.push_back(toy_program(sizes, id, {Kind::verify, verify, verify}));
  spec.programs.push_back(toy_program(sizes, id, {Kind::mixed, sizes.step_rows, sizes.step_rows}));
  spec.programs.push_back(toy_program(sizes, id, {Kind::score, sizes.step_rows, sizes.step_rows}));
  return spec;
}

StateSizes toy_state(const ToySizes& sizes) {
  return {sizes.slots, sizes.has_attention ? sizes.pages : 0, sizes.records, sizes.vocab};
}

void BatchBuilder::add(Section section, Sequence& s, const std::vector<std::int32_t>& tokens,
                       std::size_t outputs_from, std::int32_t keep) {
  Range r;
  r.section = section;
  r.slot = s.slot;
  r.first_row = static_cast<std::int32_t>(batch.rows());
  r.rows = static_cast<std::int32_t>(tokens.size());
  r.keep = keep < 0 ? s.pending : keep;
  const auto dropped = s.tokens.end() - (s.pending - r.keep);
  for (auto token = dropped; token != s.tokens.end(); ++token) {
    batch.taken_back.push_back({s.slot, *token});
  }
  s.tokens.erase(dropped, s.tokens.end());
  s.length -= s.pending - r.keep;
  r.position = s.length;
  r.first_page = static_cast<std::int32_t>(batch.pages.size());
  batch.pages.insert(batch.pages.end(), s.pages.begin(), s.pages.end());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i < outputs_from) continue;
    batch.output_rows.push_back(r.first_row + static_cast<std::int32_t>(i));
    SampleParams params = s.sampling;
    params.slot = s.slot;
    params.position = r.position + static_cast<std::int64_t>(i) + 1;
    batch.sampling.push_back(params);
  }
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
  batch.ranges.push_back(r);
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.length += r.rows;
  s.pending = section == Section::prefill ? 0 : r.rows;
}

std::vector<std::vector<float>> run_for_logits(Backend& backend, std::size_t program,
                                               const Batch& batch, StepOutput& out) {
  std::vector<std::vector<float>> rows;
  backend.run(program, batch, out,
              [&](const Op& op, std::int64_t n, std::int64_t cols, std::span<const float> data) {
                if (op.name != "lm_head") return;
                for (std::int64_t r = 0; r < n; ++r) {
                  rows.emplace_back(data.begin() + r * cols, data.begin() + (r + 1) * cols);
                }
              });
  return rows;
}

}  // namespace nibble::test
