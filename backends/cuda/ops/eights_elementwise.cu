// eights_elementwise.cu: SwiGlu, with codes behind it or without, and Quantize, of core/ops/ops.h.
//   gate, up, x, y [rows, cols] bf16, eight columns at a time   codes, scales as the format has them
//   map   a block 2,048 columns of a row, eight a thread; fp8_token: the blocks of a row are a cluster
//   cost  2 to 4 bytes in, half a byte to 2 bytes out; SwiGlu about 25 instructions a column, codes 8 (e4m3) or 16 (e2m1)
//         more: bandwidth bound
//   needs fp8_token: sm_90 or later
#include "backends/cuda/ops/eights.cuh"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

template <Kind K>
__global__ void __launch_bounds__(kMostThreadsOfEights)
    swiglu_by_eights(const StepView* step, Rows rows, std::int32_t cols, bool early, TypedRows<const Bf16> gates,
                     TypedRows<const Bf16> ups, TypedRows<Bf16> ys, CodesOf8 to) {
  const OwnEight own = own_eight(cols);
  const std::int32_t count = row_count(*step, rows);
  if (!early && own.row >= count) return;
  Eight gate{}, up{};
  if (own.exists) {
    gate = load8(gates.row(own.row) + own.column);
    up = load8(ups.row(own.row) + own.column);
  }
  if (own.row >= count) return;
  if constexpr (K == Kind::fp8_token) blocks_start();
  float before[8];
  widen8(up, before);
  unsigned most;
  const Eight v = times_silu8(before, gate, most);
  if (own.exists && ys.data != nullptr) store8(ys.row(own.row) + own.column, v);
  finish8<K>(to, own, v, most);
}

template <Kind K>
__global__ void __launch_bounds__(kMostThreadsOfEights)
    quantize_by_eights(const StepView* step, Rows rows, std::int32_t cols, bool early, TypedRows<const Bf16> xs,
                       CodesOf8 to) {
  const OwnEight own = own_eight(cols);
  const std::int32_t count = row_count(*step, rows);
  if (!early && own.row >= count) return;
  Eight x{};
  if (own.exists) x = load8(xs.row(own.row) + own.column);
  if (own.row >= count) return;
  if constexpr (K == Kind::fp8_token) blocks_start();
  finish8<K>(to, own, x, most8(x));
}

}  // namespace

const char* swiglu_eights(const Launch& to, const SwiGluArgs& a, const PackArgs* pack) {
  const std::int32_t cols = a.gate.cols;
  const std::int64_t rows = to.max_of(a.gate.rows);
  const bool bf16 = a.gate.dtype == DType::bf16 && a.up.dtype == DType::bf16 && a.y.dtype == DType::bf16;
  if (!bf16 || !in_eights(a.gate, cols) || !in_eights(a.up, cols) || !in_eights(a.y, cols)) return kNotEights;
  if (const char* why = refuse_eights(rows, cols, pack)) return why;
  if (rows <= 0) return nullptr;
  return with_kind_of(pack, [&](auto kind) {
    constexpr Kind K = decltype(kind)::value;
    return launch_eights<K>(to, rows, cols, swiglu_by_eights<K>, to.step, a.gate.rows, cols, rows <= kEarlyRows,
                            typed<const Bf16>(a.gate), typed<const Bf16>(a.up), typed<Bf16>(a.y), codes_of_8(pack));
  });
}

const char* quantize_eights(const Launch& to, const QuantizeArgs& a) {
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
      return launch_eights<K>(to, rows, cols, quantize_by_eights<K>, to.step, a.x.rows, cols, rows <= kEarlyRows,
                              typed<const Bf16>(a.x), codes_of_8(&pack));
    }
  });
}

}  // namespace nibble::cuda
