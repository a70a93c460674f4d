// quantize.cu: Quantize of core/ops/ops.h.
//   x [rows, cols] f32 or bf16   codes u8 [rows, cols / 2 or cols]   scales u8 or f32, see the contract
//   map   nvfp4: 4 threads a group of 16; group128: a warp a group; tensor: 4 columns a thread;
//         token: a block a row, which is read twice
//   cost  x once (token: twice), one division a value: bandwidth bound
#include <type_traits>

#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/ops/eights.h"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

template <class X>
struct Job {
  const StepView* step;
  Rows rows;
  std::int32_t cols;
  unsigned pieces;  // blocks of a row
  float scale;
  TypedRows<const X> x;
  TypedRows<std::uint8_t> codes;
  std::byte* scales;
  std::int64_t scale_stride;  // in elements
  bool wide_x, wide_codes;    // four values, four codes (nvfp4: two bytes) in one access
};

// The four columns of this thread; threads behind the row's end have none, but take part in maxima.
template <class X>
struct Four {
  std::int64_t row;
  int column, count;
  float v[4];
  __device__ __forceinline__ explicit Four(const Job<X>& j)
      : row(blockIdx.x / j.pieces),
        column(static_cast<int>(blockIdx.x % j.pieces) * kPieceColumns +
               4 * static_cast<int>(threadIdx.x)),
        // not max(0, min(4, ...)): for that ptxas 13.0 takes `count == 4` from a clamping
        // instruction's predicate, which is set at 0 as well
        count(column < j.cols ? min(4, j.cols - column) : 0) {
    load_up_to_4(j.x.row(row) + column, count, j.wide_x, v);
  }
};

template <Kind K, class X>
__global__ void __launch_bounds__(kPieceThreads) by_pieces(Job<X> j) {
  if (blockIdx.x / j.pieces >= row_count(*j.step, j.rows)) return;
  const Four<X> x(j);
  pack4<K>(j, x.row, x.column, x.count, x.v);
}

template <class X>
__global__ void __launch_bounds__(kPieceThreads) fp8_token(Job<X> j) {
  __shared__ unsigned maxima[kPieceThreads / 32];
  const std::int64_t row = blockIdx.x;
  if (row >= row_count(*j.step, j.rows)) return;
  const X* const x = j.x.row(row);
  std::uint8_t* const codes = j.codes.row(row);
  float v[4];
  unsigned most = 0;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < j.cols; c += kPieceColumns) {
    load_up_to_4(x + c, min(4, j.cols - c), j.wide_x, v);
    most = max(most, magnitude4(v));
  }
  const float scale = fp8_scale(block_max<kPieceThreads>(most, maxima));
  for (int c = 4 * static_cast<int>(threadIdx.x); c < j.cols; c += kPieceColumns) {
    const int count = min(4, j.cols - c);
    load_up_to_4(x + c, count, j.wide_x, v);
    put_fp8(codes + c, count, j.wide_codes, v, scale);
  }
  if (threadIdx.x == 0) reinterpret_cast<float*>(j.scales)[row * j.scale_stride] = scale;
}

}  // namespace

void quantize(const Launch& to, const QuantizeArgs& a) {
  if (quantize_eights(to, a) == nullptr) return;
  const std::int64_t rows = to.max_of(a.x.rows), pieces = pieces_of(a.x.cols);
  if (rows <= 0 || pieces <= 0) return;
  const auto blocks = static_cast<unsigned>(rows * pieces);
  with_type(a.x.dtype, [&](auto* tx) {
    using X = std::remove_pointer_t<decltype(tx)>;
    const Job<X> job{to.step,
                     a.x.rows,
                     a.x.cols,
                     static_cast<unsigned>(pieces),
                     a.format.scale,
                     typed<const X>(a.x),
                     typed<std::uint8_t>(a.codes),
                     a.scales.data,
                     a.scales.stride,
                     is_wide(a.x),
                     are_wide_codes(a.codes, a.format.kind)};
    switch (a.format.kind) {
      case Kind::none:
        return;
      case Kind::nvfp4_static:
        return by_pieces<Kind::nvfp4_static><<<blocks, kPieceThreads, 0, to.stream>>>(job);
      case Kind::fp8_tensor_static:
        return by_pieces<Kind::fp8_tensor_static><<<blocks, kPieceThreads, 0, to.stream>>>(job);
      case Kind::fp8_token:
        return fp8_token<<<static_cast<unsigned>(rows), kPieceThreads, 0, to.stream>>>(job);
      case Kind::fp8_token_group128:
        return by_pieces<Kind::fp8_token_group128><<<blocks, kPieceThreads, 0, to.stream>>>(job);
    }
  });
}

}  // namespace nibble::cuda
