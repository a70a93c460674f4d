// delta_sm70_pass.cuh: the state of a sequence through its chunks (delta_sm70.cuh)
//   map     block = 64 columns v of a value head of a range, a warp 16 of them, on its own but for the tiles. All products
//           are transposed, so that sums, in f16, are the next product's register operand: rows v, columns x or tokens.
//           48 heads of 128 are 96 blocks, which 80 multiprocessors run at once, two on some; fewer columns a block would
//           read keys and queries more often and leave some scheduler two warps of 16 columns all the same
//   tiles   of the next chunk come through registers while products are made, into one place each: 46 KB, two blocks a
//           multiprocessor. 16-byte loads of operands feed two products each
//   S       float32 in registers from the first chunk to the last
//   sums    core/numerics/delta_order.h; blocks above the diagonal of A and M are multiplied too, for what is no number
//                                                                          parity: mirrored
//   cost    a chunk, warp and key_dim 128: 512 mma, 232 loads of operands -> latency of products that need one another
//   needs   key_dim 32 or 128, values in eights; any arch, by emulation outside 7.0
#pragma once

#include <cstdint>

#include "backends/cuda/ops/delta_sm70.cuh"

namespace nibble::cuda::sm70::passing {

constexpr int kWarps = 4, kThreads = kWarps * 32, kBlocks = 2;
constexpr int kWarpColumns = 16, kColumns = kWarps * kWarpColumns;

template <int KeyDim>
struct Shared {
  uint4 keys[kKeyPlaces<KeyDim>], queries[kKeyPlaces<KeyDim>], record[kRecordPlaces];
};
static_assert(kBlocks * sizeof(Shared<128>) <= 96 * 1024);

// Read anew each time: kept through the loop, it and the addresses made of it would cost registers that S needs.
__device__ __forceinline__ int this_thread() {
#if defined(__CUDA_ARCH__)
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
#else
  return static_cast<int>(threadIdx.x);
#endif
}
__device__ __forceinline__ int this_lane() { return this_thread() % 32; }

// Neighbouring 16 bytes of memory on their way to shared memory. Loads have no conditions: one that may not happen would
// keep its registers through the loop.
template <int Count>
struct InFlight {
  static constexpr int kEach = (Count + kThreads - 1) / kThreads;
  uint4 v[kEach];
  __device__ __forceinline__ void load(const uint4* from) {
    const int thread = this_thread();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kThreads + thread;
      v[i] = __ldg(from + (Count % kThreads == 0 || at < Count ? at : Count - 1));
    }
  }
  __device__ __forceinline__ void store(uint4* to) const {
    const int thread = this_thread();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kThreads + thread;
      if (Count % kThreads == 0 || at < Count) to[at] = v[i];
    }
  }
};

template <int KeyDim>
class Pass {
 public:
  static constexpr int kGroups = KeyDim / 32, kXTiles = 2 * kGroups;  // of a lane: 16 x in two tiles
  using Place = Shared<KeyDim>;

  __device__ __forceinline__ Pass(const DeltaSm70Params& p, const RangeView& r, Place& shared) : p_(p), shared_(shared) {
    load_state(r);
  }

  __device__ __forceinline__ void run(const RangeView& r, int first_chunk) {
    const uint4* record_at = record_of(p_, first_chunk, head());
    const int to_keys = static_cast<int>(keys_of(p_, first_chunk, key_head_of(p_.state.shape, head())) - record_at);
    {
      InFlight<2 * kKeyPlaces<KeyDim>> tiles;
      tiles.load(record_at + to_keys);
      tiles.store(shared_.keys);
      InFlight<kRecordPlaces> record;
      record.load(record_at);
      record.store(shared_.record);
    }
    __syncthreads();
    const int slot = r.slot;
    int row = r.first_row, left = r.rows, room = first_chunk_room(r);
#pragma unroll 1
    while (true) {
      const int rows = min(left, room);
      left -= rows;
      if (left > 0) record_at += sm70_chunk_bytes(p_.state.shape) / 16;  // else the same tiles again
      Tile past[kTokenTiles] = {}, answer[kTokenTiles] = {};
      products_with_state(past, answer);
      residual(row, rows, past, answer);
      Operand plain[kTokenTiles], decayed[kTokenTiles];
      Scales of_u;
      make_u(past, plain, decayed, of_u);
      {
        InFlight<kKeyPlaces<KeyDim>> queries;
        queries.load(record_at + to_keys + kKeyPlaces<KeyDim>);
        put_answer(row, rows, plain, of_u, answer);
        __syncthreads();  // queries are done with
        queries.store(shared_.queries);
      }
      InFlight<kKeyPlaces<KeyDim>> keys;
      InFlight<kRecordPlaces> record;
      keys.load(record_at + to_keys);
      record.load(record_at);
      advance(decayed, of_u);
      if (left <= 0) break;
      row += rows;
      room = kChunk;
      __syncthreads();  // so are keys and the record
      keys.store(shared_.keys);
      record.store(shared_.record);
      __syncthreads();
    }
    store_state(slot);
  }

 private:
  __device__ __forceinline__ static int head() { return static_cast<int>(blockIdx.y); }
  // A warp's first column. Columns of eights that are not there are computed as zeros.
  __device__ __forceinline__ static int first_column(int thread) {
    return static_cast<int>(blockIdx.x) * kColumns + thread / 32 * kWarpColumns;
  }
  __device__ __forceinline__ bool there(int thread) const {
    return first_column(thread) + down_of(thread % 32) * 8 < p_.state.shape.value_dim;
  }

  // Values of eight tokens, as four columns of each of two; rows beyond the chunk's are zero.
  __device__ __forceinline__ void load_values(const float* from, int stride, int rows, int lane, int m, Tile& v) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = four_token(lane, m, half);
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (token < rows) four = __ldg(reinterpret_cast<const float4*>(from + token * stride));
      v[4 * half] = four.x, v[4 * half + 1] = four.y, v[4 * half + 2] = four.z, v[4 * half + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) turn<1>(lane, v[i], v[i + 1]);
  }
  __device__ __forceinline__ void store_values(float* to, int stride, int rows, int lane, int m, Tile& v) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) turn<1>(lane, v[i], v[i + 1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = four_token(lane, m, half);
      if (token >= rows) continue;
      *reinterpret_cast<float4*>(to + token * stride) = make_float4(v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]);
    }
  }

  // f(element, x, v) of the lane's part of S.
  template <class F>
  __device__ __forceinline__ void each_of_s(F f) {
    const int thread = this_thread(), lane = thread % 32;
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) f(s_[n][i], sum_x(lane, n / 2, n % 2, i), first_column(thread) + sum_row(lane, i));
    }
  }
  __device__ __forceinline__ void load_state(const RangeView& r) {
    const int value_dim = p_.state.shape.value_dim;
    float* const from = state_of(p_.state, r.slot, head());
    if (r.keep > 0) {
      const RecordsView old = records_of(p_.state, r.slot, r.half, head());
      for (int i = this_thread(); i < KeyDim * kColumns; i += kThreads) {
        const int x = i / kColumns, v = static_cast<int>(blockIdx.x) * kColumns + i % kColumns;
        float* const at = from + std::int64_t{x} * value_dim + v;
        if (v < value_dim) *at = fold(old, r.keep, x, v, *at);
      }
      __syncthreads();
    }
    const bool here = there(this_thread());
    each_of_s([&](float& to, int x, int v) {
      const float old = from[x * value_dim + (here ? v : 0)];
      to = here ? old : 0.0f;
    });
    of_s_ = scales_of(s_);
  }
  __device__ __forceinline__ void store_state(int slot) {
    const int value_dim = p_.state.shape.value_dim;
    float* const to = state_of(p_.state, slot, head());
    if (!there(this_thread())) return;
    each_of_s([&](float& from, int x, int v) { to[x * value_dim + v] = from; });
  }

  // P and Q, without 2^e.
  __device__ __forceinline__ void products_with_state(Tile (&past)[kTokenTiles], Tile (&answer)[kTokenTiles]) const {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int own = this_lane();
      Operand low[2], high[2];  // of both tiles of 16 x
      both(own, operand_of(own, s_[2 * n], of_s_.down), low);
      both(own, operand_of(own, s_[2 * n + 1], of_s_.down), high);
#pragma unroll
      for (int g = 0; g < 2; ++g) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {  // eights of x
          const uint2 a[2] = {low[g].four(e), high[g].four(e)};
          const int lane = this_lane();
          with_tokens(lane, shared_.keys, 4 * n + 2 * g + e, a, past);
          with_tokens(lane, shared_.queries, 4 * n + 2 * g + e, a, answer);
        }
      }
    }
  }
  __device__ __forceinline__ static void with_tokens(int lane, const uint4* tile, int eight, const uint2 (&a)[2],
                                                     Tile (&to)[kTokenTiles]) {
    uint4 b[kTokenTiles];
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) b[m] = tile[key_place<KeyDim>(first_token(lane, m) + eighth_of(lane), eight)];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) mma_m8n8k4_f16<kM8n8k4Path>(to[m], a[half], four(b[m], half));
    }
  }

  // Two neighbouring floats of the record's decays, of the tokens of sums i and i + 1.
  __device__ __forceinline__ float2 pair_of(int lane, int bytes, int m, int i) const {
    return *reinterpret_cast<const float2*>(reinterpret_cast<const float*>(shared_.record) + bytes / 4 + sum_token(lane, m, i));
  }
  // P to R, Q to d(G) Q.
  __device__ __forceinline__ void residual(int row, int rows, Tile (&past)[kTokenTiles], Tile (&answer)[kTokenTiles]) const {
    const int thread = this_thread(), lane = thread % 32;
    const DeltaShape& d = p_.state.shape;
    const float* const values = p_.qkv.row(row) + (2 * d.key_channels() + std::int64_t{head()} * d.value_dim) +
                                (first_column(thread) + four_row(lane));
    const int values_there = there(thread) ? rows : 0;
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      Tile value;
      load_values(values, static_cast<int>(p_.qkv.stride), values_there, lane, m, value);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float up = of_s_.up(i / 2 % 2);
        const float2 grown = pair_of(lane, kGrownAt, m, i), beta = pair_of(lane, kBetaAt, m, i);
        past[m][i] = num::mul(beta.x, num::fma(-grown.x, num::mul(past[m][i], up), value[i]));
        past[m][i + 1] = num::mul(beta.y, num::fma(-grown.y, num::mul(past[m][i + 1], up), value[i + 1]));
        answer[m][i] = num::mul(grown.x, num::mul(answer[m][i], up));
        answer[m][i + 1] = num::mul(grown.y, num::mul(answer[m][i + 1], up));
      }
    }
  }

  // to = rows of `of` times the columns of A or M, which lie row by row.
  __device__ __forceinline__ void with_square(const uint4* square, const Operand (&of)[kTokenTiles], Tile (&to)[kTokenTiles]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      Operand a[2];
      both(this_lane(), of[n], a);
#pragma unroll
      for (int g = 0; g < 2; ++g) {
        const int eight = 2 * n + g, lane = this_lane();
        uint4 b[kTokenTiles];
#pragma unroll
        for (int m = 0; m < kTokenTiles; ++m) {
          b[m] = above_diagonal(m, eight) ? make_uint4(0, 0, 0, 0)
                                          : square[square_place(first_token(lane, m) + eighth_of(lane), eight)];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int m = 0; m < kTokenTiles; ++m) mma_m8n8k4_f16<kM8n8k4Path>(to[m], a[g].four(half), four(b[m], half));
        }
      }
    }
  }
  // R to operands of U and of d(G_last - G) U, and e of U.
  __device__ __forceinline__ void make_u(const Tile (&residual)[kTokenTiles], Operand (&plain)[kTokenTiles],
                                         Operand (&decayed)[kTokenTiles], Scales& of_u) const {
    const int lane = this_lane();
    Tile u[kTokenTiles] = {};
    {
      const Scales scales = scales_of(residual);
      Operand of_r[kTokenTiles];
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) of_r[m] = operand_of(lane, residual[m], scales.down);
      with_square(shared_.record, of_r, u);
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 8; ++i) u[m][i] = num::mul(u[m][i], scales.up(i / 2 % 2));
      }
    }
    of_u = scales_of(u);
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      plain[m] = operand_of(lane, u[m], of_u.down);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const float2 rest = pair_of(lane, kRestAt, m, i);
        u[m][i] = num::mul(rest.x, u[m][i]);
        u[m][i + 1] = num::mul(rest.y, u[m][i + 1]);
      }
      decayed[m] = operand_of(lane, u[m], of_u.down);
    }
  }
  __device__ __forceinline__ void put_answer(int row, int rows, const Operand (&plain)[kTokenTiles], const Scales& of_u,
                                             const Tile (&answer)[kTokenTiles]) const {
    Tile o[kTokenTiles] = {};
    with_square(shared_.record + kMAt / 16, plain, o);
    const int thread = this_thread(), lane = thread % 32;
    float* const y = p_.y.row(row) + std::int64_t{head()} * p_.state.shape.value_dim + (first_column(thread) + four_row(lane));
    const int answers = there(thread) ? rows : 0;
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 8; ++i) o[m][i] = num::fma(of_u.up(i / 2 % 2), o[m][i], answer[m][i]);
      store_values(y, static_cast<int>(p_.y.stride), answers, lane, m, o[m]);
    }
  }

  // S with the chunk in it.
  __device__ __forceinline__ void advance(const Operand (&decayed)[kTokenTiles], const Scales& of_u) {
    constexpr int kAtOnce = kGroups < 2 ? kGroups : 2;  // more would take registers that tiles on their way need
    const float last = reinterpret_cast<const float*>(shared_.record)[kGrownAt / 4 + kChunk - 1];
#pragma unroll
    for (int first = 0; first < kGroups; first += kAtOnce) {
      Tile sum[2 * kAtOnce] = {};
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        Operand a[2];
        both(this_lane(), decayed[n], a);
#pragma unroll
        for (int four_rows = 0; four_rows < 4; ++four_rows) {
          const int lane = this_lane(), row = 16 * n + 4 * four_rows + lane % 4;
          const uint2 left = a[four_rows / 2].four(four_rows % 2);
#pragma unroll
          for (int g = 0; g < kAtOnce; ++g) {
            const uint4 b = shared_.keys[key_place<KeyDim>(row, first_x(lane, first + g) / 8 + upper_of(lane))];
            mma_m8n8k4_f16_rows<kM8n8k4Path>(sum[2 * g], left, four(b, 0));
            mma_m8n8k4_f16_rows<kM8n8k4Path>(sum[2 * g + 1], left, four(b, 1));
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2 * kAtOnce; ++n) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& s = s_[2 * first + n][i];
          s = num::fma(of_u.up(i / 2 % 2), sum[n][i], num::mul(last, s));
        }
      }
    }
    of_s_ = scales_of(s_);
  }

  const DeltaSm70Params& p_;
  Place& shared_;
  Tile s_[kXTiles];
  Scales of_s_;
};

template <int KeyDim>
__global__ void __launch_bounds__(kThreads, kBlocks) sm70_pass(const DeltaSm70Params p) {
  __shared__ Shared<KeyDim> shared;
  const int index = static_cast<int>(blockIdx.z);
  const RangeView* const range = section_range(*p.steps, p.section, index);
  if (range == nullptr) return;
  const RangeView r = *range;
  Pass<KeyDim>(p, r, shared).run(r, first_record(r, index));
}

}  // namespace nibble::cuda::sm70::passing
