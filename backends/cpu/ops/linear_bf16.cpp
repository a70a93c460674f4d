#include "backends/cpu/ops/linear_bf16.h"

#include <algorithm>

#include "backends/cpu/kernels/linear_bf16.h"
#include "backends/cpu/ops/linear_slab.h"
#include "backends/cpu/ops/work.h"
#include "core/numerics/bf16_order.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

const Bf16Kernels& fma_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, bf16_fma());
}
const Bf16Kernels& table_of(const Kernels& kernels) {
#if defined(NIBBLE_HAS_amx)
  if (kernels.unit == Bf16Unit::amx) return amx::bf16_unit();
#endif
#if defined(NIBBLE_HAS_avx512_bf16)
  if (kernels.unit == Bf16Unit::avx512_bf16) return avx512_bf16::bf16_unit();
#endif
  return fma_of(kernels.isa);
}

std::int64_t round64(std::int64_t bytes) {
  return ceil_div(bytes, 64) * 64;
}

// Whole blocks, and a cache line off a power of two, so that a tile's rows do not fall on the same cache sets.
std::int64_t row_bytes(const Bf16Kernels& k, std::int64_t cols) {
  return ceil_div(cols, num::kBf16Block) * num::kBf16Block * k.element_bytes + 64;
}
std::int64_t operand_bytes(const Bf16Kernels& k, std::int64_t rows, std::int64_t cols) {
  return round64(ceil_div(rows, k.tile_rows) * k.tile_rows * row_bytes(k, cols));
}

// Quantised rows become float32 on their way, in a buffer of each thread.
std::int64_t thread_bytes(const Bf16Kernels& k, std::int64_t cols) {
  return round64(std::max<std::int64_t>(k.scratch_bytes, cols * static_cast<std::int64_t>(sizeof(float))));
}

void make_operands(const LinearKernels& plain, const Bf16Kernels& k, Parallel& parallel, const LinearArgs& a,
                   std::int64_t first, std::int64_t rows, std::byte* to, std::byte* scratch) {
  const std::int64_t cols = a.weight->cols, bytes = row_bytes(k, cols);
  const std::int64_t piece = std::max<std::int64_t>(1, 32768 / cols);
  for_each_item(parallel, ceil_div(rows, piece), parallel.threads(), [&](std::int64_t item, std::int64_t worker) {
    auto* const wide = reinterpret_cast<float*>(scratch + worker * thread_bytes(k, cols));
    const std::int64_t end = std::min(rows, (item + 1) * piece);
    for (std::int64_t r = item * piece; r < end; ++r) {
      k.operand(float_row(plain, a, first + r, wide), cols, r, bytes, to);
    }
  });
}

Bf16Block rows_of(Bf16Block b, std::int64_t first, std::int64_t rows) {
  b.linear = rows_of(b.linear, first, rows);
  b.x += first * b.x_bytes;
  return b;
}

void run_grid(const Bf16Kernels& k, Parallel& parallel, const Bf16Block& all, std::byte* scratch) {
  const PackedWeight& w = *all.linear.weight;
  const std::int64_t rows = all.linear.rows, threads = parallel.threads(), wanted = 4 * threads;
  std::int64_t blocks = ceil_div(rows, k.block_rows), group = k.group_panels, calls = 1;
  if (rows < k.tile_rows || rows <= 4) {
    // A stream of weights: pieces that are worth handing over.
    calls = std::clamp<std::int64_t>(w.panels / (8 * threads * group), 1, 16);
  } else if (ceil_div(w.panels, group) * blocks < wanted) {
    // Enough pieces for every thread: fewer panels at a time first, then fewer rows.
    group = std::clamp<std::int64_t>(w.panels * blocks / wanted, std::min<std::int64_t>(4, group), group);
    const std::int64_t groups = ceil_div(w.panels, group), least = std::max<std::int64_t>(2 * k.tile_rows, 24);
    if (groups * blocks < wanted) blocks = std::clamp<std::int64_t>(wanted / groups, blocks, ceil_div(rows, least));
  }
  const std::int64_t per_block = ceil_div(ceil_div(rows, blocks), k.tile_rows) * k.tile_rows;
  blocks = ceil_div(rows, per_block);
  const std::int64_t item_panels = group * calls, pieces = ceil_div(w.panels, item_panels);
  const std::int64_t own = thread_bytes(k, w.cols);
  for_each_item(parallel, pieces * blocks, threads, [&](std::int64_t item, std::int64_t worker) {
    const std::int64_t block = item % blocks, first = item / blocks * item_panels;
    const std::int64_t row = block * per_block, last = std::min(first + item_panels, w.panels);
    const Bf16Block part = rows_of(all, row, std::min(per_block, rows - row));
    for (std::int64_t p = first; p < last; p += group) {
      k.rows(part, p, std::min(p + group, last), scratch + worker * own);
    }
  });
}

void check(const LinearArgs& a) {
  const WeightFormat f = a.weight->format;
  if (f == WeightFormat::f32 || f == WeightFormat::f16) {
    throw Error(ErrorCode::internal, std::string("[linear] expected a weight that is packed for profile bf16, found ") +
                                         weight_format_name(f));
  }
}

}  // namespace

std::int64_t linear_bf16_workspace_bytes(const Kernels& kernels, int threads, std::int64_t max_rows,
                                         std::int64_t cols) {
  std::int64_t most = 0;
  const Bf16Kernels &best = table_of(kernels), &fma = fma_of(kernels.isa);
  for (const Bf16Kernels* k : {&best, &fma}) {
    if (k != &best) max_rows = std::min(max_rows, best.least_rows - 1);
    const std::int64_t rows = std::min(max_rows, kBf16OperandRows);
    most = std::max(most, operand_bytes(*k, rows, cols) + threads * thread_bytes(*k, cols));
  }
  return most;
}

void linear_bf16(const Kernels& kernels, Parallel& parallel, const LinearArgs& a) {
  if (a.rows <= 0) return;
  check(a);
  const std::int64_t cols = a.weight->cols;
  const Bf16Kernels& best = table_of(kernels);
  const Bf16Kernels& k = a.rows < best.least_rows ? fma_of(kernels.isa) : best;
  const bool by_blocks = a.weight->block != nullptr || a.format.kind == ActivationFormat::Kind::fp8_token_group128;
  for (std::int64_t first = 0; first < a.rows; first += kBf16OperandRows) {
    const std::int64_t rows = std::min(kBf16OperandRows, a.rows - first);
    std::byte* const scratch = a.workspace + operand_bytes(k, rows, cols);
    make_operands(linear_kernels_of(kernels.isa), k, parallel, a, first, rows, a.workspace, scratch);
    run_grid(k, parallel, {slab_of(a, first, rows), a.workspace, row_bytes(k, cols), by_blocks ? kSegment : cols},
             scratch);
  }
}

}  // namespace nibble::cpu
