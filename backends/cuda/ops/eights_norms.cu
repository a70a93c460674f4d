// eights_norms.cu: GatedRmsNorm of groups of 128 and RmsNorm, with codes behind them or without, of core/ops/ops.h.
//   gated   x, z, y [rows, heads * 128] bf16        map as eights_elementwise.cu, 16 lanes a group
//   plain   x [rows, cols] f32, y bf16              map   blocks that stay, a row at a time, eight columns a thread; the
//           next row is copied to shared memory meanwhile
//   sums  f32, the tree of core/numerics/reduce.h: its lanes are strided columns, so values go through shared memory
//   cost  4 bytes in, half a byte to 2 bytes out: bandwidth bound
//   needs fp8_token of a gated norm: sm_90 or later
#include "backends/cuda/device/fold.cuh"
#include "backends/cuda/ops/eights.cuh"

namespace nibble::cuda {
namespace {

using Kind = ActivationFormat::Kind;

constexpr int kGroup = 128, kGroupLanes = kGroup / 8;
static_assert(kGroup <= num::kTreeSwitch && num::kTreeShort == 32);

// The tree's sum of squares of 128 columns by 16 lanes that have eight each. Lane 4 r + k has columns 32 r + 8 k and on;
// it takes the tree's lanes 8 k + 2 r and the next, their terms from the lanes k, k + 4, k + 8 and k + 12.
// `words`: shared, of this warp; its second group 16 words further on, in other banks.
constexpr int kWordsOfWarp = 2 * (kGroup / 2) + 16;
__device__ __forceinline__ float group_squares(const Eight& x, unsigned* words) {
  const int lane = static_cast<int>(threadIdx.x) % 32, in_group = lane % kGroupLanes, k = in_group % 4,
            r = in_group / 4;
  unsigned* const group = words + lane / kGroupLanes * (kGroup / 2 + 16);
  *reinterpret_cast<uint4*>(group + 4 * in_group) = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
  __syncwarp();
  float first = 0.0f, second = 0.0f;
#pragma unroll
  for (int term = 0; term < 4; ++term) {
    const unsigned pair = group[4 * (4 * term + k) + r];
    const float low = low_of(pair), high = high_of(pair);
    first = num::fma(low, low, first);
    second = num::fma(high, high, second);
  }
  // the tree's folds by 16, 8, 4 and 2 of its lanes, each another bit of k and r
#pragma unroll
  for (const int bit : {2, 1, 8, 4}) {
    first = num::add(first, __shfl_xor_sync(0xFFFFFFFFu, first, bit));
    second = num::add(second, __shfl_xor_sync(0xFFFFFFFFu, second, bit));
  }
  return num::add(first, second);
}

template <Kind K>
__global__ void __launch_bounds__(kMostThreadsOfEights)
    gated_by_eights(const StepView* step, Rows rows, std::int32_t cols, bool early, TypedRows<const Bf16> xs,
                    TypedRows<const Bf16> zs, TypedRows<Bf16> ys, const float* weight, float eps, CodesOf8 to) {
  __shared__ __align__(16) unsigned words[kMostThreadsOfEights / 32 * kWordsOfWarp];
  const OwnEight own = own_eight(cols);
  const std::int32_t count = row_count(*step, rows);
  if (!early && own.row >= count) return;
  Eight x{}, z{};
  float w[8];
  load8(weight + own.column % kGroup, w);
  if (own.exists) {
    x = load8(xs.row(own.row) + own.column);
    z = load8(zs.row(own.row) + own.column);
  }
  if (own.row >= count) return;
  if constexpr (K == Kind::fp8_token) blocks_start();
  const float sum = group_squares(x, words + threadIdx.x / 32 * kWordsOfWarp);
  const float f = num::rsqrt(num::add(num::mul(sum, 1.0f / kGroup), eps));
  float v[8];
  widen8(x, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = num::mul(num::mul(v[i], f), w[i]);
  unsigned most;
  const Eight made = times_silu8(v, z, most);
  if (own.exists && ys.data != nullptr) store8(ys.row(own.row) + own.column, made);
  finish8<K>(to, own, made, most);
}

// --- RmsNorm ---

// Two blocks of the longest rows fit on a multiprocessor, by registers and threads; of shorter ones as many threads.
constexpr int kMostThreadsOfRow = 640, kBlocksOfLongest = 2;
constexpr std::int32_t kMostColsOfRow = 8 * kMostThreadsOfRow;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksAsked = 1;  // 1,024 threads are all that a multiprocessor has
#else
constexpr int kBlocksAsked = kBlocksOfLongest;
#endif
static_assert(2 * kMostColsOfRow * sizeof(float) <= (40 << 10));  // two rows, below the 48 KiB that every card gives

// This thread's eight columns to shared memory, in the background where the card can; wait_copies<n>: until all but the
// last n of its copies are there, for this thread.
__device__ __forceinline__ void copy8(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;\n"
      "cp.async.cg.shared.global [%0 + 16], [%1 + 16], 16;" ::"r"(at),
      "l"(__cvta_generic_to_global(from))
      : "memory");
#else
  for (int i = 0; i < 2; ++i) reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
#endif
}
__device__ __forceinline__ void end_copy() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// The sum of this thread's lane of the long tree; threads behind the lanes have none.
__device__ __forceinline__ float lane_squares(const float* x, int cols) {
  constexpr int kAtOnce = 10;
  float sum = 0.0f;
  if (threadIdx.x >= num::kTreeLong) return sum;
  for (int start = static_cast<int>(threadIdx.x); start < cols; start += kAtOnce * num::kTreeLong) {
    float v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) v[i] = start + num::kTreeLong * i < cols ? x[start + num::kTreeLong * i] : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) sum = num::fma(v[i], v[i], sum);  // zeros add nothing
  }
  return sum;
}

template <Kind K>
__global__ void __launch_bounds__(kMostThreadsOfRow, kBlocksAsked)
    rms_by_rows(const StepView* step, Rows rows, std::int32_t cols, TypedRows<const float> xs, TypedRows<Bf16> ys,
                const float* weight, float inverse, float eps, CodesOf8 to) {
  extern __shared__ float4 memory[];  // [2][cols] floats
  __shared__ float lanes[num::kTreeLong];
  __shared__ unsigned maxima[32];
  float* const x = reinterpret_cast<float*>(memory);
  const std::int32_t count = row_count(*step, rows);
  const int column = 8 * static_cast<int>(threadIdx.x);
  const bool exists = column < cols;
  // the first row without waiting for the step's count: the class has it
  if (exists) copy8(x + column, xs.row(blockIdx.x) + column);
  end_copy();
  float w[8] = {};
  if (exists) load8(weight + column, w);
  int half = 0;
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x, half ^= 1) {
    // its readers have passed the barrier in block_fold since, and this thread its own reading
    if (exists && row + gridDim.x < count) copy8(x + (half ^ 1) * cols + column, xs.row(row + gridDim.x) + column);
    end_copy();
    wait_copies<1>();
    __syncthreads();
    const float* const now = x + half * cols;
    const float f = num::rsqrt(num::add(num::mul(block_fold(lane_squares(now, cols), lanes), inverse), eps));
    float v[8] = {};
    if (exists) load8(now + column, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = num::mul(num::mul(v[i], f), w[i]);
    const Eight made = narrow8(v);
    if (exists && ys.data != nullptr) store8(ys.row(row) + column, made);
    if constexpr (K == Kind::fp8_token) {
      const float scale = fp8_scale(block_of_warps_max(most8_number(made), maxima));
      if (exists) *reinterpret_cast<uint2*>(to.codes.row(row) + column) = e4m3_codes8(made, scale);
      if (column == 0) reinterpret_cast<float*>(to.scales)[row * to.scale_stride] = scale;
    } else if constexpr (K != Kind::none) {
      pack8<K>(to, row, column, exists, made, most8(made));
    }
  }
}

}  // namespace

const char* gated_rms_norm_eights(const Launch& to, const GatedRmsNormArgs& a, const PackArgs* pack) {
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
    return launch_eights<K>(to, rows, cols, gated_by_eights<K>, to.step, a.x.rows, cols, rows <= kEarlyRows,
                            typed<const Bf16>(a.x), typed<const Bf16>(a.z), typed<Bf16>(a.y), a.weight, a.eps,
                            codes_of_8(pack));
  });
}

const char* rms_norm_eights(const Launch& to, const RmsNormArgs& a, const PackArgs* pack) {
  const std::int32_t cols = a.x.cols;
  const std::int64_t rows = to.max_of(a.x.rows);
  if (a.x.dtype != DType::f32 || a.y.dtype != DType::bf16 || !in_eights(a.x, cols) || !in_eights(a.y, cols) ||
      reinterpret_cast<std::uintptr_t>(a.weight) % 16 != 0) {
    return kNotEights;
  }
  if (cols <= num::kTreeSwitch || cols > kMostColsOfRow) return "a row is no long tree, or does not fit in shared memory";
  if (const char* why = refuse_eights(rows, cols, pack)) return why;
  if (rows <= 0) return nullptr;
  with_kind_of(pack, [&](auto kind) {
    const auto threads = static_cast<unsigned>(max(num::kTreeLong, (cols / 8 + 31) / 32 * 32)),
               at_once = static_cast<unsigned>(to.multiprocessors) * (kBlocksOfLongest * kMostThreadsOfRow / threads);
    const auto blocks = min(static_cast<unsigned>(rows), max(at_once, 1u));
    rms_by_rows<decltype(kind)::value>
        <<<blocks, threads, 2 * static_cast<std::size_t>(cols) * sizeof(float), to.stream>>>(
            to.step, a.x.rows, cols, typed<const float>(a.x), typed<Bf16>(a.y), a.weight,
            static_cast<float>(1.0 / static_cast<double>(cols)), a.eps, codes_of_8(pack));
  });
  return nullptr;
}

}  // namespace nibble::cuda
