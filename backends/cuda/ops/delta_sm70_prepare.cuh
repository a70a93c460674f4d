// delta_sm70_prepare.cuh: keys, queries, A, M and the decays of every chunk (delta_sm70.cuh)
//   map    block = a chunk of a key head and up to four of its value heads, one after the other; warp w has rows 16 w ..
//          16 w + 15 of Z and W, quad-pairs two by two, then block (w, .) of X
//   Z, W   on m8n8k4, both operands from shared memory; the value heads share them, in registers
//   L, X   in shared memory over keys and queries, which nobody needs then: two blocks a multiprocessor
//   sums   core/numerics/delta_order.h                                     parity: mirrored
//   cost   2 * 64 * 64 * key_dim on the matrix units for a key head; 65,536 fma for X and 2,600 exponentials for a value
//          head, 13 KB written -> latency of X, hidden by the other block
//   needs  key_dim 32 or 128; any arch, by emulation outside 7.0
#pragma once

#include <cstdint>

#include "backends/cuda/ops/delta_inverse.cuh"
#include "backends/cuda/ops/delta_sm70.cuh"

namespace nibble::cuda::sm70::preparing {

constexpr int kThreads = 128, kBlocks = 2;
constexpr int kHeads = 4;  // of one key head in a block, at most; a warp adds up the gates of each

template <int KeyDim>
struct Shared {
  static constexpr int kSquare = kChunk * kInverseStride;
  union {
    uint4 tiles[2 * kKeyPlaces<KeyDim>];  // keys, queries
    struct {
      float x[kSquare], lower[kSquare];
    } of;
  };
  float sums[kHeads][kChunk], beta[kHeads][kChunk];
};
static_assert(sizeof(Shared<128>) <= 48 * 1024 && kInverseStride % 4 == 0);
static_assert(2 * kChunk % kThreads == 0 && kSquarePlaces % kThreads == 0);

// Rows of keys and queries as f16, zeros beyond the chunk's, in shared memory and in `left`.
template <int KeyDim>
__device__ __forceinline__ void load_tiles(const DeltaSm70Params& p, int first, int rows, int key_head, uint4* tiles, uint4* left) {
  constexpr int kEights = KeyDim / 8;
  const std::int64_t column = std::int64_t{key_head} * KeyDim;
#pragma unroll 4
  for (int step = 0; step < 2 * kChunk * kEights / kThreads; ++step) {
    const int n = step * kThreads + static_cast<int>(threadIdx.x);
    const int which = n / (kChunk * kEights), row = n / kEights % kChunk, eight = n % kEights;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < rows) {
      const std::int64_t begin = column + (which == 0 ? p.state.shape.key_channels() : 0);
      const auto* from = reinterpret_cast<const float4*>(p.qkv.row(first + row) + begin) + 2 * eight;
      const float4 a = __ldg(from), b = __ldg(from + 1);
      v = make_uint4(f16_pair(a.x, a.y), f16_pair(a.z, a.w), f16_pair(b.x, b.y), f16_pair(b.z, b.w));
    }
    const int place = which * kKeyPlaces<KeyDim> + key_place<KeyDim>(row, eight);
    tiles[place] = v;
    if (left != nullptr) left[place] = v;
  }
}

// Z and W of a warp's rows, tiles that reach down to the diagonal.
template <int KeyDim>
__device__ __forceinline__ void products(const uint4* tiles, int warp, int lane, Tile (&z)[kTokenTiles], Tile (&w)[kTokenTiles]) {
  const uint4* const queries = tiles + kKeyPlaces<KeyDim>;
#pragma unroll 2
  for (int eight = 0; eight < KeyDim / 8; ++eight) {
    const int row = warp * 16 + operand_row(lane);
    const uint4 k = tiles[key_place<KeyDim>(row, eight)], q = queries[key_place<KeyDim>(row, eight)];
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      if (m > warp) continue;
      const uint4 b = tiles[key_place<KeyDim>(first_token(lane, m) + eighth_of(lane), eight)];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mma_m8n8k4_f16<kM8n8k4Path>(z[m], four(k, half), four(b, half));
        mma_m8n8k4_f16<kM8n8k4Path>(w[m], four(q, half), four(b, half));
      }
    }
  }
}

// v where j < i, else +0. A choice would become a branch around what v costs.
__device__ __forceinline__ float below(int j, int i, float v) {
  return __int_as_float((j - i) >> 31 & __float_as_int(v));
}

// L and M of a value head, of this thread's elements of Z and W.
__device__ __forceinline__ void decay_products(int warp, int lane, const Tile (&z)[kTokenTiles], const Tile (&w)[kTokenTiles],
                                               const float* sums, const float* beta, float* lower, uint4* record) {
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    if (m > warp) continue;
    Tile of_m;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int row = warp * 16 + sum_row(lane, i), col = sum_token(lane, m, i);
      const float2 before = *reinterpret_cast<const float2*>(sums + col);
      const float decays[2] = {num::exp(num::sub(sums[row], before.x)), num::exp(num::sub(sums[row], before.y))};
      float l[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        l[e] = below(col + e, row, num::mul(num::mul(beta[row], z[m][i + e]), decays[e]));
        of_m[i + e] = below(col + e, row + 1, num::mul(w[m][i + e], decays[e]));
      }
      *reinterpret_cast<float2*>(lower + row * kInverseStride + col) = make_float2(l[0], l[1]);
    }
    const float ones[2] = {1.0f, 1.0f};
    const Operand o = operand_of(lane, of_m, ones);
    record[kMAt / 16 + square_place(warp * 16 + operand_row(lane), first_token(lane, m) / 8)] =
        make_uint4(o.w[0], o.w[1], o.w[2], o.w[3]);
  }
}

__device__ __forceinline__ void put_a(const float* x, uint4* record) {
#pragma unroll
  for (int step = 0; step < kSquarePlaces / kThreads; ++step) {
    const int n = step * kThreads + static_cast<int>(threadIdx.x);
    const bool left = n < kChunk * 4;
    const int row = left ? n / 4 : n / 4 - kChunk / 2, eight = n % 4 + (left ? 0 : 4);
    float a[8];
    inverse::read<4>(x + row * kInverseStride + eight * 8, *reinterpret_cast<float(*)[4]>(a));
    inverse::read<4>(x + row * kInverseStride + eight * 8 + 4, *reinterpret_cast<float(*)[4]>(a + 4));
#pragma unroll
    for (int j = 0; j < 8; ++j) a[j] = eight * 8 + j <= row ? a[j] : 0.0f;  // what lies above was never written
    record[square_place(row, eight)] =
        make_uint4(f16_pair(a[0], a[1]), f16_pair(a[2], a[3]), f16_pair(a[4], a[5]), f16_pair(a[6], a[7]));
  }
}

template <int KeyDim>
__global__ void __launch_bounds__(kThreads, kBlocks) sm70_prepare(const DeltaSm70Params p, int parts) {
  __shared__ Shared<KeyDim> shared;
  const Found found = find_chunk(*p.steps, p.section, static_cast<int>(blockIdx.x));
  if (found.range == nullptr) return;
  const DeltaShape& d = p.state.shape;
  const int group = d.value_heads / d.key_heads, key_head = static_cast<int>(blockIdx.y) / parts;
  const int part = static_cast<int>(blockIdx.y) % parts, heads = min(kHeads, group - part * kHeads);
  const int head = key_head * group + part * kHeads;
  const int rows = found.chunk.rows, first = found.range->first_row + found.chunk.first;
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
  load_tiles<KeyDim>(p, first, rows, key_head, shared.tiles, part == 0 ? keys_of(p, blockIdx.x, key_head) : nullptr);
  for (int n = t; n < kHeads * kChunk; n += kThreads) {
    const int i = n % kChunk, h = n / kChunk;
    const bool there = i < rows && h < heads;
    shared.sums[h][i] = there ? p.g.row(first + i)[head + h] : 0.0f;
    shared.beta[h][i] = there ? p.beta.row(first + i)[head + h] : 0.0f;
  }
  __syncthreads();
  if (lane == 0) {
    float sum = 0.0f;
    for (int i = 0; i < kChunk; ++i) shared.sums[warp][i] = sum = num::add(sum, shared.sums[warp][i]);
  }
  __syncthreads();
  for (int n = t; n < heads * kChunk; n += kThreads) {
    const int i = n % kChunk, h = n / kChunk;
    auto* const decays = reinterpret_cast<float*>(record_of(p, blockIdx.x, head + h)) + kGrownAt / 4 + i;
    decays[0] = num::exp(shared.sums[h][i]);
    decays[kChunk] = num::exp(num::sub(shared.sums[h][kChunk - 1], shared.sums[h][i]));
    decays[2 * kChunk] = shared.beta[h][i];
  }
  Tile z[kTokenTiles] = {}, w[kTokenTiles] = {};
  products<KeyDim>(shared.tiles, warp, lane, z, w);
  __syncthreads();  // L and X take the place of keys and queries
#pragma unroll 1
  for (int h = 0; h < heads; ++h) {
    uint4* const record = record_of(p, blockIdx.x, head + h);
    decay_products(warp, lane, z, w, shared.sums[h], shared.beta[h], shared.of.lower, record);
    __syncthreads();  // and X that of the head before
    invert(shared.of.lower, shared.of.x, warp, lane);
    put_a(shared.of.x, record);
  }
}

}  // namespace nibble::cuda::sm70::preparing
