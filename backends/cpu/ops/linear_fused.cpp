#include "backends/cpu/ops/linear_fused.h"

#include <algorithm>

#include "backends/cpu/kernels/linear_fused.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

const LinearKernels& plain_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, linear_kernels());
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Whole groups, and a cache line off a power of two.
std::int64_t operand_stride(std::int64_t cols) {
  return ceil_div(cols, kFusedGroup) * kFusedGroup + 16;
}

// Rows [first, first + rows) of a block of operands.
FusedBlock rows_of(FusedBlock f, std::int64_t first, std::int64_t rows) {
  LinearBlock& b = f.linear;
  b.x += first * b.x_stride;
  f.exponents += first * b.x_stride;
  if (b.group_scale != nullptr) b.group_scale += first * b.group_stride;
  if (b.row_scale != nullptr) b.row_scale += first;
  b.y += first * b.y_stride;
  b.rows = rows;
  return f;
}

void run_block(const FusedKernels& kernels, Parallel& parallel, const FusedBlock& all) {
  const PackedWeight& w = *all.linear.weight;
  const std::int64_t rows = all.linear.rows;
  // A panel's weights are decoded for each piece: smaller ones only where panels are too few.
  const std::int64_t blocks = std::max(
      ceil_div(rows, kFusedRows),
      std::clamp<std::int64_t>(4 * parallel.threads() / w.panels, 1, ceil_div(rows, 8)));
  const std::int64_t work = w.cols * kPanelRows * ceil_div(rows, blocks);
  parallel(w.panels * blocks, std::max<std::int64_t>(1, 65536 / work),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               const std::int64_t block = i % blocks, panel = i / blocks;
               const std::int64_t first = rows * block / blocks;
               kernels.sm90(rows_of(all, first, rows * (block + 1) / blocks - first), panel,
                            panel + 1);
             }
           });
}

}  // namespace

const FusedKernels& fused_kernels(Isa isa) {
  NIBBLE_PICK_ISA(isa, fused_kernels());
}

num::Segments fused_segments(const PackedWeight& weight, const ActivationFormat& format) {
  return num::linear_segments(weight.rows, weight.cols,
                              weight.block != nullptr || format.kind == Kind::fp8_token_group128);
}

std::int64_t linear_fused_workspace_bytes(std::int64_t max_rows, std::int64_t cols) {
  return std::min(max_rows, kFusedOperandRows) * operand_stride(cols) *
         static_cast<std::int64_t>(sizeof(float) + sizeof(std::int32_t));
}

void linear_fused(Isa isa, Parallel& parallel, const LinearArgs& a) {
  if (a.rows <= 0) return;
  const FusedKernels& kernels = fused_kernels(isa);
  const LinearKernels& plain = plain_of(isa);
  const std::int64_t cols = a.weight->cols, stride = operand_stride(cols);
  const std::int64_t slab = std::min(a.rows, kFusedOperandRows);
  auto* const x = reinterpret_cast<float*>(a.workspace);
  auto* const exponents = reinterpret_cast<std::int32_t*>(x + slab * stride);
  const auto* byte_scales = static_cast<const std::uint8_t*>(a.scales);
  const auto* scales = static_cast<const float*>(a.scales);

  for (std::int64_t first = 0; first < a.rows; first += kFusedOperandRows) {
    const std::int64_t rows = std::min(kFusedOperandRows, a.rows - first);
    FusedBlock all{{a.weight, x, stride, rows, nullptr, 0, nullptr, 1.0f,
                    a.y + first * a.y_stride, a.y_stride},
                   exponents,
                   fused_segments(*a.weight, a.format).length};
    LinearBlock& b = all.linear;
    if (a.format.kind == Kind::fp8_token_group128) {
      b.group_scale = scales + first * a.scale_stride;
      b.group_stride = a.scale_stride;
    }
    if (a.format.kind == Kind::fp8_token) b.row_scale = scales + first;
    if (a.format.kind == Kind::nvfp4_static || a.format.kind == Kind::fp8_tensor_static) {
      b.tensor_scale = a.format.scale;
    }
    parallel(rows, std::max<std::int64_t>(1, 16384 / cols),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t r = begin; r < end; ++r) {
                 float* const to = x + r * stride;
                 const float* from = to;
                 if (a.format.kind == Kind::none) {
                   from = a.x + (first + r) * a.x_stride;
                 } else if (const std::uint8_t* codes = a.codes + (first + r) * a.x_stride;
                            a.format.kind == Kind::nvfp4_static) {
                   plain.decode_nvfp4(codes, byte_scales + (first + r) * a.scale_stride, cols, to);
                 } else {
                   plain.decode_fp8(codes, cols, to);
                 }
                 kernels.operand(from, cols, to, exponents + r * stride);
               }
             });
    run_block(kernels, parallel, all);
  }
}

}  // namespace nibble::cpu
