// pack.cu: RmsNorm, GatedRmsNorm or SwiGlu with the Quantize behind it, Packed of core/ops/ops.h.
//   inputs [rows, cols] f32 or bf16   codes u8 [rows, cols / 2 or cols]   scales u8 or f32   y as an option
//   map   a block of 256 threads a piece of a row, 4 neighbouring columns a thread and pass
//         pieces: RmsNorm and fp8_token the row; gated norm 8 groups; SwiGlu 1,024 columns
//         norms first find the factor of each group: a warp a group (up to 512 columns) or the block
//   sums  f32, the tree of core/numerics/reduce.h
//   cost  inputs once from memory (a norm's x again from the cache), half a byte or one byte an element
//         out: bandwidth bound. fp8_token: the made row waits in shared memory for its scale; a row
//         that is too long is made twice
#include "backends/cuda/device/fold.cuh"
#include "backends/cuda/device/norm.cuh"
#include "backends/cuda/device/pack.cuh"
#include "backends/cuda/device/pairs.cuh"
#include "backends/cuda/ops/eights.h"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

constexpr int kThreads = kPieceThreads, kWarps = kThreads / kWarp;
constexpr int kGroupsOfPiece = kWarps;    // of a gated norm: each warp finds one factor
// Shared memory that a launch may ask for, beside lanes and maxima, below the 48 KiB that every card gives.
constexpr std::size_t kMostShared = 46 << 10;
static_assert(kThreads == kTreeThreads && kMostHeads * sizeof(float) <= kMostShared);

// Columns [first, end) of one row: what make(column, count, v) gives, to codes. `first` is a multiple of
// 128 or 0. fp8_token: all of the row; `staged`: shared, [cols to a multiple of 4], or null.
template <Kind K, class Y, class Make>
__device__ __forceinline__ void pack_columns(const CodesTo& to, std::int64_t row, int first, int end,
                                             Y* staged, const Make& make) {
  float v[4];
  if constexpr (K != Kind::fp8_token) {
    for (int start = first; start < end; start += kPieceColumns) {  // whole warps: they share maxima
      const int c = start + 4 * static_cast<int>(threadIdx.x), count = c < end ? min(4, end - c) : 0;
      make(c, count, v);
      pack4<K>(to, row, c, count, v);
    }
  } else {
    __shared__ unsigned maxima[kWarps];
    const int own = 4 * static_cast<int>(threadIdx.x);
    unsigned most = 0;
    for (int c = own; c < end; c += kPieceColumns) {
      make(c, min(4, end - c), v);
      most = max(most, magnitude4(v));
      if (staged != nullptr) store4(staged + c, v);
    }
    const float scale = fp8_scale(block_max<kThreads>(most, maxima));
    for (int c = own; c < end; c += kPieceColumns) {
      const int count = min(4, end - c);
      if (staged != nullptr) {
        load4(staged + c, v);  // this thread's own
      } else {
        make(c, count, v);
      }
      put_fp8(to.codes.row(row) + c, count, to.wide_codes, v, scale);
    }
    if (threadIdx.x == 0) reinterpret_cast<float*>(to.scales)[row * to.scale_stride] = scale;
  }
}

// The sum of a lane of the long tree, many loads at once.
template <class X>
__device__ __forceinline__ float lane_squares(const X* x, int n) {
  constexpr int kAtOnce = 20;  // 5,120 columns
  float sum = 0.0f;
  for (int start = static_cast<int>(threadIdx.x); start < n; start += kAtOnce * kThreads) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      v[i] = start + kThreads * i < n ? widen(x[start + kThreads * i]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum = num::fma(v[i], v[i], sum);  // zeros add nothing
  }
  return sum;
}

struct Wide {
  bool in, weight, y;  // four neighbouring elements in one access
};

// Blocks of `heads` groups; shared: [heads] factors to a multiple of 4, then the staged row.
template <Kind K, class X, class Z, class Y>
__global__ void __launch_bounds__(kThreads)
    norm_pack(Groups<X, Z, Y> g, CodesTo to, int heads, unsigned pieces, Wide wide, bool stage) {
  extern __shared__ float4 memory[];
  __shared__ float lanes[num::kTreeLong];
  float* const factors = reinterpret_cast<float*>(memory);
  const std::int64_t row = blockIdx.x / pieces;
  if (row >= row_count(*g.step, g.rows)) return;
  const int first_head = static_cast<int>(blockIdx.x % pieces) * heads,
            count_of_heads = min(heads, g.heads - first_head);
  const int first = first_head * g.group, end = first + count_of_heads * g.group;
  const X* const x = g.x.row(row);
  if (g.group <= num::kTreeSwitch) {
    for (int h = static_cast<int>(threadIdx.x) / kWarp; h < count_of_heads; h += kWarps) {
      const float f = factor(g, warp_sum_squares(x + first + h * g.group, g.group));
      if (threadIdx.x % kWarp == 0) factors[h] = f;
    }
  } else {
    for (int h = 0; h < count_of_heads; ++h) {
      if (h > 0) __syncthreads();  // all have read `lanes`
      const float f = factor(g, block_fold(lane_squares(x + first + h * g.group, g.group), lanes));
      if (threadIdx.x == 0) factors[h] = f;
    }
  }
  __syncthreads();
  const Z* const z = std::is_same_v<Z, Ungated> ? nullptr : g.z.row(row);
  Y* const y = g.y.data == nullptr ? nullptr : g.y.row(row);
  const auto make = [&](int c, int count, float* v) {
    float w[4] = {}, gate[4] = {};
    load_up_to_4(x + c, count, wide.in, v);
    if (count == 0) return;
    if constexpr (!std::is_same_v<Z, Ungated>) load_up_to_4(z + c, count, wide.in, gate);
    const int head = (c - first) / g.group, at = c - first - head * g.group;
    if (at + count <= g.group) {
      load_up_to_4(g.weight + at, count, wide.weight, w);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = num::mul(num::mul(v[i], factors[head]), w[i]);
    } else {
      for (int i = 0; i < count; ++i) {
        const int h = (c + i - first) / g.group;
        v[i] = num::mul(num::mul(v[i], factors[h]), g.weight[c + i - first - h * g.group]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (!std::is_same_v<Z, Ungated>) v[i] = gated(v[i], gate + i);
      v[i] = as_stored(static_cast<const Y*>(nullptr), v[i]);
    }
    if (y != nullptr) store_up_to_4(y + c, count, wide.y, v);
  };
  Y* const staged = stage ? reinterpret_cast<Y*>(factors + (heads + 3) / 4 * 4) : nullptr;
  pack_columns<K>(to, row, first, end, staged, make);
}

template <Kind K, class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_pack_row(const StepView* step, Rows rows, std::int32_t cols, int piece, unsigned pieces,
                    TypedRows<const T> gates, TypedRows<const T> ups, TypedRows<T> ys, CodesTo to,
                    Wide wide, bool stage) {
  extern __shared__ float4 memory[];
  const std::int64_t row = blockIdx.x / pieces;
  if (row >= row_count(*step, rows)) return;
  const int first = static_cast<int>(blockIdx.x % pieces) * piece;
  const T *const gate = gates.row(row), *const up = ups.row(row);
  T* const y = ys.data == nullptr ? nullptr : ys.row(row);
  const auto make = [&](int c, int count, float* v) {
    float u[4];
    load_up_to_4(gate + c, count, wide.in, v);
    load_up_to_4(up + c, count, wide.in, u);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = as_stored(gate, SiluTimes{}(v[i], u[i]));
    if (y != nullptr) store_up_to_4(y + c, count, wide.y, v);
  };
  pack_columns<K>(to, row, first, min(first + piece, cols),
                  stage ? reinterpret_cast<T*>(memory) : nullptr, make);
}

// f(std::integral_constant<Kind, kind>).
template <class F>
void with_kind(Kind kind, F f) {
  switch (kind) {
    case Kind::none:
      return;
    case Kind::nvfp4_static:
      return f(std::integral_constant<Kind, Kind::nvfp4_static>{});
    case Kind::fp8_tensor_static:
      return f(std::integral_constant<Kind, Kind::fp8_tensor_static>{});
    case Kind::fp8_token:
      return f(std::integral_constant<Kind, Kind::fp8_token>{});
    case Kind::fp8_token_group128:
      return f(std::integral_constant<Kind, Kind::fp8_token_group128>{});
  }
}

CodesTo codes_to(const PackArgs& a) {
  return {typed<std::uint8_t>(a.codes), a.scales.data, a.scales.stride, a.format.scale,
          are_wide_codes(a.codes, a.format.kind)};
}

// Bytes for a row of y that waits for its scale; 0: it does not, or there is no room beside `factors`.
std::size_t staged_bytes(Kind kind, std::int32_t cols, DType type, std::size_t factors) {
  const std::size_t bytes = static_cast<std::size_t>(cols + 3) / 4 * 4 * (type == DType::bf16 ? 2 : 4);
  return kind == Kind::fp8_token && factors + bytes <= kMostShared ? bytes : 0;
}

template <class X, class Z, class Y>
void launch(const Launch& to, const Groups<X, Z, Y>& g, const View& y, const PackArgs& pack, bool wide_in) {
  const std::int32_t cols = g.heads * g.group;
  const std::int64_t rows = to.max_of(g.rows);
  if (rows <= 0 || cols <= 0) return;
  // A piece must hold whole groups of scales as well.
  const bool cut = pack.format.kind != Kind::fp8_token && g.group % 16 == 0;
  const int heads = cut ? min(g.heads, kGroupsOfPiece) : g.heads;
  const auto pieces = static_cast<unsigned>((g.heads + heads - 1) / heads);
  const std::size_t factors = static_cast<std::size_t>(heads + 3) / 4 * 4 * sizeof(float),
                    staged = staged_bytes(pack.format.kind, cols, y.dtype, factors);
  const Wide wide{wide_in, g.group % 4 == 0 && reinterpret_cast<std::uintptr_t>(g.weight) % 16 == 0,
                  is_wide(y)};
  with_kind(pack.format.kind, [&](auto kind) {
    norm_pack<decltype(kind)::value>
        <<<static_cast<unsigned>(rows * pieces), kThreads, factors + staged, to.stream>>>(
            g, codes_to(pack), heads, pieces, wide, staged > 0);
  });
}

}  // namespace

void rms_norm_pack(const Launch& to, const RmsNormArgs& a, const PackArgs& pack) {
  if (rms_norm_eights(to, a, &pack) == nullptr) return;
  with_type(a.y.dtype, [&](auto* ty) {
    using Y = std::remove_pointer_t<decltype(ty)>;
    launch(to,
           Groups<float, Ungated, Y>{typed<const float>(a.x), {}, typed<Y>(a.y), a.weight, to.step, a.x.rows, 1,
                                     a.x.cols, inverse_of(a.x.cols), a.eps},
           a.y, pack, is_wide(a.x));
  });
}

void gated_rms_norm_pack(const Launch& to, const GatedRmsNormArgs& a, const PackArgs& pack) {
  if (gated_rms_norm_eights(to, a, &pack) == nullptr) return;
  with_type(a.y.dtype, [&](auto* ty) {
    using T = std::remove_pointer_t<decltype(ty)>;
    launch(to,
           Groups<T, T, T>{typed<const T>(a.x), typed<const T>(a.z), typed<T>(a.y), a.weight, to.step, a.x.rows,
                           a.x.cols / a.group, a.group, inverse_of(a.group), a.eps},
           a.y, pack, is_wide(a.x) && is_wide(a.z));
  });
}

void swiglu_pack(const Launch& to, const SwiGluArgs& a, const PackArgs& pack) {
  if (swiglu_eights(to, a, &pack) == nullptr) return;
  const std::int64_t rows = to.max_of(a.gate.rows);
  const std::int32_t cols = a.gate.cols;
  if (rows <= 0 || cols <= 0) return;
  const int piece = pack.format.kind == Kind::fp8_token ? cols : kPieceColumns;
  const auto pieces = static_cast<unsigned>((cols + piece - 1) / piece);
  const std::size_t staged = staged_bytes(pack.format.kind, cols, a.y.dtype, 0);
  const Wide wide{is_wide(a.gate) && is_wide(a.up), false, is_wide(a.y)};
  with_type(a.y.dtype, [&](auto* ty) {
    using T = std::remove_pointer_t<decltype(ty)>;
    with_kind(pack.format.kind, [&](auto kind) {
      swiglu_pack_row<decltype(kind)::value, T>
          <<<static_cast<unsigned>(rows * pieces), kThreads, staged, to.stream>>>(
              to.step, a.gate.rows, cols, piece, pieces, typed<const T>(a.gate), typed<const T>(a.up),
              typed<T>(a.y), codes_to(pack), wide, staged > 0);
    });
  });
}

}  // namespace nibble::cuda
