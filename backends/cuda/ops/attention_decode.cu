// attention_decode.cu: attention of decode and verify rows on matrix units, order of core/numerics/attention_order.h
//   q, y [T, heads * Dim] bf16, pages [pages, kv_heads, 64, Dim]: bf16, or codes of fp8 (core/numerics/kv_codes.h) with scales
//   map    item = a split of one sequence's kv head and up to 16 of its queries (rows times the heads that share it); blocks
//          of 4 warps, two on a multiprocessor, go through items. Scores: warp = 16 keys of the tile over all of Dim; values:
//          warp = a quarter of Dim over all keys, O in registers
//   tiles  of keys and values in turn, in a ring of Ring: while one is computed the next ones are on their way
//   codes  are widened as fragments are read. Of a group of 16 columns a lane gets four that lie together, where bf16 gives
//          it two and two: queries lie in shared memory in the same order, and a lane's O are other columns
//   parts  m, l and O of a split where a sequence has several (attention_splits.cuh). With one, y
//   sums   core/numerics/attention_order.h                                 parity: mirrored
//   cost   4 * Dim bytes a key and kv head, of codes half of it -> bandwidth bound
//   needs  mma.m16n8k16 as measured (mma.cuh), else it is emulated; pages whose rows behind a sequence may hold anything
#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/device/matrices.cuh"
#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/weight_decode.cuh"
#include "backends/cuda/ops/attention_splits.cuh"
#include "backends/cuda/shared_memory.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr int kTile = num::kAttentionTile, kSplitTiles = kSplit / kTile;
constexpr int kRows = 16, kWarps = 4, kThreads = kWarps * 32, kBlocks = 2;  // queries of an item; blocks a multiprocessor
static_assert(kTile == 16 * kWarps);
constexpr int kWeightBytes = kTile * 2, kWeightStride = kTile + 8;  // of a row: bf16; float32, rows in different banks

// Splits of the section's ranges are numbered one after the other; all lanes of a warp look.
struct Slot {
  const RangeView* range;  // null: there are no more
  int split;
};
__device__ Slot find_slot(const StepView& step, Section section, int slot) {
  const int s = static_cast<int>(section), lane = static_cast<int>(threadIdx.x) % 32, end = step.first_range[s + 1];
  for (int at = step.first_range[s]; at < end; at += 32) {
    const RangeView* const r = step.range + at + lane;
    const int splits = at + lane < end && r->rows > 0 ? splits_of(*r) : 0;
    int behind = splits;  // slots up to the lane's last
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int before = __shfl_up_sync(~0u, behind, by);
      if (lane >= by) behind += before;
    }
    const unsigned beyond = __ballot_sync(~0u, slot < behind);
    if (beyond != 0) {
      const int found = __ffs(static_cast<int>(beyond)) - 1;
      return {step.range + at + found, slot - __shfl_sync(~0u, behind - splits, found)};
    }
    slot -= __shfl_sync(~0u, behind, 31);
  }
  return {nullptr, 0};
}

template <int Dim, int Ring, bool Codes>
struct Room {
  static constexpr int kQueryBytes = Dim * 2, kRowBytes = Codes ? Dim : Dim * 2, kChunks = kRowBytes / 16;
  static constexpr int kTileBytes = kTile * kRowBytes, kPieceBytes = kTileBytes + (Codes ? 2 * kTile * 4 : 0);  // scales of both
  static constexpr int kTiles = kRows * kQueryBytes, kWeights = kTiles + Ring * kPieceBytes, kExact = kWeights + kRows * kWeightBytes;
  static constexpr int kTops = kExact + kRows * kWeightStride * 4, kSums = kTops + kRows * kWarps * 4;
  static constexpr int kBytes = kSums + kRows * 4;
  // 16 bytes of a row: rows that one instruction reads lie in different banks.
  __device__ __forceinline__ static std::uint32_t at(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (kChunks >= 8 ? row & 7 : row / 2 & 3)) * 16);
  }
  __device__ __forceinline__ static std::uint32_t query_at(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kQueryBytes + (chunk ^ (row & 7)) * 16);
  }
  __device__ __forceinline__ static int piece(int index) { return kTiles + index % Ring * kPieceBytes; }
};
__device__ __forceinline__ std::uint32_t weights_at(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kWeightBytes + (chunk ^ (row & 7)) * 16);
}
__device__ __forceinline__ bool no_number(std::uint32_t pair) {  // or an infinity, in either half
  return (pair & 0x7F80u) == 0x7F80u || (pair & 0x7F800000u) == 0x7F800000u;
}
// Of a pair of keys `first` and the next one, those below `seen`.
__device__ __forceinline__ std::uint32_t seen_of(std::uint32_t pair, int first, int seen) {
  return first + 1 < seen ? pair : first < seen ? pair & 0xFFFFu : 0u;
}

template <int Dim, int Ring, bool Codes>
__global__ void __launch_bounds__(kThreads, kBlocks) attend_splits(const SplitParams a) {
  using R = Room<Dim, Ring, Codes>;
  constexpr int kOwn = Dim / 8 / kWarps;             // groups of 8 columns of a warp
  extern __shared__ __align__(128) std::byte memory[];
  const std::uint32_t start = shared_address(memory);
  float* const exact = reinterpret_cast<float*>(memory + R::kExact);
  float* const tops = reinterpret_cast<float*>(memory + R::kTops);
  float* const sums = reinterpret_cast<float*>(memory + R::kSums);
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32, g = lane / 4, p = lane % 4;
  const int group = a.shape.heads / a.shape.kv_heads, kv_heads = a.shape.kv_heads;
  let_next_launch_begin();
  wait_for_launches_before();

#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x);; item += static_cast<int>(gridDim.x)) {
    const int kv_head = item % kv_heads, first = item / kv_heads % a.tiles * kRows, slot = item / kv_heads / a.tiles;
    const Slot found = find_slot(*a.steps, a.section, slot);
    if (found.range == nullptr) return;
    const RangeView& r = *found.range;
    const std::int64_t begin = std::int64_t{found.split} * kSplit;
    // The range's first row and its end, from the split's first key; a split is never so long.
    const auto start_row = static_cast<int>(min(r.position - begin, std::int64_t{1 << 20})), rows = r.rows, end = start_row + rows;
    const int count = min(rows * group - first, kRows), last = start_row + (first + count - 1) / group;
    if (count <= 0 || last < 0) continue;  // no queries, or none that sees the split
    const int tiles = min(last / kTile + 1, kSplitTiles);
    const std::int32_t* const pages = a.steps->pages + r.first_page + found.split * kSplitTiles;

    int issued = 0;
    const auto bring_until = [&](int piece) {
#pragma unroll 1
      for (; issued <= piece; ++issued) {
        const int tile = issued / 2;
        if (tile < tiles) {
          const std::int64_t page = std::int64_t{pages[tile]} * kv_heads + kv_head;
          const std::uint32_t piece = start + static_cast<std::uint32_t>(R::piece(issued));
          // Of rows four apart, all have one of two places in theirs.
          constexpr int kStep = kThreads / R::kChunks;
          static_assert(kStep % 4 == 0);
          const int row = t / R::kChunks, chunk = t % R::kChunks, there = end - tile * kTile;
          const std::byte* const from = (issued % 2 == 0 ? a.keys : a.values) + page * R::kTileBytes + row * R::kRowBytes + chunk * 16;
          const std::uint32_t even = piece + R::at(row, chunk), odd = piece + R::at(row + 4, chunk);
#pragma unroll
          for (int i = 0; i < kTile; i += kStep) {
            const std::uint32_t to = i % 8 == 0 ? even + i * R::kRowBytes : odd + (i - 4) * R::kRowBytes;
            bring_16(to, from + i * R::kRowBytes, row + i < there);
          }
          if constexpr (Codes) {
            if (issued % 2 == 0 && t < 32) {  // both with the keys: weights need those of the values before these are there
              const float* const scales = (t < 16 ? a.key_scales : a.value_scales) + page * kTile + t % 16 * 4;
              bring_16(piece + R::kTileBytes + t * 16, scales, true);
            }
          }
        }
        copies_commit();
      }
    };
    __syncthreads();  // the item before is read
    for (int i = t; i < kRows * (Dim / 8); i += kThreads) {
      const int row = i / (Dim / 8), chunk = i % (Dim / 8), query = row < count ? first + row : first;
      const Bf16* const q = a.q.row(std::int64_t{r.first_row} + query / group) + (std::int64_t{kv_head} * group + query % group) * Dim;
      if constexpr (Codes) {
        const uint4 v = row < count ? *reinterpret_cast<const uint4*>(q + chunk * 8) : make_uint4(0, 0, 0, 0);
        const int low = chunk / 2 * 2, at = chunk % 2 * 8;  // columns 4 p and 4 p + 1 first, then the two behind these
        *reinterpret_cast<uint2*>(memory + R::query_at(row, low) + at) = make_uint2(v.x, v.z);
        *reinterpret_cast<uint2*>(memory + R::query_at(row, low + 1) + at) = make_uint2(v.y, v.w);
      } else {
        bring_16(start + R::query_at(row, chunk), q + chunk * 8, row < count);
      }
    }
    bring_until(Ring > 2 ? Ring - 2 : 0);  // the queries are of the first group

    // Rows g and g + 8: what they see of the split; the same in all warps.
    int sees[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sees[h] = g + 8 * h < count ? min(start_row + (first + g + 8 * h) / group + 1, kSplit) : 0;
    }
    float o[kOwn][4], m[2] = {-__builtin_inff(), -__builtin_inff()}, l = 0.0f;  // l: of row 8 warp + g, in two warps
#pragma unroll
    for (int n = 0; n < kOwn; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      copies_wait<(Ring > 2 ? Ring - 2 : 0)>();
      __syncthreads();  // keys are there, the values before are read
      if constexpr (Ring > 1) bring_until(2 * tile - 1 + Ring);
      float x[2][4] = {};
      const std::uint32_t keys = start + static_cast<std::uint32_t>(R::piece(2 * tile));
      const int key_row = warp * 16 + lane / 16 * 8 + lane % 8;
      constexpr int kSteps = Codes ? 2 : 1;  // groups of 16 columns that lie in a chunk's two neighbours
#pragma unroll 4 / kSteps
      for (int k = 0; k < Dim / 16; k += kSteps) {
        const uint4 b = fragments_at<false>(keys + R::at(key_row, (Codes ? k : 2 * k) + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const uint4 q = fragments_at<false>(start + R::query_at(lane % 16, 2 * (k + i) + lane / 16));
          const std::uint32_t left[4] = {q.x, q.y, q.z, q.w};
          if constexpr (Codes) {
            const std::uint32_t low = i == 0 ? b.x : b.y, high = i == 0 ? b.z : b.w;
            mma_m16n8k16_bf16<kMmaPath>(x[0], left, e4m3_adjacent(low), e4m3_adjacent(low >> 16));
            mma_m16n8k16_bf16<kMmaPath>(x[1], left, e4m3_adjacent(high), e4m3_adjacent(high >> 16));
          } else {
            mma_m16n8k16_bf16<kMmaPath>(x[0], left, b.x, b.y);
            mma_m16n8k16_bf16<kMmaPath>(x[1], left, b.z, b.w);
          }
        }
      }
      const int key = warp * 16 + 2 * p;  // in the tile: of x[0][0] and x[0][2]; the next one; and 8 behind these
      [[maybe_unused]] float2 key_scale[2], value_scale[2];
      if constexpr (Codes) {
        const auto* const scales = reinterpret_cast<const float*>(memory + R::piece(2 * tile) + R::kTileBytes) + key;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          key_scale[n] = *reinterpret_cast<const float2*>(scales + 8 * n);
          value_scale[n] = *reinterpret_cast<const float2*>(scales + kTile + 8 * n);
        }
      }
      int seen[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        seen[h] = sees[h] - tile * kTile;
        float most = -__builtin_inff();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& v = x[i / 2][2 * h + i % 2];
          if constexpr (Codes) v = num::mul(v, i % 2 == 0 ? key_scale[i / 2].x : key_scale[i / 2].y);
          v = key + i / 2 * 8 + i % 2 < seen[h] ? num::mul(v, a.scale) : -__builtin_inff();
          most = fmaxf(most, v);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if (p == 0) tops[(g + 8 * h) * kWarps + warp] = most;
      }
      __syncthreads();  // the keys are read
      bring_until(2 * tile + Ring);
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 of = *reinterpret_cast<const float4*>(tops + (g + 8 * h) * kWarps);
        const float most = fmaxf(fmaxf(fmaxf(of.x, of.y), fmaxf(of.z, of.w)), m[h]);
        factor[h] = most == m[h] ? 1.0f : num::exp(num::sub(m[h], most));
        m[h] = most;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          float w[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float v = x[n][2 * h + i], e = v == most ? 1.0f : num::exp(num::sub(v, most));
            w[i] = key + 8 * n + i < seen[h] ? e : 0.0f;
          }
          *reinterpret_cast<float2*>(exact + (g + 8 * h) * kWeightStride + key + 8 * n) = make_float2(w[0], w[1]);
          if constexpr (Codes) {
            w[0] = key + 8 * n < seen[h] ? num::mul(w[0], value_scale[n].x) : 0.0f;
            w[1] = key + 8 * n + 1 < seen[h] ? num::mul(w[1], value_scale[n].y) : 0.0f;
          }
          *reinterpret_cast<std::uint32_t*>(memory + R::kWeights + weights_at(g + 8 * h, 2 * warp + n) + 4 * p) = bf16_pair(w[0], w[1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] = num::mul(factor[i / 2], o[n][i]);
      }
      copies_wait<Ring - 1>();
      __syncthreads();  // values and weights are there

      const std::uint32_t values = start + static_cast<std::uint32_t>(R::piece(2 * tile + 1));
      std::uint32_t weights[kTile / 16][4];
#pragma unroll
      for (int s = 0; s < kTile / 16; ++s) {
        const uint4 w = fragments_at<false>(start + R::kWeights + weights_at(lane % 16, 2 * s + lane / 16));
        weights[s][0] = w.x, weights[s][1] = w.y, weights[s][2] = w.z, weights[s][3] = w.w;
      }
      const auto pairs_at = [&](int n, std::uint32_t (&b)[kTile / 16][2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint4 v = fragments_at<true>(values + R::at(half * 32 + lane, Codes ? (warp * kOwn + n) / 2 : warp * kOwn + n));
          if constexpr (Codes) {  // of two columns that lie together in turn
            const int by = n % 2 == 0 ? 8 : 0;
            v = make_uint4(e4m3_pair(v.x << by), e4m3_pair(v.y << by), e4m3_pair(v.z << by), e4m3_pair(v.w << by));
          }
          b[2 * half][0] = v.x, b[2 * half][1] = v.y, b[2 * half + 1][0] = v.z, b[2 * half + 1][1] = v.w;
        }
      };
      // Where rows see different keys of the tile: numbers times weights of 0 leave O as it is, others do not.
      bool none = false;
      if (rows > 1 && (tile + 1) * kTile > start_row + 1) {
#pragma unroll 1
        for (int n = 0; n < kOwn; ++n) {
          std::uint32_t b[kTile / 16][2];
          pairs_at(n, b);
#pragma unroll
          for (int s = 0; s < kTile / 16; ++s) none |= no_number(b[s][0]) || no_number(b[s][1]);
        }
        none = __any_sync(~0u, none);
      }
      if (!none) {
#pragma unroll
        for (int n = 0; n < kOwn; ++n) {
          std::uint32_t b[kTile / 16][2];
          pairs_at(n, b);
#pragma unroll
          for (int s = 0; s < kTile / 16; ++s) mma_m16n8k16_bf16<kMmaPath>(o[n], weights[s], b[s][0], b[s][1]);
        }
      } else {
#pragma unroll 1
        for (int row = first / group; row <= (first + count - 1) / group; ++row) {
          const int until = start_row + row + 1 - tile * kTile;
#pragma unroll
          for (int n = 0; n < kOwn; ++n) {
            std::uint32_t b[kTile / 16][2];
            pairs_at(n, b);
            float c[4] = {o[n][0], o[n][1], o[n][2], o[n][3]};
#pragma unroll
            for (int s = 0; s < kTile / 16; ++s) {
              mma_m16n8k16_bf16<kMmaPath>(c, weights[s], seen_of(b[s][0], 16 * s + 2 * p, until), seen_of(b[s][1], 16 * s + 8 + 2 * p, until));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) o[n][i] = (first + g + i / 2 * 8) / group == row ? c[i] : o[n][i];
          }
        }
      }
      if (warp < 2) {
        float sum = 0.0f;
        const float* const w = exact + (8 * warp + g) * kWeightStride + 2 * p;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          const float2 two = *reinterpret_cast<const float2*>(w + 8 * n);
          sum = num::add(num::add(sum, two.x), two.y);
        }
        sum = num::add(sum, __shfl_xor_sync(~0u, sum, 1));
        sum = num::add(sum, __shfl_xor_sync(~0u, sum, 2));
        l = num::fma(l, warp == 0 ? factor[0] : factor[1], sum);
      }
      if constexpr (Ring == 1) {
        __syncthreads();  // the values are read
        bring_until(2 * tile + 2);
      }
    }

    const bool alone = splits_of(r) == 1;
    if (warp < 2 && p == 0) sums[8 * warp + g] = l;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = g + 8 * h, query = first + row;
      if (sees[h] <= 0) continue;
      // Pairs of neighbouring columns: two of o[n], or one of o[n] and one of the next.
      const auto each_pair = [&](auto put_pair) {
#pragma unroll
        for (int n = 0; n < kOwn; ++n) {
          if constexpr (Codes) {
            const int column = (warp * kOwn + n / 2 * 2) * 8 + 4 * p + n % 2 * 2;
            put_pair(column, o[n / 2 * 2][2 * h + n % 2], o[n / 2 * 2 + 1][2 * h + n % 2]);
          } else {
            put_pair((warp * kOwn + n) * 8 + 2 * p, o[n][2 * h], o[n][2 * h + 1]);
          }
        }
      };
      if (!alone) {
        float* const part = a.parts + (std::int64_t{slot} * kv_heads + kv_head) * attention_part_floats(a.most, Dim);
        each_pair([&](int column, float low, float high) {
          *reinterpret_cast<float2*>(part + std::int64_t{query} * Dim + column) = make_float2(low, high);
        });
        if (warp == 0 && p == 0) *reinterpret_cast<float2*>(part + std::int64_t{a.most} * Dim + 2 * query) = make_float2(m[h], sums[row]);
        continue;
      }
      const float by = num::div(1.0f, sums[row]);
      const std::int64_t of_y = std::int64_t{r.first_row} + query / group;
      const int head = kv_head * group + query % group;
      Bf16* const y = a.y.row(of_y) + std::int64_t{head} * Dim;
      const Bf16* const gates = a.gates.data == nullptr ? nullptr : a.gates.of(of_y, head);
      each_pair([&](int column, float low, float high) {
        low = num::mul(low, by), high = num::mul(high, by);
        *reinterpret_cast<std::uint32_t*>(y + column) =
            gates == nullptr ? bf16_pair(low, high) : gated_pair(low, high, *reinterpret_cast<const std::uint32_t*>(gates + column));
      });
    }
  }
}

// Blocks that a multiprocessor has room for.
int resident(int bytes) {
  int card = 0, all = 0, reserved = 0;
  if (cudaGetDevice(&card) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, card) != cudaSuccess) return 1;
  if (cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, card) != cudaSuccess) return 1;
  return all / (bytes + reserved) >= kBlocks ? kBlocks : 1;
}

template <int Dim, int Ring, bool Codes>
bool launch(const Launch& to, const SplitParams& p, std::int64_t slots, std::size_t most_bytes) {
  using R = Room<Dim, Ring, Codes>;
  if (R::kBytes > most_bytes) return false;
  const std::int64_t items = slots * p.tiles * p.shape.kv_heads;
  const std::int64_t room = std::int64_t{to.multiprocessors} * resident(R::kBytes);
  const std::int64_t blocks = room > 0 && room < items ? room : items;
  cudaFuncSetAttribute(attend_splits<Dim, Ring, Codes>, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kBytes);
  start_early(attend_splits<Dim, Ring, Codes>, dim3(static_cast<unsigned>(blocks)), kThreads, R::kBytes, to.stream, p);
  return true;
}

template <bool Codes>
bool launch_any(const Launch& to, const SplitParams& p, std::int64_t slots) {
  const std::size_t most = most_shared();
  constexpr int kMany = Codes ? 6 : 4, kFew = Codes ? 4 : 2;  // about as many bytes on their way
  switch (p.shape.head_dim) {
    case 64: return launch<64, kMany, Codes>(to, p, slots, most);
    case 128: return launch<128, kMany, Codes>(to, p, slots, most) || launch<128, kFew, Codes>(to, p, slots, most);
    default:
      return launch<256, Codes ? 6 : 3, Codes>(to, p, slots, most) || launch<256, Codes ? 4 : 2, Codes>(to, p, slots, most) ||
             launch<256, Codes ? 2 : 1, Codes>(to, p, slots, most);
  }
}

}  // namespace

void attention_decode(const Launch& to, const AttentionArgs& a) {
  const AttentionShape& s = a.state.shape;
  check_on_units(a);
  if (a.split_slots > 0 && a.parts == nullptr) {
    throw Error(ErrorCode::internal, "[cuda] attention: expected room for " + std::to_string(a.split_slots) + " splits, found none");
  }
  const std::int64_t records = a.section == Section::verify ? a.records : 1, most = s.heads / s.kv_heads * records;
  const SplitParams p{to.step,
                      a.section,
                      typed<Bf16>(a.q),
                      typed<Bf16>(a.y),
                      a.scale,
                      s,
                      a.state.k,
                      a.state.v,
                      a.state.k_scales,
                      a.state.v_scales,
                      a.parts,
                      static_cast<int>(most),
                      static_cast<int>((most + kRows - 1) / kRows),
                      {reinterpret_cast<const Bf16*>(a.gate.data), a.gate.stride, a.gate_head_stride}};
  const std::int64_t slots = a.split_slots > 0 ? a.split_slots : to.max_ranges;
  const bool launched = a.state.k_scales != nullptr ? launch_any<true>(to, p, slots) : launch_any<false>(to, p, slots);
  if (!launched) throw Error(ErrorCode::internal, "[cuda] attention on matrix units: expected 48 KiB of shared memory, found less");
  if (a.split_slots > 0) combine_splits(to, a, p);
}

}  // namespace nibble::cuda
