// quantize.cu: Quantize of core/ops/ops.h.
//   x [rows, cols] f32 or bf16   codes u8 [rows, cols / 2 or cols]   scales u8 or f32, see the
//   contract map   nvfp4: 4 threads a group of 16; group128: a warp a group; tensor: 4 columns a
//   thread;
//         token: a block a row, which is read twice
//   cost  x once (token: twice), one division a value: bandwidth bound
#include <type_traits>

#include "backends/cuda/device/e2m1.cuh"
#include "backends/cuda/device/wide.cuh"
#include "backends/cuda/ops/rowwise.h"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;
constexpr unsigned kAll = 0xFFFFFFFFu;

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

__device__ __forceinline__ unsigned magnitude(float v) {
  const unsigned u = num::bit_cast<unsigned>(v) & 0x7FFFFFFFu;
  return u > 0x7F800000u ? 0u : u;
}
__device__ __forceinline__ unsigned magnitude4(const float* v) {
  return max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3])));
}
// Over teams of `width` neighbouring lanes.
__device__ __forceinline__ unsigned team_max(unsigned m, int width) {
  for (int s = width / 2; s > 0; s /= 2) m = max(m, __shfl_xor_sync(kAll, m, s));
  return m;
}

__device__ __forceinline__ float fp8_scale(unsigned most) {
  const float amax = num::bit_cast<float>(most);
  return amax == 0.0f ? 1.0f : num::div(amax, 448.0f);
}

__device__ __forceinline__ void put_fp8(std::uint8_t* at, int count, bool wide, const float* v,
                                        float scale) {
  unsigned code[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) code[i] = num::float_to_e4m3(num::div(v[i], scale));
  if (wide && count == 4) {
    *reinterpret_cast<unsigned*>(at) = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < count) at[i] = static_cast<std::uint8_t>(code[i]);
  }
}

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

template <class X>
__global__ void __launch_bounds__(kPieceThreads) nvfp4(Job<X> j) {
  if (blockIdx.x / j.pieces >= row_count(*j.step, j.rows)) return;
  const Four<X> x(j);
  const float most = num::bit_cast<float>(team_max(magnitude4(x.v), 4));
  if (x.count == 0) return;  // whole teams: columns come in multiples of 16
  const std::uint8_t s = num::float_to_e4m3(num::div(num::div(most, 6.0f), j.scale));
  const float unit = num::mul(num::e4m3_to_float(s), j.scale);
  unsigned low = 0, high = 0;
  if (s != 0) {
    low = to_e2m1x2<kFp4Path>(num::div(x.v[0], unit), num::div(x.v[1], unit));
    high = to_e2m1x2<kFp4Path>(num::div(x.v[2], unit), num::div(x.v[3], unit));
  }
  std::uint8_t* const at = j.codes.row(x.row) + x.column / 2;
  if (j.wide_codes) {
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(low | high << 8);
  } else {
    at[0] = static_cast<std::uint8_t>(low);
    at[1] = static_cast<std::uint8_t>(high);
  }
  if (x.column % 16 == 0) {
    reinterpret_cast<std::uint8_t*>(j.scales)[x.row * j.scale_stride + x.column / 16] = s;
  }
}

template <class X>
__global__ void __launch_bounds__(kPieceThreads) fp8_tensor(Job<X> j) {
  if (blockIdx.x / j.pieces >= row_count(*j.step, j.rows)) return;
  const Four<X> x(j);
  if (x.count > 0) put_fp8(j.codes.row(x.row) + x.column, x.count, j.wide_codes, x.v, j.scale);
}

template <class X>
__global__ void __launch_bounds__(kPieceThreads) fp8_group128(Job<X> j) {
  if (blockIdx.x / j.pieces >= row_count(*j.step, j.rows)) return;
  const Four<X> x(j);
  const float scale = fp8_scale(team_max(magnitude4(x.v), 32));
  if (x.count == 0) return;
  put_fp8(j.codes.row(x.row) + x.column, x.count, j.wide_codes, x.v, scale);
  if (x.column % 128 == 0) {
    reinterpret_cast<float*>(j.scales)[x.row * j.scale_stride + x.column / 128] = scale;
  }
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
  most = team_max(most, 32);
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = most;
  __syncthreads();
  const float scale = fp8_scale(team_max(maxima[threadIdx.x % (kPieceThreads / 32)], 32));
  for (int c = 4 * static_cast<int>(threadIdx.x); c < j.cols; c += kPieceColumns) {
    const int count = min(4, j.cols - c);
    load_up_to_4(x + c, count, j.wide_x, v);
    put_fp8(codes + c, count, j.wide_codes, v, scale);
  }
  if (threadIdx.x == 0) reinterpret_cast<float*>(j.scales)[row * j.scale_stride] = scale;
}

bool wide_codes(const View& codes, Kind kind) {
  const std::uintptr_t bytes = kind == Kind::nvfp4_static ? 2 : 4;
  return reinterpret_cast<std::uintptr_t>(codes.data) % bytes == 0 &&
         static_cast<std::uintptr_t>(codes.stride) % bytes == 0;
}

}  // namespace

void quantize(const Launch& to, const QuantizeArgs& a) {
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
                     wide_codes(a.codes, a.format.kind)};
    switch (a.format.kind) {
      case Kind::none:
        return;
      case Kind::nvfp4_static:
        return nvfp4<<<blocks, kPieceThreads, 0, to.stream>>>(job);
      case Kind::fp8_tensor_static:
        return fp8_tensor<<<blocks, kPieceThreads, 0, to.stream>>>(job);
      case Kind::fp8_token:
        return fp8_token<<<static_cast<unsigned>(rows), kPieceThreads, 0, to.stream>>>(job);
      case Kind::fp8_token_group128:
        return fp8_group128<<<blocks, kPieceThreads, 0, to.stream>>>(job);
    }
  });
}

}  // namespace nibble::cuda
