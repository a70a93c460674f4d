// eights_norms.cu: GatedRmsNorm of groups of 128 and RmsNorm, with codes behind them or without, of core/ops/ops.h.
//   gated   x, z, y [rows, heads * 128] bf16        map as eights_elementwise.cu, 8 or 16 lanes a group
//   plain   x [rows, cols] f32, y bf16              map   blocks that stay, a row at a time, 16 columns a thread; the
//           next row is copied to shared memory meanwhile; few rows: a block 1,024 columns of a row
//   sums  f32, the tree of core/numerics/reduce.h: its lanes are strided columns, so values go through shared memory
//   cost  4 bytes in, half a byte to 2 bytes out: bandwidth bound
//   needs fp8_token of a gated norm: sm_90 or later
#include "backends/cuda/ops/eights_row.cuh"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

constexpr int kGroup = 128;
constexpr int kTerms = kGroup / num::kTreeShort;  // of a lane of the tree
static_assert(kGroup <= num::kTreeSwitch && num::kTreeShort == 32);

// The tree's sum of squares of 128 columns by 16 / N lanes with N eights each. Lane h takes the tree's lanes 2 N h and
// on, N words in each 32 columns. `words`: shared, of this warp; 16 more behind each group, so that two lie in other
// banks.
constexpr int kWordsOfGroup = kGroup / 2 + 16;
template <int N>
__device__ __forceinline__ float group_squares(const Eight (&x)[N], unsigned* words) {
  constexpr int kLanes = kGroup / 8 / N;
  const int lane = static_cast<int>(threadIdx.x) % 32, h = lane % kLanes;
  unsigned* const group = words + lane / kLanes * kWordsOfGroup;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    *reinterpret_cast<uint4*>(group + 4 * (N * h + n)) = make_uint4(x[n].w[0], x[n].w[1], x[n].w[2], x[n].w[3]);
  }
  __syncwarp();
  float sums[2 * N] = {};
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const unsigned pair = group[16 * term + N * h + n];
      const float low = low_of(pair), high = high_of(pair);
      sums[2 * n] = num::fma(low, low, sums[2 * n]);
      sums[2 * n + 1] = num::fma(high, high, sums[2 * n + 1]);
    }
  }
#pragma unroll
  for (int s = kLanes / 2; s > 0; s /= 2) {
#pragma unroll
    for (float& sum : sums) sum = num::add(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, s));
  }
#pragma unroll
  for (int s = N; s > 0; s /= 2) {
#pragma unroll
    for (int i = 0; i < s; ++i) sums[i] = num::add(sums[i], sums[i + s]);
  }
  return sums[0];
}

// normed[i] = (x[i] * f) * w[i]
template <int N>
__device__ __forceinline__ void scale(const Eight (&x)[N], float f, const float (&w)[N][8], float (&normed)[N][8]) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    widen8(x[n], normed[n]);
#pragma unroll
    for (int i = 0; i < 8; ++i) normed[n][i] = num::mul(num::mul(normed[n][i], f), w[n][i]);
  }
}

template <Kind K, int N, bool kEarly>
__global__ void __launch_bounds__(kMostThreadsOfEights)
    gated_by_eights(const StepView* step, Rows rows, std::int32_t cols, TypedRows<const Bf16> xs,
                    TypedRows<const Bf16> zs, TypedRows<Bf16> ys, const float* weight, float eps, CodesOf8 to) {
  __shared__ __align__(16) unsigned words[kMostThreadsOfEights / 32][32 * N / (kGroup / 8) * kWordsOfGroup];
  const Own own = own_eights<N>(cols);
  const std::int32_t count = row_count(*step, rows);
  if (!kEarly && own.row >= count) return;
  Eight x[N] = {}, z[N] = {};
  float w[N][8];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (own.exists) {
      x[n] = load8(xs.row(own.row) + own.column + 8 * n);
      z[n] = load8(zs.row(own.row) + own.column + 8 * n);
    }
    load8(weight + own.column % kGroup + 8 * n, w[n]);
  }
  unsigned loaded = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    loaded |= z[n].w[0] | num::bit_cast<unsigned>(w[n][0]) | num::bit_cast<unsigned>(w[n][4]);
  }
  if (own.row >= count || never(loaded)) return;
  if constexpr (K == Kind::fp8_token) blocks_start();
  const float sum = group_squares(x, words[threadIdx.x / 32]);
  const float f = num::rsqrt(num::add(num::mul(sum, 1.0f / kGroup), eps));
  float normed[N][8];
  scale(x, f, w, normed);
  finish_eights<K>(ys, to, own, times_silu(normed, z));
}

// --- RmsNorm ---

// So many blocks of the longest rows fit on a multiprocessor, by registers; of shorter ones as many threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksOfLongest = 2;  // would spill
#else
constexpr int kBlocksOfLongest = 3;
#endif
static_assert(2 * padded(kMostColsOfRow) * sizeof(float) <= (40 << 10));  // two rows, below the 48 KiB of every card

// This thread's part of a row to shared memory, in the background where the card can, until copies_done().
__device__ __forceinline__ void copy_part(float* to, const float* from, int cols) {
  for (int chunk = static_cast<int>(threadIdx.x); chunk < cols / 4; chunk += static_cast<int>(blockDim.x)) {
    float4* const at = reinterpret_cast<float4*>(to) + place_of(chunk);
    const float4* const source = reinterpret_cast<const float4*>(from) + chunk;
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(at))),
                 "l"(__cvta_generic_to_global(source))
                 : "memory");
#else
    *at = *source;
#endif
  }
}
__device__ __forceinline__ void copies_done() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// Few rows leave multiprocessors idle: then each block sums a whole row, but makes a piece of it only, one eight a
// thread. Not for fp8_token, which needs the row's maximum.
constexpr std::int64_t kFewRowsOfNorm = 16;
constexpr int kPieceOfNorm = 1024;
static_assert(kPieceOfNorm <= 8 * num::kTreeLong && kPieceOfNorm % 128 == 0);

// N = 1: block x, y piece y of row x; 2: blocks that stay.
template <Kind K, int N>
__global__ void __launch_bounds__(kMostThreadsOfRow, kBlocksOfLongest)
    rms_by_rows(const StepView* step, Rows rows, std::int32_t cols, TypedRows<const float> xs, TypedRows<Bf16> ys,
                const float* weight, float inverse, float eps, CodesOf8 to) {
  static_assert(N == kEightsOfRow || (N == 1 && K != Kind::fp8_token));
  extern __shared__ float4 memory[];  // [2][padded(cols)] floats
  __shared__ float lanes[num::kTreeLong];
  __shared__ unsigned maxima[32];
  const std::int32_t count = row_count(*step, rows);
  float* now = reinterpret_cast<float*>(memory);
  float* next = now + padded(cols);
  // the first row without waiting for the step's count: the class has it
  copy_part(now, xs.row(blockIdx.x), cols);
  // Eights of a thread follow one another, for codes; without codes warps store whole lines.
  const int t = static_cast<int>(threadIdx.x), begin = N == 1 ? static_cast<int>(blockIdx.y) * kPieceOfNorm : 0,
            end = N == 1 ? min(begin + kPieceOfNorm, cols) : cols, first = begin + (K == Kind::none ? 8 : 8 * N) * t,
            apart = K == Kind::none ? 8 * static_cast<int>(blockDim.x) : 8;
  float w[N][8] = {};
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (first + n * apart < end) load8(weight + first + n * apart, w[n]);
  }
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    copies_done();
    __syncthreads();  // and all have read the row before, whose place the next one takes
    if (row + gridDim.x < count) copy_part(next, xs.row(row + gridDim.x), cols);
    const float f = num::rsqrt(num::add(num::mul(block_fold(lane_squares(now, cols), lanes), inverse), eps));
    Eights<N> made;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const int column = first + n * apart;
      float v[8] = {};
      if (column < end) load8_of_row(now, column, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = num::mul(num::mul(v[i], f), w[n][i]);
      made.of[n] = narrow8(v);
      if (column < end && ys.data != nullptr) store8(ys.row(row) + column, made.of[n]);
    }
    if constexpr (K != Kind::none) {
      made.find_most();
      const Own own{row, first, first < end};
      if constexpr (K == Kind::fp8_token) {
        put_token(to, own, made, block_of_warps_max(made.most_number(), maxima));
      } else {
        pack_eights<K>(to, row, first, own.exists, made);
      }
    }
    float* const other = now;
    now = next, next = other;
  }
}

}  // namespace

const char* gated_rms_norm_eights(const Launch& to, const GatedRmsNormArgs& a, const PackArgs* pack, Serve what) {
  const std::int32_t cols = a.x.cols;
  const std::int64_t rows = to.max_of(a.x.rows);
  const bool bf16 = a.x.dtype == DType::bf16 && a.z.dtype == DType::bf16 && a.y.dtype == DType::bf16;
  if (!bf16 || !in_eights(a.x, cols) || !in_eights(a.z, cols) || !in_eights(a.y, cols)) return kNotEights;
  if (a.group != kGroup) return "groups are not of 128 columns";
  if (reinterpret_cast<std::uintptr_t>(a.weight) % 16 != 0) return kNotEights;
  if (const char* why = refuse_eights(rows, cols, pack)) return why;
  if (rows <= 0) return nullptr;
  return with_kind_of(pack, [&](auto kind) {
    constexpr Kind K = decltype(kind)::value;
    const int n = eights_a_thread(rows, cols, pack);
    const auto kernel = is_early<K>(n, rows) ? gated_by_eights<K, 1, true> : gated_by_eights<K, kMostEights<K>, false>;
    return launch_eights<K>(what, to, rows, cols, n, kernel, to.step, a.x.rows, cols, typed<const Bf16>(a.x),
                            typed<const Bf16>(a.z), typed<Bf16>(a.y), a.weight, a.eps, codes_of_8(pack));
  });
}

const char* rms_norm_eights(const Launch& to, const RmsNormArgs& a, const PackArgs* pack, Serve what) {
  const std::int32_t cols = a.x.cols;
  const std::int64_t rows = to.max_of(a.x.rows);
  if (a.x.dtype != DType::f32 || a.y.dtype != DType::bf16 || !in_eights(a.x, cols) || !in_eights(a.y, cols) ||
      reinterpret_cast<std::uintptr_t>(a.weight) % 16 != 0) {
    return kNotEights;
  }
  if (cols % (8 * kEightsOfRow) != 0 || (pack != nullptr && !codes_in_eights(*pack, cols, kEightsOfRow))) {
    return kNotEights;
  }
  if (cols <= num::kTreeSwitch || cols > kMostColsOfRow) return "a row is no long tree, or too long for shared memory";
  if (const char* why = refuse_eights(rows, cols, pack)) return why;
  if (rows <= 0 || what == Serve::ask) return nullptr;
  const bool token = pack != nullptr && pack->format.kind == Kind::fp8_token;
  const bool few = rows <= kFewRowsOfNorm && !token;
  with_kind_of(pack, [&](auto kind) {
    constexpr Kind K = decltype(kind)::value;
    const auto lanes = static_cast<unsigned>((cols / (8 * kEightsOfRow) + 31) / 32 * 32);
    const unsigned threads = few ? num::kTreeLong : max(static_cast<unsigned>(num::kTreeLong), lanes),
                   fit = kBlocksOfLongest * kMostThreadsOfRow / threads,
                   staying = max(static_cast<unsigned>(to.multiprocessors) * fit, 1u);
    const auto all = static_cast<unsigned>(rows),
               pieces = static_cast<unsigned>((cols + kPieceOfNorm - 1) / kPieceOfNorm);
    const dim3 grid = few ? dim3(all, pieces) : dim3(min(all, staying));
    constexpr int kFew = K == Kind::fp8_token ? kEightsOfRow : 1;
    const auto kernel = few ? rms_by_rows<K, kFew> : rms_by_rows<K, kEightsOfRow>;
    kernel<<<grid, threads, 2 * padded(cols) * sizeof(float), to.stream>>>(
        to.step, a.x.rows, cols, typed<const float>(a.x), typed<Bf16>(a.y), a.weight,
        static_cast<float>(1.0 / static_cast<double>(cols)), a.eps, codes_of_8(pack));
  });
  return nullptr;
}

}  // namespace nibble::cuda
