// attention_decode.cu: attention of decode and verify rows on matrix units, order of core/numerics/attention_order.h
//   q, y [T, heads * Dim], pages [pages, kv_heads, 64, Dim]: bf16
//   map    item = a split of one sequence's kv head and up to 16 of its queries (rows times the heads that share it); blocks
//          of 4 warps, two on a multiprocessor, go through items. Scores: warp = 16 keys of the tile over all of Dim; values:
//          warp = a quarter of Dim over all keys, O in registers
//   tiles  of keys and values in turn, in a ring of Ring: while one is computed the next ones are on their way
//   parts  m, l and O of a split where a sequence has several (attention_splits.cuh). With one, y
//   sums   core/numerics/attention_order.h                                 parity: mirrored
//   cost   4 * Dim bytes a key and kv head -> bandwidth bound
//   needs  mma.m16n8k16 as measured (mma.cuh), else it is emulated; pages whose rows behind a sequence may hold anything
#include "backends/cuda/device/eights.cuh"
#include "backends/cuda/device/matrices.cuh"
#include "backends/cuda/device/mma.cuh"
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

template <int Dim, int Ring>
struct Room {
  static constexpr int kRowBytes = Dim * 2, kChunks = Dim / 8, kTileBytes = kTile * kRowBytes;
  static constexpr int kTiles = kRows * kRowBytes, kWeights = kTiles + Ring * kTileBytes, kExact = kWeights + kRows * kWeightBytes;
  static constexpr int kTops = kExact + kRows * kWeightStride * 4, kSums = kTops + kRows * kWarps * 4;
  static constexpr int kBytes = kSums + kRows * 4;
  // 16 bytes of a row: rows that one instruction reads lie in different banks.
  __device__ __forceinline__ static std::uint32_t at(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row & 7)) * 16);
  }
  __device__ __forceinline__ static std::uint32_t tile(std::uint32_t start, int piece) {
    return start + kTiles + static_cast<std::uint32_t>(piece % Ring) * kTileBytes;
  }
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

template <int Dim, int Ring>
__global__ void __launch_bounds__(kThreads, kBlocks) attend_splits(const SplitParams a) {
  using R = Room<Dim, Ring>;
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
          const Bf16* const page = (issued % 2 == 0 ? a.keys : a.values) + (std::int64_t{pages[tile]} * kv_heads + kv_head) * (kTile * Dim);
          // Of rows four apart, all have one of two places in theirs.
          constexpr int kStep = kThreads / R::kChunks;
          static_assert(kStep % 4 == 0);
          const int row = t / R::kChunks, chunk = t % R::kChunks, there = end - tile * kTile;
          const Bf16* const from = page + row * Dim + chunk * 8;
          const std::uint32_t even = R::tile(start, issued) + R::at(row, chunk), odd = R::tile(start, issued) + R::at(row + 4, chunk);
#pragma unroll
          for (int i = 0; i < kTile; i += kStep) {
            const std::uint32_t to = i % 8 == 0 ? even + i * R::kRowBytes : odd + (i - 4) * R::kRowBytes;
            bring_16(to, from + i * Dim, row + i < there);
          }
        }
        copies_commit();
      }
    };
    __syncthreads();  // the item before is read
    for (int i = t; i < kRows * R::kChunks; i += kThreads) {
      const int row = i / R::kChunks, chunk = i % R::kChunks, query = row < count ? first + row : first;
      const Bf16* const q = a.q.row(std::int64_t{r.first_row} + query / group) + (std::int64_t{kv_head} * group + query % group) * Dim;
      bring_16(start + R::at(row, chunk), q + chunk * 8, row < count);
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
      const std::uint32_t keys = R::tile(start, 2 * tile);
#pragma unroll 4
      for (int k = 0; k < Dim / 16; ++k) {
        const uint4 b = fragments_at<false>(keys + R::at(warp * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        const uint4 q = fragments_at<false>(start + R::at(lane % 16, 2 * k + lane / 16));
        const std::uint32_t left[4] = {q.x, q.y, q.z, q.w};
        mma_m16n8k16_bf16<kMmaPath>(x[0], left, b.x, b.y);
        mma_m16n8k16_bf16<kMmaPath>(x[1], left, b.z, b.w);
      }
      const int key = warp * 16 + 2 * p;  // in the tile: of x[0][0] and x[0][2]; the next one; and 8 behind these
      int seen[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        seen[h] = sees[h] - tile * kTile;
        float most = -__builtin_inff();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& v = x[i / 2][2 * h + i % 2];
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

      const std::uint32_t values = R::tile(start, 2 * tile + 1);
      std::uint32_t weights[kTile / 16][4];
#pragma unroll
      for (int s = 0; s < kTile / 16; ++s) {
        const uint4 w = fragments_at<false>(start + R::kWeights + weights_at(lane % 16, 2 * s + lane / 16));
        weights[s][0] = w.x, weights[s][1] = w.y, weights[s][2] = w.z, weights[s][3] = w.w;
      }
      const auto pairs_at = [&](int n, std::uint32_t (&b)[kTile / 16][2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 v = fragments_at<true>(values + R::at(half * 32 + lane, warp * kOwn + n));
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
      const int row = g + 8 * h, query = first + row, column = warp * kOwn * 8 + 2 * p;
      if (sees[h] <= 0) continue;
      if (!alone) {
        float* const part = a.parts + (std::int64_t{slot} * kv_heads + kv_head) * attention_part_floats(a.most, Dim);
#pragma unroll
        for (int n = 0; n < kOwn; ++n) {
          *reinterpret_cast<float2*>(part + std::int64_t{query} * Dim + column + 8 * n) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
        }
        if (warp == 0 && p == 0) *reinterpret_cast<float2*>(part + std::int64_t{a.most} * Dim + 2 * query) = make_float2(m[h], sums[row]);
        continue;
      }
      const float by = num::div(1.0f, sums[row]);
      const std::int64_t of_y = std::int64_t{r.first_row} + query / group;
      const int head = kv_head * group + query % group;
      Bf16* const y = a.y.row(of_y) + std::int64_t{head} * Dim + column;
      const Bf16* const gates = a.gates.data == nullptr ? nullptr : a.gates.of(of_y, head) + column;
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
        const float low = num::mul(o[n][2 * h], by), high = num::mul(o[n][2 * h + 1], by);
        *reinterpret_cast<std::uint32_t*>(y + 8 * n) =
            gates == nullptr ? bf16_pair(low, high) : gated_pair(low, high, *reinterpret_cast<const std::uint32_t*>(gates + 8 * n));
      }
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

template <int Dim, int Ring>
bool launch(const Launch& to, const SplitParams& p, std::int64_t slots, std::size_t most_bytes) {
  using R = Room<Dim, Ring>;
  if (R::kBytes > most_bytes) return false;
  const std::int64_t items = slots * p.tiles * p.shape.kv_heads;
  const std::int64_t room = std::int64_t{to.multiprocessors} * resident(R::kBytes);
  const std::int64_t blocks = room > 0 && room < items ? room : items;
  cudaFuncSetAttribute(attend_splits<Dim, Ring>, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kBytes);
  start_early(attend_splits<Dim, Ring>, dim3(static_cast<unsigned>(blocks)), kThreads, R::kBytes, to.stream, p);
  return true;
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
                      reinterpret_cast<const Bf16*>(a.state.k),
                      reinterpret_cast<const Bf16*>(a.state.v),
                      a.parts,
                      static_cast<int>(most),
                      static_cast<int>((most + kRows - 1) / kRows),
                      {reinterpret_cast<const Bf16*>(a.gate.data), a.gate.stride, a.gate_head_stride}};
  const std::int64_t slots = a.split_slots > 0 ? a.split_slots : to.max_ranges;
  const std::size_t shared = most_shared();
  const bool launched = s.head_dim == 64    ? launch<64, 4>(to, p, slots, shared)
                        : s.head_dim == 128 ? launch<128, 4>(to, p, slots, shared) || launch<128, 2>(to, p, slots, shared)
                                            : launch<256, 3>(to, p, slots, shared) || launch<256, 2>(to, p, slots, shared) ||
                                                  launch<256, 1>(to, p, slots, shared);
  if (!launched) throw Error(ErrorCode::internal, "[cuda] attention on matrix units: expected 48 KiB of shared memory, found less");
  if (a.split_slots > 0) combine_splits(to, a, p);
}

}  // namespace nibble::cuda
