#include "backends/cpu/ops/linear.h"

#include <algorithm>

#include "backends/cpu/ops/linear_slab.h"

namespace nibble::cpu {
namespace {

// Rows of the workspace lie a cache line apart from a power of two, so that a tile's rows do not
// fall on the same cache sets.
std::int64_t operand_stride(std::int64_t cols) {
  return ceil_div(cols, 16) * 16 + 16;
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
               kernels.many_rows(rows_of(all, row, rows), first,
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
  const LinearKernels& kernels = linear_kernels_of(isa);
  const std::int64_t cols = a.weight->cols;
  if (a.format.kind == ActivationFormat::Kind::none) {
    LinearBlock all = slab_of(a, 0, a.rows);
    all.x = a.x;
    all.x_stride = a.x_stride;
    return run_block(kernels, parallel, all);
  }
  auto* const x = reinterpret_cast<float*>(a.workspace);
  for (std::int64_t first = 0; first < a.rows; first += kOperandRows) {
    LinearBlock slab = slab_of(a, first, std::min(kOperandRows, a.rows - first));
    slab.x = x;
    slab.x_stride = operand_stride(cols);
    parallel(slab.rows, std::max<std::int64_t>(1, 32768 / cols), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) float_row(kernels, a, first + r, x + r * slab.x_stride);
    });
    run_block(kernels, parallel, slab);
  }
}

}  // namespace nibble::cpu
