// Ops that pack what they make.
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

// DeviceInfo::fusions offers neither.
Binder::Call Binder::call(const LinearSwiGlu&) { fail("expected linear layers and SwiGLU one by one"); }
Binder::Call Binder::call(const DeltaNet&) { fail("expected the ops of a delta net one by one"); }

}  // namespace nibble::cpu
