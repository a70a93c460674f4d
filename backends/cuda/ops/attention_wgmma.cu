// attention_wgmma.cu: a prompt's attention on sm_90's wgmma, order of core/numerics/attention_order.h
//   q, y [T, heads * Dim], pages [pages, kv_heads, 64, Dim]: bf16
//   unit   64 positions on the absolute grid of one head, so that all its rows end in the same tile of keys
//   map    block = two units of one kv head (two heads of the same positions where a kv head has an even number), a
//          warpgroup each, and a warp that brings tiles: both read the same keys and values. The longest units come first
//   loop   a warpgroup asks for the next tile's scores, then for this tile's values, and weighs scores while values are
//          multiplied. Whose turn it is at the matrix unit is left to the card: taking turns by barriers was no faster
//   sums   core/numerics/attention_order.h                                 parity: mirrored
//   cost   4 * Dim products a query and key -> matrix unit; beside it about 19 instructions for a score
//   needs  wgmma and tensor maps; pages whose rows behind a sequence may hold anything
#include "backends/cuda/check.h"
#include "backends/cuda/device/gated.cuh"
#include "backends/cuda/device/sm90_attention.cuh"
#include "backends/cuda/launch_early.h"
#include "backends/cuda/ops/attention_units.h"
#include "backends/cuda/ops/delta_grid.cuh"
#include "backends/cuda/ops/eights.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "backends/cuda/tensor_map.h"
#include "core/numerics/attention_order.h"

namespace nibble::cuda {
namespace {

constexpr int kTile = num::kAttentionTile, kUnits = 2, kWorkers = kUnits * 128, kThreads = kWorkers + 128;
constexpr int kBoxCols = 64, kBoxBytes = kTile * kBoxCols * 2;  // columns of a swizzled row
static_assert(kTile == kDeltaChunk);
constexpr std::uint32_t kAsleep = 20000;  // ns, at most

template <int Dim>
struct Room {
  static constexpr int kBoxes = Dim / kBoxCols, kTileBytes = kBoxes * kBoxBytes, kStages = Dim == 256 ? 2 : 4;
  static constexpr int kBarriers = kUnits + 4 * kStages;
  static constexpr int kBytes = 1024 + kUnits * kTileBytes + 2 * kStages * kTileBytes + kBarriers * 8;
  static_assert(kBytes <= 227 * 1024);
  static constexpr int kWorkerRegisters = 232, kProducerRegisters = 40;  // of a thread

  std::uint32_t start;  // of queries, keys, values, barriers
  __device__ __forceinline__ std::uint32_t queries(int unit) const { return start + static_cast<std::uint32_t>(unit) * kTileBytes; }
  __device__ __forceinline__ std::uint32_t keys(int tile) const { return queries(kUnits + tile % kStages); }
  __device__ __forceinline__ std::uint32_t values(int tile) const { return queries(kUnits + kStages + tile % kStages); }
  __device__ __forceinline__ Barrier barrier(int i) const {
    return {start + static_cast<std::uint32_t>((kUnits + 2 * kStages) * kTileBytes + i * 8)};
  }
  __device__ __forceinline__ Barrier has_queries(int unit) const { return barrier(unit); }
  __device__ __forceinline__ Barrier has_keys(int tile) const { return barrier(kUnits + tile % kStages); }
  __device__ __forceinline__ Barrier has_values(int tile) const { return barrier(kUnits + kStages + tile % kStages); }
  __device__ __forceinline__ Barrier keys_read(int tile) const { return barrier(kUnits + 2 * kStages + tile % kStages); }
  __device__ __forceinline__ Barrier values_read(int tile) const { return barrier(kUnits + 3 * kStages + tile % kStages); }
  __device__ __forceinline__ static std::uint32_t parity(int tile) { return static_cast<std::uint32_t>(tile / kStages) & 1u; }
};

struct Params {
  const StepView* steps;
  TypedRows<Bf16> y;
  float scale;
  AttentionShape shape;
  const Bf16* values;
  HeadGates<Bf16> gates;
};

// A block's units, of one range, and the tiles that it needs.
struct Work {
  const RangeView* range;
  int chunk[kUnits], head[kUnits];  // 64 positions from chunk * 64; of the kv head's heads. head < 0: no unit
  int tiles;
};
__device__ __forceinline__ Work find_work(const StepView& step, int index, int group) {
  const int s = static_cast<int>(Section::prefill);
  Work w{nullptr, {0, 0}, {-1, -1}, 0};
  for (int at = step.first_range[s + 1] - 1; at >= step.first_range[s]; --at) {
    const RangeView* const r = step.range + at;
    if (r->rows <= 0) continue;
    const int units = chunks_of(*r) * group, blocks = (units + kUnits - 1) / kUnits;
    if (index >= blocks) {
      index -= blocks;
      continue;
    }
    w.range = r;
    const int last = static_cast<int>((r->position + r->rows - 1) / kTile);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int unit = index * kUnits + i;
      if (unit >= units) continue;
      w.chunk[i] = last - unit / group;
      w.head[i] = unit % group;
    }
    w.tiles = w.chunk[0] + 1;  // the first is the longest
    return w;
  }
  return w;
}

template <int Dim>
__device__ __forceinline__ void bring(std::uint32_t to, const CUtensorMap* map, int head, int row, Barrier done) {
  if constexpr (Dim == kBoxCols) {
    copy_box(to, map, head * Dim, row, done);
  } else {
    copy_boxes(to, map, head * (Dim / kBoxCols), row, done);
  }
}

// By one warp: queries of both units, then tiles of keys and values.
template <int Dim>
__device__ __forceinline__ void produce(const Room<Dim>& room, const Params& a, const CUtensorMap* q, const CUtensorMap* k,
                                        const CUtensorMap* v, const Work& w, int kv_head) {
  using R = Room<Dim>;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = a.shape.heads / a.shape.kv_heads;
  const RangeView& r = *w.range;
  if (lane == 0) {
    for (int i = 0; i < kUnits; ++i) {
      if (w.head[i] < 0) continue;
      // Rows of the unit that the range does not have are other rows or, outside q, zero: nobody reads what they give.
      const auto row = static_cast<int>(r.first_row + (std::int64_t{w.chunk[i]} * kTile - r.position));
      room.has_queries(i).arrive_expecting(R::kTileBytes);
      bring<Dim>(room.queries(i), q, kv_head * group + w.head[i], row, room.has_queries(i));
    }
  }
  const std::int32_t* const pages = a.steps->pages + r.first_page;
  const std::int64_t end = r.position + r.rows;
  std::int32_t ahead = 0;
#pragma unroll 1
  for (int tile = 0; tile < w.tiles; ++tile) {
    if (tile % 32 == 0) ahead = tile + lane < w.tiles ? pages[tile + lane] : 0;
    const std::int32_t page = __shfl_sync(~0u, ahead, tile % 32);
    const int row = (page * a.shape.kv_heads + kv_head) * kTile;
    const auto there = static_cast<int>(min(end - std::int64_t{tile} * kTile, std::int64_t{kTile}));
    if (lane == 0) {
      wait_asleep(room.keys_read(tile), R::parity(tile) ^ 1, kAsleep);
      room.has_keys(tile).arrive_expecting(R::kTileBytes);
      bring<Dim>(room.keys(tile), k, 0, row, room.has_keys(tile));
      wait_asleep(room.values_read(tile), R::parity(tile) ^ 1, kAsleep);
      if (there == kTile) {
        room.has_values(tile).arrive_expecting(R::kTileBytes);
        bring<Dim>(room.values(tile), v, 0, row, room.has_values(tile));
      }
    }
    if (there == kTile) continue;
    // Values that the sequence does not have count as zero, whatever lies there.
    __syncwarp();
    const auto* const from = reinterpret_cast<const uint4*>(a.values + std::int64_t{row} * Dim);
#pragma unroll 2
    for (int i = lane; i < kTile * (Dim / 8); i += 32) {
      const int at = i / (Dim / 8), chunk = i % (Dim / 8);
      const uint4 x = at < there ? from[i] : make_uint4(0, 0, 0, 0);
      const std::uint32_t to = room.values(tile) + static_cast<std::uint32_t>(chunk / 8 * kBoxBytes + at * 128 + (chunk % 8 ^ at % 8) * 16);
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
    }
    fence_shared_writes();
    __syncwarp();
    if (lane == 0) room.has_values(tile).arrive();
  }
}

// The same in all lanes, which the compiler then knows: it goes to registers that a warp has once, as wgmma wants it.
template <class T>
__device__ __forceinline__ T same(T v) {
  return __shfl_sync(~0u, v, 0);
}

// num::exp of what is not above 0, nor NaN.
__device__ __forceinline__ float exp_below(float x) {
  constexpr float kHi = 0x1.715476p+0f, kLo = 0x1.4ae0cp-26f;
  const float t = num::fma(x, kHi, num::detail::kRound), n = num::sub(t, num::detail::kRound);
  const float f = num::fma(x, kLo, num::fma(x, kHi, -n));
  // Not `?`: that became a branch around all of it, and one exponential waited for the other.
  float e = num::detail::scale_by_pow2(num::detail::exp2_poly(f), t);
  asm("{ .reg .pred low; setp.lt.f32 low, %1, 0fC2AE999A; selp.f32 %0, 0f00000000, %0, low; }" : "+f"(e) : "f"(x));
  return e;
}

template <int Dim>
class Worker {
 public:
  __device__ __forceinline__ Worker(const Room<Dim>& room, const Params& a, int unit)
      : room_(room), a_(a), unit_(unit), lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane_ / 4) {}

  // `tiles` of this unit, of the block's `all`.
  __device__ __forceinline__ void run(int tiles, int all) {
    clear(o_);
    m_[0] = m_[1] = -__builtin_inff();
    l_[0] = l_[1] = 0.0f;
    if (tiles > 0) {
      room_.has_queries(unit_).wait(0);
      room_.has_keys(0).wait(0);
      scores(0);
      wgmma_wait<0>();
      settle(x_);
      arrive(room_.keys_read(0));
      weigh(tiles == 1);
      pack();
    }
#pragma unroll 1
    for (int tile = 1; tile < tiles; ++tile) {
      room_.has_keys(tile).wait(R::parity(tile));
      scores(tile);
      room_.has_values(tile - 1).wait(R::parity(tile - 1));
      values(tile - 1);
      wgmma_wait<1>();
      settle(x_);
      arrive(room_.keys_read(tile));
      weigh(tile + 1 == tiles);
      wgmma_wait<0>();
      settle(o_);
#pragma unroll
      for (int s = 0; s < 4; ++s) settle(w_[s]);
      arrive(room_.values_read(tile - 1));
      rescale();
      pack();
    }
    if (tiles > 0) {
      room_.has_values(tiles - 1).wait(R::parity(tiles - 1));
      values(tiles - 1);
      wgmma_wait<0>();
      settle(o_);
      arrive(room_.values_read(tiles - 1));
    }
    for (int tile = tiles; tile < all; ++tile) {  // the other unit's
      room_.has_keys(tile).wait(R::parity(tile));
      arrive(room_.keys_read(tile));
      room_.has_values(tile).wait(R::parity(tile));
      arrive(room_.values_read(tile));
    }
  }

  __device__ __forceinline__ void store(const RangeView& r, int chunk, int head) {
    const int p = lane_ % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t position = std::int64_t{chunk} * kTile + row_ + 8 * h;
      if (position < r.position || position >= r.position + r.rows) continue;
      const float by = num::div(1.0f, l_[h]);
      auto* const y = reinterpret_cast<std::uint32_t*>(a_.y.row(r.first_row + (position - r.position)) + std::int64_t{head} * Dim) + p;
      if (a_.gates.data == nullptr) {
#pragma unroll
        for (int n = 0; n < Dim / 8; ++n) {
          y[4 * n] = bf16_pair(num::mul(o_[4 * n + 2 * h], by), num::mul(o_[4 * n + 2 * h + 1], by));
        }
      } else {
        const auto* const gates = reinterpret_cast<const std::uint32_t*>(a_.gates.of(r.first_row + (position - r.position), head)) + p;
#pragma unroll
        for (int n = 0; n < Dim / 8; ++n) {
          y[4 * n] = gated_pair(num::mul(o_[4 * n + 2 * h], by), num::mul(o_[4 * n + 2 * h + 1], by), gates[4 * n]);
        }
      }
    }
  }

 private:
  using R = Room<Dim>;

  __device__ __forceinline__ void arrive(Barrier b) const {
    if (lane_ == 0) b.arrive();
  }
  __device__ __forceinline__ void scores(int tile) {
    const std::uint32_t q = same(first_half(room_.queries(unit_))), k = same(first_half(room_.keys(tile)));
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < Dim / 16; ++s) {
      const std::uint32_t at = static_cast<std::uint32_t>(s / 4 * (kBoxBytes / 16)) + static_cast<std::uint32_t>(s % 4) * kStepOfK;
      if (s == 0) {
        wgmma_shared<false>(x_, swizzled_tile(q + at), swizzled_tile(k + at));
      } else {
        wgmma_shared<true>(x_, swizzled_tile(q + at), swizzled_tile(k + at));
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void values(int tile) {
    const std::uint32_t v = same(room_.values(tile));
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kTile / 16; ++s) {
      wgmma_across<Dim>(o_, w_[s], across_tile<128>(v + static_cast<std::uint32_t>(s * 16 * 128), kBoxBytes));
    }
    wgmma_commit();
  }
  // Scores of a tile become weights, m and l go on. `diagonal`: the unit's own positions, of which a row sees those up to its.
  __device__ __forceinline__ void weigh(bool diagonal) {
    const int first = lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) x_[i] = num::mul(x_[i], a_.scale);
    if (diagonal) {
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) {
        if (8 * (i / 4) + first + i % 2 > row_ + i % 4 / 2 * 8) x_[i] = -__builtin_inff();
      }
    }
    float most[2], sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float a = -__builtin_inff(), b = a;  // two chains: a maximum has no order
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
        a = fmaxf(a, x_[4 * n + 2 * h]);
        b = fmaxf(b, x_[4 * n + 2 * h + 1]);
      }
      most[h] = fmaxf(a, b);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
    bool finite = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = fmaxf(most[h], m_[h]);
      finite = finite && num::abs(most[h]) < __builtin_inff();
    }
    if (__builtin_expect(__all_sync(~0u, finite), 1)) {
      // Keys that are not seen have -inf, so 0; of NaN something above 2^127 is left.
#pragma unroll
      for (int h = 0; h < 2; ++h) f_[h] = exp_below(num::sub(m_[h], most[h]));
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) x_[i] = exp_below(num::sub(x_[i], most[i % 4 / 2]));
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) f_[h] = most[h] == m_[h] ? 1.0f : num::exp(num::sub(m_[h], most[h]));
#pragma unroll
      for (int i = 0; i < kTile / 2; ++i) {
        const float of = most[i % 4 / 2], w = x_[i] == of ? 1.0f : num::exp(num::sub(x_[i], of));
        x_[i] = diagonal && 8 * (i / 4) + first + i % 2 > row_ + i % 4 / 2 * 8 ? 0.0f : w;
      }
    }
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) sum[i % 4 / 2] = num::add(sum[i % 4 / 2], x_[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = num::add(sum[h], __shfl_xor_sync(~0u, sum[h], 1));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = num::add(sum[h], __shfl_xor_sync(~0u, sum[h], 2));
      if (sum[h] > 0x1p100f) sum[h] = __builtin_nanf("");  // the whole row is no number then: y is O * (1 / l)
      l_[h] = num::fma(l_[h], f_[h], sum[h]);
      m_[h] = most[h];
    }
  }
  __device__ __forceinline__ void rescale() {
    if (!__any_sync(~0u, f_[0] != 1.0f || f_[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < Dim / 2; ++i) o_[i] = num::mul(f_[i / 2 % 2], o_[i]);
  }
  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int s = 0; s < kTile / 16; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // (g; k 2p ..), (g + 8; the same), (g; k 2p + 8 ..), (g + 8; the same)
        w_[s][i] = bf16_pair(x_[8 * s + i / 2 * 4 + i % 2 * 2], x_[8 * s + i / 2 * 4 + i % 2 * 2 + 1]);
      }
    }
  }
  template <int N>
  __device__ __forceinline__ static void clear(float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = 0.0f;
  }

  const Room<Dim>& room_;
  const Params& a_;
  int unit_, lane_, row_;
  float o_[Dim / 2], x_[kTile / 2], m_[2], l_[2], f_[2];
  std::uint32_t w_[kTile / 16][4];
};

template <int Dim>
__global__ void __launch_bounds__(kThreads, 1)
    attend_wgmma(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                 const __grid_constant__ CUtensorMap v, const __grid_constant__ Params a) {
#if defined(NIBBLE_SM90A)
  using R = Room<Dim>;
  extern __shared__ std::uint8_t raw[];
  const R room{(shared_address(raw) + 1023u) & ~1023u};
  if (threadIdx.x < R::kBarriers) {
    room.barrier(static_cast<int>(threadIdx.x)).init(static_cast<int>(threadIdx.x) < kUnits + 2 * R::kStages ? 1 : kUnits * 4);
  }
  fence_barriers();
  __syncthreads();
  let_next_launch_begin();
  wait_for_launches_before();
  const int kv_head = static_cast<int>(blockIdx.x), group = a.shape.heads / a.shape.kv_heads;
  const Work w = find_work(*a.steps, static_cast<int>(blockIdx.y), group);
  if (w.range == nullptr) return;
  if (threadIdx.x >= kWorkers) {
    give_registers<R::kProducerRegisters>();
    if (threadIdx.x < kWorkers + 32) produce<Dim>(room, a, &q, &k, &v, w, kv_head);
    return;
  }
  take_registers<R::kWorkerRegisters>();
  const int unit = same(static_cast<int>(threadIdx.x) / 128);
  const int head = unit == 0 ? w.head[0] : w.head[1], chunk = unit == 0 ? w.chunk[0] : w.chunk[1];
  Worker<Dim> worker(room, a, unit);
  worker.run(same(head < 0 ? 0 : chunk + 1), same(w.tiles));
  if (head >= 0) worker.store(*w.range, chunk, kv_head * group + head);
#endif
}

// Gates of the section's rows, y in place: with its exponentials in the blocks above, which are alone on a multiprocessor,
// a prompt of 2,048 took 68 us longer; by itself it takes less than half of that.
__global__ void __launch_bounds__(256) gate_prompts(const StepView* step, TypedRows<Bf16> y, HeadGates<Bf16> gates, int eights,
                                                    int eights_of_head) {
  let_next_launch_begin();
  wait_for_launches_before();
  constexpr int kSection = static_cast<int>(Section::prefill);
  const std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x, row = step->first_row[kSection] + i / eights;
  if (row >= step->first_row[kSection + 1]) return;
  const int at = static_cast<int>(i % eights), head = at / eights_of_head;
  auto* const to = reinterpret_cast<uint4*>(y.row(row)) + at;
  const uint4 g = reinterpret_cast<const uint4*>(gates.of(row, head))[at % eights_of_head];
  uint4 v = *to;
  v.x = gated_pair(low_of(v.x), high_of(v.x), g.x);
  v.y = gated_pair(low_of(v.y), high_of(v.y), g.y);
  v.z = gated_pair(low_of(v.z), high_of(v.z), g.z);
  v.w = gated_pair(low_of(v.w), high_of(v.w), g.w);
  *to = v;
}

bool in_16_bytes(const View& v, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 && v.stride % 8 == 0 && stride % 8 == 0;
}

template <int Dim>
void launch(const Launch& to, const AttentionArgs& a) {
  using R = Room<Dim>;
  const AttentionShape& s = a.state.shape;
  const int group = s.heads / s.kv_heads;
  const std::int64_t blocks = (most_records(to.max_rows, to.max_ranges) * group + kUnits - 1) / kUnits + to.max_ranges;
  const auto map = [](const std::byte* data, std::int64_t cols, std::int64_t rows, std::int64_t stride) {
    return tensor_map({CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, cols, rows, stride * 2, kBoxCols, kTile,
                       CU_TENSOR_MAP_SWIZZLE_128B, R::kBoxes, 2});
  };
  const std::int64_t rows = a.state.pages * s.kv_heads * kTile;
  const HeadGates<Bf16> gates{reinterpret_cast<const Bf16*>(a.gate.data), a.gate.stride, a.gate_head_stride};
  const bool gate_apart = gates.data != nullptr && in_16_bytes(a.gate, a.gate_head_stride) && in_16_bytes(a.y, 0);
  const Params p{to.step, typed<Bf16>(a.y), a.scale, s, reinterpret_cast<const Bf16*>(a.state.v), gate_apart ? HeadGates<Bf16>{} : gates};
  check(cudaFuncSetAttribute(attend_wgmma<Dim>, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kBytes), "attention");
  check(launch_early(attend_wgmma<Dim>, dim3(static_cast<unsigned>(s.kv_heads), static_cast<unsigned>(blocks)), kThreads,
                     R::kBytes, to.stream, map(a.q.data, std::int64_t{s.heads} * Dim, to.max_rows, a.q.stride),
                     map(a.state.k, Dim, rows, Dim), map(a.state.v, Dim, rows, Dim), p),
        "attention");
  if (!gate_apart) return;
  const int eights = s.heads * Dim / 8;
  check(launch_early(gate_prompts, static_cast<unsigned>((to.max_rows * eights + 255) / 256), 256, 0, to.stream, to.step,
                     typed<Bf16>(a.y), gates, eights, Dim / 8),
        "attention's gate");
}

}  // namespace

const char* refuse_attention_wgmma(const Launch& to, const AttentionArgs& a) {
  const AttentionShape& s = a.state.shape;
  if (a.path != ArchPath::sm90) return "the path is not sm90";
  if (a.state.k_scales != nullptr) return "keys and values are in fp8";
  if (!has_wgmma()) return "the card runs no code for sm_90a";
  if (!has_tensor_maps()) return "the driver makes no tensor maps";
  if (a.q.stride % 8 != 0 || reinterpret_cast<std::uintptr_t>(a.q.data) % 16 != 0) return "rows of q are not aligned to 16 bytes";
  if (a.state.pages * s.kv_heads * kTile >= std::int64_t{1} << 31) return "pages have 2^31 rows or more";
  const std::int64_t group = s.heads / s.kv_heads;
  if (most_records(to.max_rows, to.max_ranges) * group / kUnits + to.max_ranges >= 65535) return "a step has 65,535 blocks or more";
  return nullptr;
}

void attention_wgmma(const Launch& to, const AttentionArgs& a) {
  const int dim = a.state.shape.head_dim;
  dim == 64 ? launch<64>(to, a) : dim == 128 ? launch<128>(to, a) : launch<256>(to, a);
}

}  // namespace nibble::cuda
