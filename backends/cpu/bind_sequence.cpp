// Ops that touch a sequence's state, and those that end a step.
#include <algorithm>

#include "backends/cpu/binder.h"
#include "backends/cpu/ops/sequence_ops.h"
#include "core/numerics/attention_order.h"
#include "core/numerics/delta_order.h"

namespace nibble::cpu {
namespace {

SequenceContext context(const Loaded& l) {
  return {l.parallel, sequence_kernels(isa_name(l.isa)), {l.workspace.data, l.workspace.bytes}};
}

PrefillUnits prefill_units_of(Profile profile) {
  switch (profile) {
    case Profile::sm70: return PrefillUnits::sm70;
    case Profile::sm90:
    case Profile::sm120: return PrefillUnits::sm90;
    default: return PrefillUnits::none;
  }
}

}  // namespace

Binder::Call Binder::call(const DeltaConv& a) {
  const DeltaShape& shape = delta_layer(a.layer, a.shape);
  const View x = f32("x", a.x, shape.channels()), y = rows_like("y", a.y, x, shape.channels());
  expect(x.rows == Rows::tokens, "x", "one row for each token");
  const float* const taps = constant("weight", a.weight, shape.channels() * shape.conv_kernel);
  output_ = a.y;
  section_ = &a.section;
  return [&l = l_, x, y, taps, layer = a.layer, section = a.section](const Step& step) {
    SequenceContext c = context(l);
    delta_conv(c, l.delta,
               {{x.data, x.stride}, taps, layer, step.ranges(section), {y.data, y.stride}});
  };
}

Binder::Call Binder::call(const DeltaGates& a) {
  const View in_a = f32("a", a.a), in_b = rows_like("b", a.b, in_a, in_a.cols);
  const View g = rows_like("g", a.g, in_a, in_a.cols),
             beta = rows_like("beta", a.beta, in_a, in_a.cols);
  const float* const neg_exp_a = constant("neg_exp_a", a.neg_exp_a, in_a.cols);
  const float* const dt_bias = constant("dt_bias", a.dt_bias, in_a.cols);
  output_ = a.g;
  return [&l = l_, in_a, in_b, g, beta, neg_exp_a, dt_bias](const Step& step) {
    SequenceContext c = context(l);
    delta_gates(c, {{in_a.data, in_a.stride},
                    {in_b.data, in_b.stride},
                    neg_exp_a,
                    dt_bias,
                    step.count(in_a.rows),
                    in_a.cols,
                    {g.data, g.stride},
                    {beta.data, beta.stride}});
  };
}

Binder::Call Binder::call(const DeltaRule& a) {
  const DeltaShape& shape = delta_layer(a.layer, a.shape);
  const View qkv = f32("qkv", a.qkv, shape.channels());
  const View g = rows_like("g", a.g, qkv, shape.value_heads);
  const View beta = rows_like("beta", a.beta, qkv, shape.value_heads);
  const View y = rows_like("y", a.y, qkv, shape.value_channels());
  expect(qkv.rows == Rows::tokens, "qkv", "one row for each token");
  output_ = a.y;
  section_ = &a.section;
  const PrefillUnits units = num::delta_on_units(shape) ? prefill_units_of(l_.profile) : PrefillUnits::none;
  return [&l = l_, qkv, g, beta, y, units, layer = a.layer, section = a.section](const Step& step) {
    SequenceContext c = context(l);
    delta_rule(c, l.delta,
               {{qkv.data, qkv.stride},
                {g.data, g.stride},
                {beta.data, beta.stride},
                layer,
                step.ranges(section),
                {y.data, y.stride},
                units});
  };
}

Binder::Call Binder::call(const QkNormRope& a) {
  attention_layer(a.layer, a.shape);
  const std::int64_t dim = a.shape.head_dim, kv = a.shape.kv_heads * dim;
  const View q = f32("q", a.q), k = rows_like("k", a.k, q, kv), v = rows_like("v", a.v, q, kv);
  const View out = rows_like("q_out", a.q_out, q, a.shape.heads * dim);
  expect(q.rows == Rows::tokens, "q", "one row for each token");
  expect(a.q_head_stride >= dim && (a.shape.heads - 1) * a.q_head_stride + dim <= q.cols,
         "q_head_stride", "heads inside the row");
  expect(a.rotary_dim >= 0 && a.rotary_dim <= dim && a.rotary_dim % 2 == 0, "rotary_dim",
         "an even number up to head_dim");
  const float* const q_norm = a.q_norm < 0 ? nullptr : constant("q_norm", a.q_norm, dim);
  const float* const k_norm = a.k_norm < 0 ? nullptr : constant("k_norm", a.k_norm, dim);
  const ConstantView& rope = constant("rope", a.rope);
  expect(rope.shape.size() == 2 && rope.shape[1] == a.rotary_dim, "rope",
         "a table [positions, rotary_dim]");
  const std::int64_t positions = rope.shape[0];
  bound_.limits.attention = true;
  bound_.limits.positions = std::min(bound_.limits.positions, positions);
  output_ = a.q_out;
  return
      [&l = l_, a, q, k, v, out, q_norm, k_norm, positions, table = rope.data,
       bf16_keys = rounded_ && l_.profile != Profile::sm70](const Step& step) {
        SequenceContext c = context(l);
        qk_norm_rope(c, l.kv,
                     {{q.data, q.stride},
                      a.q_head_stride,
                      {k.data, k.stride},
                      {v.data, v.stride},
                      q_norm,
                      k_norm,
                      a.eps,
                      table,
                      positions,
                      a.rotary_dim,
                      a.layer,
                      step.batch.ranges,
                      step.batch.pages,
                      {out.data, out.stride},
                      bf16_keys});
      };
}

Binder::Call Binder::call(const Attention& a) {
  attention_layer(a.layer, a.shape);
  const std::int64_t cols = std::int64_t{a.shape.heads} * a.shape.head_dim;
  const View q = f32("q", a.q, cols), y = rows_like("y", a.y, q, cols);
  expect(q.rows == Rows::tokens, "q", "one row for each token");
  bound_.limits.attention = true;
  output_ = a.y;
  section_ = &a.section;
  const PrefillUnits of_profile = prefill_units_of(l_.profile);
  const bool sm70 = of_profile == PrefillUnits::sm70;
  const bool units = num::attention_on_units(a.shape) &&
                     (sm70 ? a.section == Section::prefill : of_profile == PrefillUnits::sm90);
  return [&l = l_, q, y, units, sm70, scale = a.scale, layer = a.layer, section = a.section](const Step& step) {
    SequenceContext c = context(l);
    attention(c, l.kv,
              {{q.data, q.stride},
               scale,
               layer,
               step.ranges(section),
               step.batch.pages,
               {y.data, y.stride},
               units,
               sm70});
  };
}

Binder::Call Binder::call(const GatedAttention& a) {
  Attention part = a.attention;
  expect(part.y == a.gate.y && a.gate.x == a.gate.y, "y", "the output of attention and of its gate");
  std::vector<Call> calls;
  for (const Section section : {Section::decode, Section::verify, Section::prefill}) {
    part.section = section;
    if (program_.cls.has(section)) calls.push_back(call(part));
  }
  if (rounded_) {  // as the op alone would be
    const View y = f32("y", a.gate.y);
    calls.push_back([&l = l_, y, e = exponents(a.gate.y)](const Step& step) {
      const Out rows{y.data, y.stride};
      e == nullptr ? round_bf16(l.isa, l.parallel, step.count(y.rows), y.cols, rows)
                   : round_f16(l.isa, l.parallel, step.count(y.rows), y.cols, rows, e);
    });
  }
  calls.push_back(call(a.gate));
  section_ = nullptr;
  return [calls = std::move(calls)](const Step& step) {
    for (const Call& one : calls) one(step);
  };
}

Binder::Call Binder::call(const Sample& a) {
  const View logits = f32("logits", a.logits, l_.sizes.vocab);
  expect(logits.rows == Rows::outputs, "logits", "one row for each output");
  bound_.limits.samples = true;
  return [&l = l_, logits](const Step& step) {
    l.sample_rows.clear();
    std::size_t range = 0;
    for (std::size_t i = 0; i < step.batch.output_rows.size(); ++i) {
      const std::int32_t row = step.batch.output_rows[i];
      while (row >= step.batch.ranges[range].first_row + step.batch.ranges[range].rows) ++range;
      const Range& r = step.batch.ranges[range];
      const auto behind = static_cast<std::size_t>(row + 1);
      const SampleParams& params = step.batch.sampling[i];
      l.sample_rows.push_back(
          {logits.data + static_cast<std::int64_t>(i) * logits.stride, l.counts.row(params.slot),
           step.tokens.subspan(behind, static_cast<std::size_t>(r.first_row + r.rows) - behind),
           &params});
    }
    sample(l.isa, l.parallel, l.sample_rows, logits.cols, l.workspace.data,
           l.workspace.sample_lanes, step.out.tokens.data());
  };
}

Binder::Call Binder::call(const TokenLogprob& a) {
  const View logits = f32("logits", a.logits, l_.sizes.vocab);
  expect(logits.rows == Rows::outputs, "logits", "one row for each output");
  bound_.limits.scores = true;
  return [&l = l_, logits](const Step& step) {
    token_logprob(l.isa, l.parallel, logits.data, logits.stride, logits.cols, step.batch.targets,
                  step.out.logprobs.data());
  };
}

}  // namespace nibble::cpu
