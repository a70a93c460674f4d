#include "backends/cpu/ops/pack.h"

#include <algorithm>
#include <numeric>

#include "backends/cpu/kernels/rowwise.h"
#include "backends/cpu/ops/work.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

constexpr std::int64_t kGrain = 16384;  // elements worth a thread of their own
constexpr std::int64_t kPiece = 4096;   // columns of a row that one thread takes where it may

const RowwiseKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, rowwise_kernels());
}

std::int64_t line_floats(std::int64_t cols) {
  return (cols + 15) / 16 * 16;
}

// Columns that know nothing of the row's others once cut at multiples of this and of `group`.
std::int64_t piece_of(const PackArgs& a, std::int64_t group) {
  const Kind kind = a.to.format.kind;
  const std::int64_t scaled = kind == Kind::fp8_token_group128 ? 128 : kind == Kind::nvfp4_static ? 16 : 1;
  if (kind == Kind::fp8_token || a.operand == DType::f16 || group >= a.to.cols) return a.to.cols;
  const std::int64_t unit = std::lcm(group, scaled);
  return std::min(a.to.cols, unit * std::max<std::int64_t>(1, kPiece / unit));
}

// make(row, first column, columns, y): `columns` of y, not rounded.
template <class Make>
void pack_pieces(Isa isa, Parallel& parallel, const PackArgs& a, std::int64_t group, const Make& make) {
  check_quantize(a.to);
  const std::int64_t cols = a.to.cols, piece = piece_of(a, group);
  if (a.to.rows <= 0 || cols <= 0) return;
  const std::int64_t pieces = (cols + piece - 1) / piece,
                     worth = std::max<std::int64_t>(1, a.to.rows * cols / kGrain);
  auto* const lines = reinterpret_cast<float*>(a.workspace);
  for_each_item(parallel, a.to.rows * pieces, std::min<std::int64_t>(parallel.threads(), worth),
                [&](std::int64_t item, std::int64_t worker) {
                  const std::int64_t row = item / pieces, first = item % pieces * piece,
                                     count = std::min(piece, cols - first);
                  float* const y = a.y.data == nullptr ? lines + worker * line_floats(cols)
                                                       : a.y.data + row * a.y.stride + first;
                  make(row, first, count, y);
                  if (a.operand == DType::bf16) round_bf16(isa, y, count);
                  if (a.operand == DType::f16) {
                    const std::int32_t e = round_f16(isa, y, count);
                    if (a.exponents != nullptr) a.exponents[row] = e;
                  }
                  quantize_columns(isa, a.to, row, first, count, y);
                });
}

}  // namespace

std::int64_t pack_workspace_bytes(std::int64_t cols, int threads) {
  return threads * line_floats(cols) * static_cast<std::int64_t>(sizeof(float));
}

void rms_norm_pack(Isa isa, Parallel& parallel, In x, const float* weight, float eps,
                   const PackArgs& a) {
  const RowwiseKernels& kernels = kernels_of(isa);
  pack_pieces(isa, parallel, a, a.to.cols,
              [&](std::int64_t row, std::int64_t, std::int64_t count, float* y) {
                kernels.rms_norm(x.data + row * x.stride, weight, count, eps, y);
              });
}

void add_rms_norm_pack(Isa isa, Parallel& parallel, const SumArgs& sum, const float* weight, float eps,
                       const PackArgs& a) {
  const RowwiseKernels& kernels = kernels_of(isa);
  pack_pieces(isa, parallel, a, a.to.cols,
              [&](std::int64_t row, std::int64_t, std::int64_t count, float* y) {
                float* const of_row = sum.sum.data + row * sum.sum.stride;
                kernels.add(sum.a.data + row * sum.a.stride, sum.b.data + row * sum.b.stride, count, of_row);
                kernels.rms_norm(of_row, weight, count, eps, y);
              });
}

void gated_rms_norm_pack(Isa isa, Parallel& parallel, std::int64_t group, In x, In z,
                         const float* weight, float eps, const PackArgs& a) {
  const RowwiseKernels& kernels = kernels_of(isa);
  pack_pieces(isa, parallel, a, group,
              [&](std::int64_t row, std::int64_t first, std::int64_t count, float* y) {
                const float* const of_x = x.data + row * x.stride + first;
                const float* const of_z = z.data + row * z.stride + first;
                for (std::int64_t c = 0; c < count; c += group) {
                  kernels.gated_rms_norm(of_x + c, of_z + c, weight, group, eps, y + c);
                }
              });
}

void swiglu_pack(Isa isa, Parallel& parallel, In gate, In up, const PackArgs& a) {
  const RowwiseKernels& kernels = kernels_of(isa);
  pack_pieces(isa, parallel, a, 1,
              [&](std::int64_t row, std::int64_t first, std::int64_t count, float* y) {
                kernels.swiglu(gate.data + row * gate.stride + first,
                               up.data + row * up.stride + first, count, y);
              });
}

}  // namespace nibble::cpu
