// attention_sm70.cuh: a prompt's attention on m8n8k4, order of core/numerics/attention_order.h for profile sm70
//   q, y [T, heads * Dim], pages [pages, kv_heads, 64, Dim]: float32
//   map    block = 64 positions on the absolute grid and some heads of one kv head; a warp has 16 of these rows of one head,
//          quad-pairs two by two (delta_sm70_maps.h). O, scores and weights stay in registers, q lies in shared memory as
//          f16, a tile's keys and then its values in one place beside it
//   tiles  are converted as they come. What is too large for f16 is seen then, and such a tile is converted again
//   sums   core/numerics/attention_order.h                                 parity: mirrored
//   cost   4 * Dim products a query and key, an exp each; 8 * Dim bytes a key and block -> latency of shared memory and sums
//   needs  any arch, by emulation outside 7.0; pages whose rows behind a sequence may hold anything
#pragma once

#include <cstdint>

#include "backends/cuda/ops/attention_pieces.cuh"
#include "backends/cuda/ops/attention_sm70.h"
#include "backends/cuda/ops/delta_sm70.cuh"
#include "core/numerics/attention_order.h"

#if !defined(NIBBLE_DYNAMIC_SHARED)
#define NIBBLE_DYNAMIC_SHARED(name) extern __shared__ uint4 name[]
#endif

namespace nibble::cuda::sm70::attending {

constexpr int kTile = num::kAttentionTile, kRows = 16, kRowGroups = kTile / kRows;  // of a warp; groups of rows in 64 positions
static_assert(kTile == kDeltaChunk && kTile == kChunk);

template <int Dim, int Warps>
struct Room {
  static constexpr int kThreads = Warps * 32, kEights = Dim / 8;
  static constexpr int kQueryPlaces = kRows * kEights, kTilePlaces = kTile * kEights;  // places of 16 bytes, a warp's
  static constexpr int kBytes = (Warps * kQueryPlaces + kTilePlaces) * 16;
};

struct EightFloats {
  float4 low, high;
  __device__ __forceinline__ void load(const float* from) {
    low = reinterpret_cast<const float4*>(from)[0];
    high = reinterpret_cast<const float4*>(from)[1];
  }
  __device__ __forceinline__ void clear() { low = high = make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
  __device__ __forceinline__ std::uint32_t most() const {
    const std::uint32_t a = max(num::finite_magnitude(low.x), num::finite_magnitude(low.y)),
                        b = max(num::finite_magnitude(low.z), num::finite_magnitude(low.w)),
                        c = max(num::finite_magnitude(high.x), num::finite_magnitude(high.y)),
                        d = max(num::finite_magnitude(high.z), num::finite_magnitude(high.w));
    return max(max(a, b), max(c, d));
  }
  __device__ __forceinline__ uint4 f16(float by) const {
    return make_uint4(f16_pair(num::mul(low.x, by), num::mul(low.y, by)), f16_pair(num::mul(low.z, by), num::mul(low.w, by)),
                      f16_pair(num::mul(high.x, by), num::mul(high.y, by)), f16_pair(num::mul(high.z, by), num::mul(high.w, by)));
  }
};

__device__ __forceinline__ std::uint32_t most_of_warp(std::uint32_t most) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) most = max(most, __shfl_xor_sync(~0u, most, s));
  return most;
}

// Rows of a page, the first `there` of them, as f16 times 2^-e; zeros behind. Returns e. Ends with a barrier of the block;
// that the place is free is the caller's business.
template <int Dim, int Warps>
__device__ __forceinline__ int bring(const float* page, int there, uint4* to, std::uint32_t* tops) {
  using R = Room<Dim, Warps>;
  const int t = static_cast<int>(threadIdx.x);
  const auto put = [&](float by) {
    std::uint32_t most = 0;
#pragma unroll 2
    for (int i = t; i < R::kTilePlaces; i += R::kThreads) {
      const int row = i / R::kEights, eight = i % R::kEights;
      EightFloats v;
      v.clear();
      if (row < there) v.load(page + row * Dim + eight * 8);
      most = max(most, v.most());
      to[key_place<Dim>(row, eight)] = v.f16(by);
    }
    return most;
  };
  std::uint32_t most = most_of_warp(put(1.0f));
  if (t % 32 == 0) tops[t / 32] = most;
  __syncthreads();
  most = 0;
#pragma unroll
  for (int w = 0; w < Warps; ++w) most = max(most, tops[w]);
  const int e = num::activation_exponent(most);
  if (e > 0) {  // each thread's own places; nobody has read them
    put(num::power_of_two(-e));
    __syncthreads();
  }
  return e;
}

// 16 rows of a warp; a lane has two of them, sum_row(lane, 0) and the second behind that, with four lanes' columns.
template <int Dim>
struct Rows16 {
  static constexpr int kGroups = Dim / 32;
  Tile o[2 * kGroups];
  float m[2], l[2], factor[2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < 2 * kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) o[n][i] = 0.0f;
    }
    m[0] = m[1] = -__builtin_inff();
    l[0] = l[1] = 0.0f;
  }

  __device__ __forceinline__ static void score(int lane, const uint4* queries, const uint4* keys, Tile (&x)[kTokenTiles]) {
#pragma unroll 2
    for (int eight = 0; eight < Dim / 8; ++eight) {
      const uint4 q = queries[key_place<Dim>(operand_row(lane), eight)];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        const uint4 k = keys[key_place<Dim>(first_token(lane, t) + eighth_of(lane), eight)];
#pragma unroll
        for (int half = 0; half < 2; ++half) mma_m8n8k4_f16<kM8n8k4Path>(x[t], four(q, half), four(k, half));
      }
    }
  }

  // Sums of a tile to weights, as the left operand of its values; m, l and the factor of O. up: 2^e of the rows' queries,
  // up_keys: of the tile; seen: how many keys of the tile the rows see.
  __device__ __forceinline__ void weigh(int lane, Tile (&x)[kTokenTiles], const float (&up)[2], float up_keys, float scale,
                                        const int (&seen)[2], Operand (&weights)[kTokenTiles][2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -__builtin_inff();
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i / 2 % 2 != h) continue;
          float& v = x[t][i];
          v = num::mul(num::mul(num::mul(v, up[h]), up_keys), scale);
          v = sum_token(lane, t, i) < seen[h] ? v : -__builtin_inff();
          most = num::max(v, most);  // NaN is not greater
        }
      }
      most = num::max(__shfl_xor_sync(~0u, most, 2), most);
      most = num::max(__shfl_xor_sync(~0u, most, kAcrossBit), most);
      most = num::max(most, m[h]);
      factor[h] = most == m[h] ? 1.0f : num::exp(num::sub(m[h], most));
      m[h] = most;
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (i / 2 % 2 != h) continue;
          float& v = x[t][i];
          const float w = v == most ? 1.0f : num::exp(num::sub(v, most));
          v = sum_token(lane, t, i) < seen[h] ? w : 0.0f;
          sum = num::add(sum, v);
        }
      }
      sum = num::add(sum, __shfl_xor_sync(~0u, sum, 2));
      sum = num::add(sum, __shfl_xor_sync(~0u, sum, kAcrossBit));
      l[h] = num::fma(l[h], factor[h], sum);
    }
    const float ones[2] = {1.0f, 1.0f};
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) both(lane, operand_of(lane, x[t], ones), weights[t]);
  }

  // up: 2^e of the tile's values.
  __device__ __forceinline__ void take(int lane, const uint4* values, const Operand (&weights)[kTokenTiles][2], float up) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      Tile sum[2] = {};
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
        for (int four_keys = 0; four_keys < 4; ++four_keys) {
          const uint2 left = weights[t][four_keys / 2].four(four_keys % 2);
          const uint4 b = values[key_place<Dim>(16 * t + 4 * four_keys + lane % 4, first_x(lane, g) / 8 + upper_of(lane))];
          mma_m8n8k4_f16_rows<kM8n8k4Path>(sum[0], left, four(b, 0));
          mma_m8n8k4_f16_rows<kM8n8k4Path>(sum[1], left, four(b, 1));
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& v = o[2 * g + n][i];
          v = num::fma(up, sum[n][i], num::mul(factor[i / 2 % 2], v));
        }
      }
    }
  }

  // Row h of the two.
  __device__ __forceinline__ void put(int lane, int h, float* y) const {
    const float by = num::div(1.0f, l[h]);
#pragma unroll
    for (int n = 0; n < 2 * kGroups; ++n) {
#pragma unroll
      for (int i = 2 * h; i < 8; i += 4) {
        *reinterpret_cast<float2*>(y + sum_x(lane, n / 2, n % 2, i)) = make_float2(num::mul(o[n][i], by), num::mul(o[n][i + 1], by));
      }
    }
  }
};

// On a multiprocessor, by registers.
template <int Dim>
constexpr int kBlocks = Dim == 64 ? 3 : Dim == 128 ? 2 : 1;

template <int Dim, int Warps>
__global__ void __launch_bounds__(Warps * 32, kBlocks<Dim>) sm70_attend(const AttentionSm70Params a) {
  using R = Room<Dim, Warps>;
  NIBBLE_DYNAMIC_SHARED(memory);
  __shared__ float ups[Warps][kRows];
  __shared__ std::uint32_t tops[2][Warps];
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
  const Piece piece = piece_of(*a.steps, static_cast<int>(blockIdx.x) / a.parts);
  if (piece.range == nullptr) return;
  const RangeView& r = *piece.range;
  const int kv_head = static_cast<int>(blockIdx.y), group = a.shape.heads / a.shape.kv_heads;
  const int unit = static_cast<int>(blockIdx.x) % a.parts * Warps + warp;
  const std::int64_t end = r.position + r.rows, from = piece.position + unit % kRowGroups * kRows;  // of the warp's rows
  const int head = kv_head * group + unit / kRowGroups;
  const bool works = unit / kRowGroups < group && from < end && from + kRows > r.position;
  const int tiles = static_cast<int>(piece.position / kTile) + 1;
  const std::int32_t* const pages = a.steps->pages + r.first_page;
  uint4 *const queries = memory + warp * R::kQueryPlaces, *const tile_at = memory + Warps * R::kQueryPlaces;

#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    const std::int64_t position = from + row;
    EightFloats v;
    v.clear();
    if (works && position >= r.position && position < end && lane < R::kEights) {
      v.load(a.q + (r.first_row + (position - r.position)) * a.q_stride + std::int64_t{head} * Dim + lane * 8);
    }
    const int e = num::activation_exponent(most_of_warp(v.most()));
    if (lane < R::kEights) queries[key_place<Dim>(row, lane)] = v.f16(num::power_of_two(-e));
    if (lane == 0) ups[warp][row] = num::power_of_two(e);
  }
  __syncwarp();
  const int first = sum_row(lane, 0);
  const float up[2] = {ups[warp][first], ups[warp][first + 2]};

  Rows16<Dim> rows;
  rows.clear();
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    const std::int64_t page = (std::int64_t{pages[tile]} * a.shape.kv_heads + kv_head) * (kTile * Dim), start = std::int64_t{tile} * kTile;
    const auto there = static_cast<int>(min(end - start, std::int64_t{kTile}));
    const float up_keys = num::power_of_two(bring<Dim, Warps>(a.keys + page, there, tile_at, tops[0]));
    Operand weights[kTokenTiles][2];
    if (works) {
      Tile x[kTokenTiles] = {};
      Rows16<Dim>::score(lane, queries, tile_at, x);
      const auto seen = static_cast<int>(min(from + first - start, std::int64_t{1 << 20})) + 1;
      const int both_seen[2] = {seen, seen + 2};
      rows.weigh(lane, x, up, up_keys, a.scale, both_seen, weights);
    }
    __syncthreads();  // keys are done with
    const float up_values = num::power_of_two(bring<Dim, Warps>(a.values + page, there, tile_at, tops[1]));
    if (works) rows.take(lane, tile_at, weights, up_values);
    __syncthreads();  // so are values
  }
  if (!works) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::int64_t position = from + first + 2 * h;
    if (position < r.position || position >= end) continue;
    rows.put(lane, h, a.y + (r.first_row + (position - r.position)) * a.y_stride + std::int64_t{head} * Dim);
  }
}

// Blocks of a kv head's heads.
template <int Warps>
NIBBLE_HD constexpr int parts_of(const AttentionShape& s) { return (s.heads / s.kv_heads * kRowGroups + Warps - 1) / Warps; }

}  // namespace nibble::cuda::sm70::attending
