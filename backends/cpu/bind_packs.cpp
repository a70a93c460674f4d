// Ops that do the work of two, those that pack what they make among them.
#include "backends/cpu/binder.h"

namespace nibble::cpu {

PackArgs Binder::pack_args(const Pack& pack, const Tensor& y, std::int64_t cols, Rows rows) const {
  expect_equal("y columns", cols, y.cols);
  expect(y.rows == rows, "y", "as many rows as the input");
  PackArgs args;
  args.to = quantize_args(pack.format, pack.codes, pack.scales, cols, rows);
  args.operand = operand_type(l_.profile);
  args.workspace = l_.workspace.data;
  if (y.valid()) {
    const View v = f32("y", y, cols);
    args.y = {v.data, v.stride};
    args.exponents = exponents(y);
    expect(l_.profile != Profile::sm70 || args.exponents != nullptr, "y", "rows of f16");
  }
  return args;
}

Binder::Call Binder::call(const Packed<RmsNorm>& a) {
  const View x = f32("x", a.op.x);
  const float* const w = constant("weight", a.op.weight, x.cols);
  const PackArgs args = pack_args(a.pack, a.op.y, x.cols, x.rows);
  output_ = a.pack.codes;
  return [&l = l_, x, w, eps = a.op.eps, args](const Step& step) {
    PackArgs now = args;
    now.to.rows = step.count(x.rows);
    rms_norm_pack(l.isa, l.parallel, {x.data, x.stride}, w, eps, now);
  };
}

Binder::Call Binder::call(const Packed<GatedRmsNorm>& a) {
  const View x = f32("x", a.op.x), z = rows_like("z", a.op.z, x, x.cols);
  const std::int64_t group = a.op.group;
  expect(group > 0 && x.cols % group == 0, "group", "a divisor of the columns");
  const float* const w = constant("weight", a.op.weight, group);
  const PackArgs args = pack_args(a.pack, a.op.y, x.cols, x.rows);
  output_ = a.pack.codes;
  return [&l = l_, x, z, w, group, eps = a.op.eps, args](const Step& step) {
    PackArgs now = args;
    now.to.rows = step.count(x.rows);
    gated_rms_norm_pack(l.isa, l.parallel, group, {x.data, x.stride}, {z.data, z.stride}, w, eps,
                        now);
  };
}

Binder::Call Binder::call(const Packed<SwiGlu>& a) {
  const View gate = f32("gate", a.op.gate), up = rows_like("up", a.op.up, gate, gate.cols);
  const PackArgs args = pack_args(a.pack, a.op.y, gate.cols, gate.rows);
  output_ = a.pack.codes;
  return [&l = l_, gate, up, args](const Step& step) {
    PackArgs now = args;
    now.to.rows = step.count(gate.rows);
    swiglu_pack(l.isa, l.parallel, {gate.data, gate.stride}, {up.data, up.stride}, now);
  };
}

SumArgs Binder::sum_args(const Add& a) const {
  const View in_a = f32("a", a.a), in_b = rows_like("b", a.b, in_a, in_a.cols), sum = rows_like("sum", a.y, in_a, in_a.cols);
  return {{in_a.data, in_a.stride}, {in_b.data, in_b.stride}, {sum.data, sum.stride}};
}

Binder::Call Binder::call(const AddRmsNorm& a) {
  const SumArgs sum = sum_args(a.add);
  const View x = f32("x", a.norm.x), y = rows_like("y", a.norm.y, x, x.cols);
  expect(a.norm.x == a.add.y, "x", "the sum");
  const float* const w = constant("weight", a.norm.weight, x.cols);
  output_ = a.norm.y;
  return [&l = l_, sum, x, y, w, eps = a.norm.eps](const Step& step) {
    add_rms_norm(l.isa, l.parallel, step.count(x.rows), x.cols, sum, w, eps, {y.data, y.stride});
  };
}

Binder::Call Binder::call(const Packed<AddRmsNorm>& a) {
  const SumArgs sum = sum_args(a.op.add);
  const RmsNorm& norm = a.op.norm;
  const View x = f32("x", norm.x);
  expect(norm.x == a.op.add.y, "x", "the sum");
  const float* const w = constant("weight", norm.weight, x.cols);
  const PackArgs args = pack_args(a.pack, norm.y, x.cols, x.rows);
  output_ = a.pack.codes;
  return [&l = l_, sum, rows = x.rows, w, eps = norm.eps, args](const Step& step) {
    PackArgs now = args;
    now.to.rows = step.count(rows);
    add_rms_norm_pack(l.isa, l.parallel, sum, w, eps, now);
  };
}

// DeviceInfo::fusions offers neither.
Binder::Call Binder::call(const LinearSwiGlu&) { fail("expected linear layers and SwiGLU one by one"); }
Binder::Call Binder::call(const DeltaNet&) { fail("expected the ops of a delta net one by one"); }

}  // namespace nibble::cpu
