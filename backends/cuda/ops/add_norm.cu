// add_norm.cu: AddRmsNorm of core/ops/ops.h, with codes behind the norm or without.
//   a, b, sum [rows, cols] f32, the sum may lie over a; y bf16, or f32 where rows of f16 are made of it
//   map   few rows: a block a row, 8 columns a thread; more: blocks that stay, a row at a time, 16 columns a thread, and
//         the next row of b is on its way to registers meanwhile. A thread's sums stay in registers for the norm
//   sums  f32, the tree of core/numerics/reduce.h: its lanes are strided columns, so sums go through shared memory
//   cost  8 bytes in, 4 and half a byte to 4 out: bandwidth bound
//   needs rows in eights; others are added and then normed
#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/launch_early.h"
#include "backends/cuda/ops/eights_row.cuh"
#include "backends/cuda/ops/linear_parts.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

constexpr int kThreadsOfFew = kMostColsOfRow / 8, kBlocks = 2;  // of the longest rows, by registers
static_assert(padded(kMostColsOfRow) * sizeof(float) <= (40 << 10));  // below the 48 KiB of every card
constexpr std::int64_t kFewRows = 16;  // or as many as there are multiprocessors

__device__ __forceinline__ void store8(float* at, const float* v) {
  reinterpret_cast<float4*>(at)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(at)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void store8_of_row(float* row, int column, const float* v) {
  reinterpret_cast<float4*>(row)[place_of(column / 4)] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(row)[place_of(column / 4 + 1)] = make_float4(v[4], v[5], v[6], v[7]);
}

template <Kind K, class Y, int N>
__global__ void __launch_bounds__(N == 1 ? kThreadsOfFew : kMostThreadsOfRow, N == 1 ? 1 : kBlocks)
    add_rms_by_rows(const StepView* step, Rows rows, std::int32_t cols, TypedRows<const float> as, TypedRows<const float> bs,
                    TypedRows<float> sums, TypedRows<Y> ys, const float* weight, float inverse, float eps, CodesOf8 to) {
  constexpr bool kBf16 = std::is_same_v<Y, Bf16>;
  static_assert(kBf16 || K == Kind::none);
  extern __shared__ float4 memory[];  // [padded(cols)] floats
  __shared__ float lanes[num::kTreeLong];
  __shared__ unsigned maxima[32];
  float* const shared_row = reinterpret_cast<float*>(memory);
  // Eights of a thread follow one another, for codes; without codes warps store whole lines.
  const int first = (K == Kind::none ? 8 : 8 * N) * static_cast<int>(threadIdx.x),
            apart = K == Kind::none ? 8 * static_cast<int>(blockDim.x) : 8;
  float w[N][8] = {}, a[N][8] = {}, b[N][8] = {};
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int column = first + n * apart;
    if (column < cols) load8(weight + column, w[n]);
  }
  wait_for_launches_before();
  const auto bring = [&](const TypedRows<const float>& from, std::int64_t row, float (&to_row)[N][8]) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (first + n * apart < cols) load8(from.row(row) + first + n * apart, to_row[n]);
    }
  };
  bring(as, blockIdx.x, a);  // without waiting for the step's count: the class has the row
  bring(bs, blockIdx.x, b);
  const std::int32_t count = row_count(*step, rows);
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    float v[N][8];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int column = first + n * apart;
#pragma unroll
      for (int i = 0; i < 8; ++i) v[n][i] = num::add(a[n][i], b[n][i]);
      if (column < cols) store8(sums.row(row) + column, v[n]), store8_of_row(shared_row, column, v[n]);
    }
    const std::int64_t next = row + gridDim.x;
    if (next < count) bring(bs, next, b);
    __syncthreads();
    // Its barrier is behind the last look at shared_row, that above behind the last one at `lanes`.
    const float f = num::rsqrt(num::add(num::mul(block_fold(lane_squares(shared_row, cols), lanes), inverse), eps));
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[n][i] = num::mul(num::mul(v[n][i], f), w[n][i]);
    }
    if constexpr (kBf16) {
      Eights<N> made;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int column = first + n * apart;
        made.of[n] = narrow8(v[n]);
        if (column < cols && ys.data != nullptr) store8(ys.row(row) + column, made.of[n]);
      }
      if constexpr (K != Kind::none) {
        made.find_most();
        const Own own{row, first, first < cols};
        if constexpr (K == Kind::fp8_token) {
          put_token(to, own, made, block_of_warps_max(made.most_number(), maxima));
        } else {
          pack_eights<K>(to, row, first, own.exists, made);
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int column = first + n * apart;
        if (column < cols) store8(ys.row(row) + column, v[n]);
      }
    }
    if (next < count) bring(as, next, a);  // there are no registers for it before
  }
}

bool is_f32_in_eights(const View& v, std::int32_t cols) { return v.dtype == DType::f32 && in_eights(v, cols); }

template <Kind K, class Y>
void launch(const Launch& to, const AddRmsNormArgs& a, const PackArgs* pack) {
  const std::int32_t cols = a.norm.x.cols;
  const auto rows = static_cast<unsigned>(to.max_of(a.norm.x.rows)), all = static_cast<unsigned>(max(to.multiprocessors, 1));
  const bool few = rows <= max(static_cast<unsigned>(kFewRows), all);
  const int n = few ? 1 : kEightsOfRow;
  const unsigned threads = max(static_cast<unsigned>(num::kTreeLong), static_cast<unsigned>((cols / (8 * n) + 31) / 32 * 32)),
                 staying = all * (kBlocks * kMostThreadsOfRow / threads), blocks = few ? rows : min(rows, staying);
  const auto shared = static_cast<unsigned>(padded(cols) * sizeof(float));
  const auto kernel = few ? add_rms_by_rows<K, Y, 1> : add_rms_by_rows<K, Y, kEightsOfRow>;
  const auto start = [&](const auto&... args) {
    // Code that is compiled on the card, from PTX, has no wait for the launches before.
    if (has_wgmma() || has_fp4()) {
      launch_early(kernel, blocks, threads, shared, to.stream, args...);
    } else {
      kernel<<<blocks, threads, shared, to.stream>>>(args...);
    }
  };
  start(to.step, a.norm.x.rows, cols, typed<const float>(a.add.a), typed<const float>(a.add.b), typed<float>(a.add.y),
        typed<Y>(a.norm.y), a.norm.weight, static_cast<float>(1.0 / static_cast<double>(cols)), a.norm.eps, codes_of_8(pack));
}

}  // namespace

const char* add_rms_norm_eights(const Launch& to, const AddRmsNormArgs& a, const PackArgs* pack, Serve what) {
  const View &y = a.norm.y, &sum = a.add.y;
  const std::int32_t cols = sum.cols;
  const std::int64_t rows = to.max_of(sum.rows);
  const bool bf16 = y.dtype == DType::bf16, f32 = y.dtype == DType::f32 && pack == nullptr;
  if ((!bf16 && !f32) || !is_f32_in_eights(a.add.a, cols) || !is_f32_in_eights(a.add.b, cols) || !is_f32_in_eights(sum, cols) ||
      !in_eights(y, cols) || reinterpret_cast<std::uintptr_t>(a.norm.weight) % 16 != 0) {
    return kNotEights;
  }
  if (cols % (8 * kEightsOfRow) != 0 || (pack != nullptr && !codes_in_eights(*pack, cols, kEightsOfRow))) return kNotEights;
  if (cols <= num::kTreeSwitch || cols > kMostColsOfRow) return "a row is no long tree, or too long for shared memory";
  if (rows <= 0 || what == Serve::ask) return nullptr;
  with_kind_of(pack, [&](auto kind) {
    constexpr Kind K = decltype(kind)::value;
    if constexpr (K == Kind::none) {
      if (f32) return launch<K, float>(to, a, pack);
    }
    launch<K, Bf16>(to, a, pack);
  });
  return nullptr;
}

void add_rms_norm(const Launch& to, const AddRmsNormArgs& a) {
  if (add_rms_norm_eights(to, a, nullptr) == nullptr) return;
  add(to, a.add);
  rms_norm(to, a.norm);
}

void add_rms_norm_pack(const Launch& to, const AddRmsNormArgs& a, const PackArgs& pack) {
  if (add_rms_norm_eights(to, a, &pack) == nullptr) return;
  add(to, a.add);
  rms_norm_pack(to, a.norm, pack);
}

}  // namespace nibble::cuda
