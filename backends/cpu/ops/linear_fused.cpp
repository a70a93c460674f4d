#include "backends/cpu/ops/linear_fused.h"

#include <algorithm>

#include "backends/cpu/kernels/linear_fused.h"
#include "backends/cpu/ops/linear_slab.h"
#include "core/numerics/fused_fp4.h"
#include "core/numerics/row_scale.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

// Whole groups of every unit, and a cache line off a power of two.
std::int64_t operand_stride(std::int64_t cols) {
  return ceil_div(cols, num::kFp4Group) * num::kFp4Group + num::kFp4Group;
}

// Scales and codes of blocks are smaller than the operands of a row.
constexpr std::int64_t kColumnBytes = sizeof(float) + sizeof(std::int32_t);
static_assert(sizeof(std::int16_t) * num::kFp4Block + sizeof(double) + sizeof(std::int32_t) <=
              kColumnBytes * num::kFp4Block);

void check_format(Profile profile, const LinearArgs& a) {
  const WeightFormat f = a.weight->format;
  const bool f16 = profile == Profile::sm70;
  if (f == WeightFormat::f32 || f == (f16 ? WeightFormat::bf16 : WeightFormat::f16) ||
      (f16 && a.format.kind == Kind::none && a.x_exponents == nullptr) ||
      (a.fp8_unit && (f != WeightFormat::fp8_e4m3 || a.format.kind != Kind::fp8_token))) {
    throw Error(ErrorCode::internal,
                std::string("[linear] expected operands of the profile, found a weight of ") +
                    weight_format_name(f) + (a.x_exponents == nullptr ? "" : ", x with exponents"));
  }
}

FusedBlock rows_of(FusedBlock f, std::int64_t first, std::int64_t rows) {
  f.linear = rows_of(f.linear, first, rows);
  f.exponents += first * f.linear.x_stride;
  f.ordinary += first;
  return f;
}
Fp4Block rows_of(Fp4Block f, std::int64_t first, std::int64_t rows) {
  f.linear = rows_of(f.linear, first, rows);
  f.codes += first * f.stride;
  f.scales += first * f.stride / num::kFp4Block;
  f.exponents += first * f.stride / num::kFp4Block;
  return f;
}

template <class Block>
void run_block(void (*kernel)(const Block&, std::int64_t, std::int64_t), Parallel& parallel,
               const Block& all) {
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
               kernel(rows_of(all, first, rows * (block + 1) / blocks - first), panel, panel + 1);
             }
           });
}

template <class Body>
void over_rows(Parallel& parallel, std::int64_t rows, std::int64_t cols, const Body& body) {
  parallel(rows, std::max<std::int64_t>(1, 16384 / cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) body(r);
  });
}

void run_fp4(const FusedKernels& kernels, Parallel& parallel, const LinearArgs& a, std::int64_t first,
             std::int64_t rows) {
  const std::int64_t cols = a.weight->cols, stride = operand_stride(cols);
  const std::int64_t blocks = stride / num::kFp4Block;
  auto* const scales = reinterpret_cast<double*>(a.workspace);
  auto* const exponents = reinterpret_cast<std::int32_t*>(scales + rows * blocks);
  auto* const codes = reinterpret_cast<std::int16_t*>(exponents + rows * blocks);
  const Fp4Block all{slab_of(a, first, rows), codes, scales, exponents, stride,
                     fused_segments(*a.weight, a.format, false).length};
  const auto* bytes = static_cast<const std::uint8_t*>(a.scales);
  over_rows(parallel, rows, cols, [&](std::int64_t r) {
    kernels.operand_fp4(a.codes + (first + r) * a.x_stride, bytes + (first + r) * a.scale_stride, cols,
                        codes + r * stride, scales + r * blocks, exponents + r * blocks);
  });
  run_block(kernels.fp4, parallel, all);
}

void run_fused(Profile profile, const LinearKernels& plain, const FusedKernels& kernels,
               Parallel& parallel, const LinearArgs& a, std::int64_t first, std::int64_t rows) {
  const std::int64_t cols = a.weight->cols, stride = operand_stride(cols);
  auto* const x = reinterpret_cast<float*>(a.workspace);
  auto* const exponents = reinterpret_cast<std::int32_t*>(x + rows * stride);
  auto* const row_scales = reinterpret_cast<float*>(exponents + rows * stride);
  auto* const ordinary = reinterpret_cast<std::int32_t*>(row_scales + rows);
  const bool fp8 = profile == Profile::sm90 && a.fp8_unit;
  FusedBlock all{slab_of(a, first, rows), exponents, ordinary, fused_segments(*a.weight, a.format, fp8).length};
  if (profile == Profile::sm90 && a.weight->format == WeightFormat::nvfp4) {
    all.linear.weight_unit = num::kSm90Nvfp4Unit;
    all.linear.alpha_unit = num::kSm90Nvfp4Scale;
  }
  all.linear.x = x;
  all.linear.x_stride = stride;
  const bool f16 = profile == Profile::sm70;
  if (f16 && a.format.kind == Kind::none) all.linear.row_scale = row_scales;
  over_rows(parallel, rows, cols, [&](std::int64_t r) {
    float* const to = x + r * stride;
    const float* const from = float_row(plain, a, first + r, to);
    float scale = 1.0f;
    if (f16 && a.format.kind == Kind::none) {
      const std::int32_t e = a.x_exponents[first + r];
      row_scales[r] = num::power_of_two(e);
      scale = num::power_of_two(-e);  // h again, exactly
    }
    std::int32_t* const e = exponents + r * stride;
    const bool finite = f16   ? kernels.operand_f16(from, scale, cols, to, e)
                        : fp8 ? kernels.operand_e4m3(from, cols, to, e)
                              : kernels.operand_bf16(from, cols, to, e);
    ordinary[r] = finite ? 1 : 0;
  });
  run_block(f16 ? kernels.sm70 : fp8 ? kernels.sm90_fp8 : kernels.sm90, parallel, all);
}

}  // namespace

const FusedKernels& fused_kernels(Isa isa) {
  NIBBLE_PICK_ISA(isa, fused_kernels());
}

num::Segments fused_segments(const PackedWeight& weight, const ActivationFormat& format, bool fp8_unit) {
  return num::linear_segments(weight.order_rows, weight.cols,
                              weight.block != nullptr || format.kind == Kind::fp8_token_group128 || fp8_unit);
}

bool uses_fp4(Profile profile, WeightFormat weight, const ActivationFormat& x) {
  return profile == Profile::sm120 && weight == WeightFormat::nvfp4 && x.kind == Kind::nvfp4_static;
}

std::int64_t linear_fused_workspace_bytes(std::int64_t max_rows, std::int64_t cols) {
  return std::min(max_rows, kFusedOperandRows) *
         (operand_stride(cols) * kColumnBytes +
          static_cast<std::int64_t>(sizeof(float) + sizeof(std::int32_t)));
}

void linear_fused(Profile profile, Isa isa, Parallel& parallel, const LinearArgs& a) {
  if (a.rows <= 0) return;
  check_format(profile, a);
  const FusedKernels& kernels = fused_kernels(isa);
  const bool fp4 = uses_fp4(profile, a.weight->format, a.format);
  for (std::int64_t first = 0; first < a.rows; first += kFusedOperandRows) {
    const std::int64_t rows = std::min(kFusedOperandRows, a.rows - first);
    if (fp4) {
      run_fp4(kernels, parallel, a, first, rows);
    } else {
      run_fused(profile, linear_kernels_of(isa), kernels, parallel, a, first, rows);
    }
  }
}

}  // namespace nibble::cpu
