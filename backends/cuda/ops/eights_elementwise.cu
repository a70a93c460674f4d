// eights_elementwise.cu: SwiGlu, with codes behind it or without, and Quantize, of core/ops/ops.h.
//   gate, up, x, y [rows, cols] bf16, eight columns at a time   codes, scales as the format has them
//   map   a block 256 threads with 16 columns of a row each, or eight where rows are few; fp8_token: the blocks of a
//         row are a cluster
//   cost  2 to 4 bytes in, half a byte to 2 bytes out; SwiGlu 34 instructions a column, with codes 35 to 43: bandwidth
//         bound
//   needs fp8_token: sm_90 or later
#include "backends/cuda/ops/eights.cuh"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

template <Kind K, int N, bool kEarly>
__global__ void __launch_bounds__(kMostThreadsOfEights)
    swiglu_by_eights(const StepView* step, Rows rows, std::int32_t cols, TypedRows<const Bf16> gates,
                     TypedRows<const Bf16> ups, TypedRows<Bf16> ys, CodesOf8 to) {
  const Own own = own_eights<N>(cols);
  const std::int32_t count = row_count(*step, rows);
  if (!kEarly && own.row >= count) return;
  Eight gate[N] = {}, up[N] = {};
  if (own.exists) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      gate[n] = load8(gates.row(own.row) + own.column + 8 * n);
      up[n] = load8(ups.row(own.row) + own.column + 8 * n);
    }
  }
  if (own.row >= count || never(up[0].w[0] | up[N - 1].w[0])) return;
  if constexpr (K == Kind::fp8_token) blocks_start();
  float before[N][8];
#pragma unroll
  for (int n = 0; n < N; ++n) widen8(up[n], before[n]);
  finish_eights<K>(ys, to, own, times_silu(before, gate));
}

template <Kind K, int N, bool kEarly>
__global__ void __launch_bounds__(kMostThreadsOfEights)
    quantize_by_eights(const StepView* step, Rows rows, std::int32_t cols, TypedRows<const Bf16> xs, CodesOf8 to) {
  const Own own = own_eights<N>(cols);
  const std::int32_t count = row_count(*step, rows);
  if (!kEarly && own.row >= count) return;
  Eights<N> x{};
  if (own.exists) {
#pragma unroll
    for (int n = 0; n < N; ++n) x.of[n] = load8(xs.row(own.row) + own.column + 8 * n);
  }
  if (own.row >= count) return;
  if constexpr (K == Kind::fp8_token) blocks_start();
  x.find_most();
  finish_eights<K>({}, to, own, x);
}

}  // namespace

const char* swiglu_eights(const Launch& to, const SwiGluArgs& a, const PackArgs* pack, Serve what) {
  const std::int32_t cols = a.gate.cols;
  const std::int64_t rows = to.max_of(a.gate.rows);
  const bool bf16 = a.gate.dtype == DType::bf16 && a.up.dtype == DType::bf16 && a.y.dtype == DType::bf16;
  if (!bf16 || !in_eights(a.gate, cols) || !in_eights(a.up, cols) || !in_eights(a.y, cols)) return kNotEights;
  if (const char* why = refuse_eights(rows, cols, pack)) return why;
  if (rows <= 0) return nullptr;
  return with_kind_of(pack, [&](auto kind) {
    constexpr Kind K = decltype(kind)::value;
    const int n = eights_a_thread(rows, cols, pack);
    const auto kernel =
        is_early<K>(n, rows) ? swiglu_by_eights<K, 1, true> : swiglu_by_eights<K, kMostEights<K>, false>;
    return launch_eights<K>(what, to, rows, cols, n, kernel, to.step, a.gate.rows, cols, typed<const Bf16>(a.gate),
                            typed<const Bf16>(a.up), typed<Bf16>(a.y), codes_of_8(pack));
  });
}

const char* quantize_eights(const Launch& to, const QuantizeArgs& a, Serve what) {
  const std::int32_t cols = a.x.cols;
  const std::int64_t rows = to.max_of(a.x.rows);
  const PackArgs pack{a.format, a.codes, a.scales};
  if (a.x.dtype != DType::bf16 || !in_eights(a.x, cols)) return kNotEights;
  if (const char* why = refuse_eights(rows, cols, &pack)) return why;
  if (rows <= 0) return nullptr;
  return with_kind_of(&pack, [&](auto kind) -> const char* {
    constexpr Kind K = decltype(kind)::value;
    if constexpr (K == Kind::none) {
      return nullptr;
    } else {
      const int n = eights_a_thread(rows, cols, &pack);
      const auto kernel = is_early<K>(n, rows) ? quantize_by_eights<K, 1, true> : quantize_by_eights<K, 2, false>;
      return launch_eights<K>(what, to, rows, cols, n, kernel, to.step, a.x.rows, cols, typed<const Bf16>(a.x),
                              codes_of_8(&pack));
    }
  });
}

}  // namespace nibble::cuda
