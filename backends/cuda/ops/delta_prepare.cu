// delta_prepare.cu: A, M and the decays of every chunk and value head (delta_units.cuh)
//   map    block = a chunk of a key head and up to four of its value heads, one after the other; warp w has rows 16 w ..
//          16 w + 15 of Z and W, then block (w, .) of X
//   Z, W   fragments of k and q from shared memory, keys as B; the value heads share them, in registers
//   X      in shared memory over the keys, which nobody needs then; two rows by four, two or one columns a lane, so that
//          few blocks far from the diagonal keep all warps busy
//   cost   2 * 64 * 64 * key_dim on the matrix units for a key head; 65,536 fma for X and 2,080 exponentials for a value
//          head, 24.5 KiB written -> latency of X, hidden by the other blocks of a multiprocessor
//   needs  sm_90a
#include "backends/cuda/device/delta_products.cuh"
#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/ops/delta_inverse.cuh"
#include "backends/cuda/ops/delta_units.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 128, kBlocks = 4;
constexpr int kHeads = 4;  // of one key head in a block, at most; a warp adds up the gates of each
constexpr int kStride = kInverseStride;

template <int KeyDim>
struct Layout {
  using Tile = KeyTile<KeyDim>;
  static constexpr int kSquare = kDeltaChunk * kStride * 4;
  static constexpr int kTiles = 2 * Tile::kBytes > kSquare ? 2 * Tile::kBytes : kSquare;  // keys, queries; then X
  static constexpr int kLowerAt = kTiles;
  static constexpr int kSumsAt = kLowerAt + kSquare, kBetaAt = kSumsAt + kHeads * kDeltaChunk * 4;
  static constexpr int kBarrierAt = kBetaAt + kHeads * kDeltaChunk * 4;
  static constexpr int kBytes = 1024 + kBarrierAt + 8;
  static_assert((kBytes + 1024) * kBlocks <= 228 * 1024);
};

// 16 bytes of A: four even or four odd columns of eight.
__device__ __forceinline__ void put_a(std::byte* record, const float* x, const float* beta) {
#pragma unroll 2
  for (int n = static_cast<int>(threadIdx.x); n < kABytes / 16; n += kThreads) {
    const bool left = n < kHalfOfA / 16;
    const int i = n / 8 - (left ? 0 : kDeltaChunk / 2), eight = n % 8 / 2 + (left ? 0 : 4), odd = n % 2;
    float a[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int j = eight * 8 + 2 * c + odd;
      const float v = __uint_as_float(tf32_bits(num::mul(x[i * kStride + j], beta[j])));
      a[c] = j <= i ? v : 0.0f;  // what lies above was never written
    }
    const int chunk = (eight % 4 * 2 + odd) ^ (i & 7);
    *reinterpret_cast<float4*>(record + n / 8 * 128 + chunk * 16) = make_float4(a[0], a[1], a[2], a[3]);
  }
}

// to = rows of `left` times keys.
template <int KeyDim, class Units>
__device__ __forceinline__ void products(std::uint32_t left, std::uint32_t keys, int warp, int lane, float (&to)[32]) {
  using Tile = KeyTile<KeyDim>;
  std::uint32_t a[Tile::kSteps][4];
#pragma unroll
  for (int s = 0; s < Tile::kSteps; ++s) {
    const uint4 v = load_matrices(left + Tile::at(warp * 16 + lane % 16, 2 * s + lane / 16));
    a[s][0] = v.x, a[s][1] = v.y, a[s][2] = v.z, a[s][3] = v.w;
    settle(a[s]);
  }
  Units::fence();
#pragma unroll
  for (int s = 0; s < Tile::kSteps; ++s) Units::template tokens<Tile>(to, a[s], keys, s);
  Units::commit();
  Units::template wait<0>();
  settle(to);
}

// v where all bits are set, +0 where none is. A choice would become a branch around what v costs, and exponentials would
// wait for one another.
__device__ __forceinline__ float only_where(int bits, float v) {
  return __int_as_float(bits & __float_as_int(v));
}

// L and M of a value head, of this thread's elements of Z and W.
__device__ __forceinline__ void decay_products(const float (&z)[32], const float (&w)[32], const float* sums,
                                               const float* beta, int rows, float* lower, std::byte* m_of, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = warp * 16 + lane / 4 + half * 8, j = n * 8 + lane % 4 * 2;
      std::uint32_t* const m_at = reinterpret_cast<std::uint32_t*>(m_of + i * 128 + (n ^ (i & 7)) * 16 + lane % 4 * 4);
      if (n > 2 * warp + 1) {  // above the diagonal
        *m_at = 0;
        continue;
      }
      const float g = sums[i], b = beta[i];
      const float2 before = *reinterpret_cast<const float2*>(sums + j);
      const float decays[2] = {num::exp(num::sub(g, before.x)), num::exp(num::sub(g, before.y))};
      float l[2], m[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int there = (i - rows) >> 31;  // all bits or none
        l[e] = only_where(there & (j + e - i) >> 31, num::mul(num::mul(b, z[4 * n + 2 * half + e]), decays[e]));
        m[e] = only_where(there & (j + e - i - 1) >> 31, num::mul(w[4 * n + 2 * half + e], decays[e]));
      }
      *reinterpret_cast<float2*>(lower + i * kStride + j) = make_float2(l[0], l[1]);
      *m_at = bf16_pair(m[0], m[1]);
    }
  }
}

template <int KeyDim, class Units>
__global__ void __launch_bounds__(kThreads, kBlocks)
    prepare(const __grid_constant__ CUtensorMap map, const DeltaUnitsParams p, int parts) {
  using Tile = KeyTile<KeyDim>;
  using L = Layout<KeyDim>;
  extern __shared__ std::byte memory[];
  const Found found = find_chunk(*p.steps, p.section, static_cast<int>(blockIdx.x));
  if (found.range == nullptr) return;
  const DeltaShape& d = p.state.shape;
  const int group = d.value_heads / d.key_heads, key_head = static_cast<int>(blockIdx.y) / parts;
  const int first_head = static_cast<int>(blockIdx.y) % parts * kHeads, heads = min(kHeads, group - first_head);
  const int rows = found.chunk.rows, first = found.range->first_row + found.chunk.first;
  const int head = key_head * group + first_head;
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
  const std::uint32_t start = (shared_address(memory) + 1023) / 1024 * 1024;
  std::byte* const base = memory + (start - shared_address(memory));
  float* const x = reinterpret_cast<float*>(base);
  float* const lower = reinterpret_cast<float*>(base + L::kLowerAt);
  float* const sums = reinterpret_cast<float*>(base + L::kSumsAt);  // [kHeads, 64]
  float* const beta = reinterpret_cast<float*>(base + L::kBetaAt);
  const Barrier full{start + L::kBarrierAt};
  const std::uint32_t keys = start, queries = start + Tile::kBytes;
  if (t == 0) {
    full.init(1);
    fence_barriers();
    full.arrive_expecting(2 * Tile::kBytes);
    const int column = key_head * d.key_dim;
    Tile::copy(keys, &map, static_cast<int>(d.key_channels()) + column, first, full);
    Tile::copy(queries, &map, column, first, full);
  }
  for (int n = t; n < kHeads * kDeltaChunk; n += kThreads) {
    const int i = n % kDeltaChunk, h = n / kDeltaChunk;
    const bool there = i < rows && h < heads;
    sums[n] = there ? p.g.row(first + i)[head + h] : 0.0f;
    beta[n] = there ? p.beta.row(first + i)[head + h] : 0.0f;
  }
  __syncthreads();
  if (lane == 0) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kDeltaChunk; i += 4) {
      float g[4];
      inverse::read<4>(sums + warp * kDeltaChunk + i, g);
#pragma unroll
      for (int n = 0; n < 4; ++n) g[n] = sum = num::add(sum, g[n]);
      *reinterpret_cast<float4*>(sums + warp * kDeltaChunk + i) = make_float4(g[0], g[1], g[2], g[3]);
    }
  }
  __syncthreads();
  for (int n = t; n < heads * kDeltaChunk; n += kThreads) {
    const int i = n % kDeltaChunk, h = n / kDeltaChunk;
    float* const decays = reinterpret_cast<float*>(p.record(blockIdx.x, head + h) + kDecaysAt);
    decays[i] = num::exp(sums[n]);
    decays[kDeltaChunk + i] = num::exp(num::sub(sums[h * kDeltaChunk + kDeltaChunk - 1], sums[n]));
  }
  let_next_launch_begin();
  full.wait(0);

  // Lane 4 g + p: rows 16 w + g and + 8, columns 8 n + 2 p and + 1.
  float z[32] = {}, w[32] = {};
  products<KeyDim, Units>(keys, keys, warp, lane, z);
  products<KeyDim, Units>(queries, keys, warp, lane, w);
#pragma unroll 1
  for (int h = 0; h < heads; ++h) {
    std::byte* const record = p.record(blockIdx.x, head + h);
    const float *const sums_h = sums + h * kDeltaChunk, *const beta_h = beta + h * kDeltaChunk;
    int own = lane;  // addresses are made anew for each head: kept, they would cost registers that Z and W need
    asm volatile("" : "+r"(own));
    decay_products(z, w, sums_h, beta_h, rows, lower, record + kABytes, warp, own);
    __syncthreads();  // X takes the place of keys and queries, or of the head before
    invert(lower, x, warp, own);
    put_a(record, x, beta_h);
  }
}

template <int KeyDim, class Units>
void launch(const Launch& to, const CUtensorMap& map, const DeltaUnitsParams& p) {
  const DeltaShape& d = p.state.shape;
  const auto records = static_cast<unsigned>(most_records(to.max_rows, to.max_ranges));
  const int parts = (d.value_heads / d.key_heads + kHeads - 1) / kHeads;
  constexpr int kBytes = Layout<KeyDim>::kBytes;
  cudaFuncSetAttribute(prepare<KeyDim, Units>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  prepare<KeyDim, Units><<<dim3(records, static_cast<unsigned>(d.key_heads * parts)), kThreads, kBytes, to.stream>>>(map, p, parts);
}

}  // namespace

void delta_prepare(const Launch& to, const CUtensorMap& map, const DeltaUnitsParams& p) {
  if (p.warps) {
    p.state.shape.key_dim == 32 ? launch<32, MmaUnits>(to, map, p) : launch<128, MmaUnits>(to, map, p);
  } else {
    p.state.shape.key_dim == 32 ? launch<32, WgmmaUnits>(to, map, p) : launch<128, WgmmaUnits>(to, map, p);
  }
}

}  // namespace nibble::cuda
