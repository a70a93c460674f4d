#include "backends/cpu/ops/linear.h"

#include <algorithm>

#include "backends/cpu/kernels/linear.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

const LinearKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, linear_kernels());
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Rows of the workspace lie a cache line apart from a power of two, so that a tile's rows do not
// fall on the same cache sets.
std::int64_t operand_stride(std::int64_t cols) {
  return ceil_div(cols, 16) * 16 + 16;
}

// `x` is the operand of row `first`.
LinearBlock rows_of(LinearBlock b, std::int64_t first, std::int64_t rows, const float* x) {
  b.x = x;
  if (b.group_scale != nullptr) b.group_scale += first * b.group_stride;
  if (b.row_scale != nullptr) b.row_scale += first;
  b.y += first * b.y_stride;
  b.rows = rows;
  return b;
}

void run_block(const LinearKernels& kernels, Parallel& parallel, const LinearBlock& all) {
  const PackedWeight& w = *all.weight;
  const std::int64_t least = std::max<std::int64_t>(1, 65536 / (w.cols * kPanelRows));
  if (all.rows <= kFewRows) {
    parallel(w.panels, least,
             [&](std::int64_t begin, std::int64_t end) { kernels.few_rows(all, begin, end); });
    return;
  }
  // Enough pieces for every thread: fewer panels at a time first, then fewer rows.
  const std::int64_t wanted = 4 * parallel.threads();
  std::int64_t blocks = ceil_div(all.rows, kBlockRows);
  const std::int64_t group = std::clamp<std::int64_t>(w.panels * blocks / wanted, 1, kGroupPanels);
  const std::int64_t groups = ceil_div(w.panels, group);
  if (groups * blocks < wanted) {
    blocks = std::clamp<std::int64_t>(wanted / groups, blocks, ceil_div(all.rows, 24));
  }
  parallel(groups * blocks, std::max<std::int64_t>(1, least / (group * ceil_div(all.rows, blocks))),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               const std::int64_t block = i % blocks, first = i / blocks * group;
               const std::int64_t row = all.rows * block / blocks;
               const std::int64_t rows = all.rows * (block + 1) / blocks - row;
               kernels.many_rows(rows_of(all, row, rows, all.x + row * all.x_stride), first,
                                 std::min(first + group, w.panels));
             }
           });
}

}  // namespace

std::int64_t linear_workspace_bytes(std::int64_t max_rows, std::int64_t cols) {
  return std::min(max_rows, kOperandRows) * operand_stride(cols) *
         static_cast<std::int64_t>(sizeof(float));
}

void linear(Isa isa, Parallel& parallel, const LinearArgs& a) {
  if (a.rows <= 0) return;
  const LinearKernels& kernels = kernels_of(isa);
  const std::int64_t cols = a.weight->cols;
  LinearBlock all{a.weight, a.x, a.x_stride, a.rows, nullptr, 0, nullptr, 1.0f, a.y, a.y_stride};
  if (a.format.kind == Kind::none) return run_block(kernels, parallel, all);

  const auto* byte_scales = static_cast<const std::uint8_t*>(a.scales);
  const auto* scales = static_cast<const float*>(a.scales);
  auto* x = reinterpret_cast<float*>(a.workspace);
  all.x_stride = operand_stride(cols);
  all.group_stride = a.scale_stride;
  if (a.format.kind == Kind::fp8_token_group128) all.group_scale = scales;
  if (a.format.kind == Kind::fp8_token) all.row_scale = scales;
  if (a.format.kind == Kind::nvfp4_static || a.format.kind == Kind::fp8_tensor_static) {
    all.tensor_scale = a.format.scale;
  }
  for (std::int64_t first = 0; first < a.rows; first += kOperandRows) {
    const std::int64_t rows = std::min(kOperandRows, a.rows - first);
    parallel(
        rows, std::max<std::int64_t>(1, 32768 / cols), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            const std::uint8_t* codes = a.codes + (first + r) * a.x_stride;
            float* out = x + r * all.x_stride;
            if (a.format.kind == Kind::nvfp4_static) {
              kernels.decode_nvfp4(codes, byte_scales + (first + r) * a.scale_stride, cols, out);
            } else {
              kernels.decode_fp8(codes, cols, out);
            }
          }
        });
    run_block(kernels, parallel, rows_of(all, first, rows, x));
  }
}

}  // namespace nibble::cpu
