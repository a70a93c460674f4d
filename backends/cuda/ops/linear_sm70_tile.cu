// linear_sm70_tile.cu: y = x w^T on m8n8k4 for classes of many rows
//   x [T, K] f16 with exponents, rows of whole 16 bytes; y [T, N] f32
//   map   block = 128 or 64 rows of x by 256 of the weight, 8 warps, two by four; a warp 64 or 32 by 64 in squares of
//         16: quad-pairs two by two. With a split, a block has one segment of a tile
//   loop  32 columns at a time, two stages in shared memory, the next in registers; a weight is decoded once for a
//         block, before it is stored. Both operands lie K-major, 64 bytes a row, 16-byte chunk c of row r at
//         c ^ (r / 2 % 2 + r / 8 % 2 * 2): stores and fragment loads of 16 bytes without bank conflicts
//   sums  a segment in one accumulator. Totals: tiles of 64 in registers, of 128 in y, which a block reads and writes
//         again for each segment after the first (no registers are left); of a split in parts, which the block that
//         comes last adds in order                                                         parity: mirrored
//   cost  per 32 columns and warp 128 mma, 32 fragment loads; 48 KB of shared memory, one block a multiprocessor;
//         docs/paper_estimates.md
//   needs K % 8 == 0, FP8 codes without NaN; any arch, by emulation outside 7.0
#include <cstdint>

#include "backends/cuda/ops/linear_sm70.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kRows = 256, kCols = kF16UnitCols, kChunks = kCols / 8, kSquare = 16;
constexpr int kWarpsAcross = 4, kWarpRows = kRows / kWarpsAcross, kSquaresAcross = kWarpRows / kSquare;
static_assert(kRows / kF16UnitRows * 32 == kThreads);  // a lane decodes one row of one unit

struct TileParams {
  LinearParams linear;
  unsigned* counters;  // of a split, else null
  float4* parts;
  bool fours;  // y_in_fours()
};

// In L2, where other blocks look.
__device__ __forceinline__ void store_part(float4* to, float4 v) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ float4 load_part(const float4* from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ int chunk_at(int row, int chunk) {
  return row * kChunks + (chunk ^ ((row >> 1 & 1) | (row >> 3 & 1) << 1));
}

template <WeightFormat F, int Tokens>
class Tile {
 public:
  static constexpr int kLoads = Tokens * kChunks / kThreads, kStage = (Tokens + kRows) * kChunks;
  static constexpr int kSquares = Tokens / 2 / kSquare;  // of a warp, along the tokens
  static constexpr bool kInRegisters = Tokens == 64;
  using Sums = float[kSquares][kSquaresAcross][8];

  __device__ Tile(const TileParams& p, uint4* shared, int rows)
      : p_(p), l_(p.linear), shared_(shared), rows_(rows) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    lane_ = thread % 32;
    const int token0 = static_cast<int>(blockIdx.x) * Tokens, n0 = static_cast<int>(blockIdx.y) * kRows;
    const int units = static_cast<int>(l_.weight.padded_rows / kF16UnitRows), own = n0 / kF16UnitRows + warp;
    const int there = own < units ? own : units - 1;  // what lies past the end is not stored
    unit_ = there * static_cast<int>(l_.weight.padded_cols / kCols);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = token0 + thread / kChunks + i * (kThreads / kChunks);
      x_[i] = (row < rows ? row : rows - 1) * static_cast<int>(l_.x_stride / 8);
    }
    const int warp_token = warp / kWarpsAcross * (Tokens / 2), warp_row = warp % kWarpsAcross * kWarpRows;
    wanted_token_ = token0 + warp_token;
    wanted_row_ = n0 + warp_row;
    a_row_ = warp_token + (lane_ >> 2 & 1) * 8 + operand_row(lane_);
    b_row_ = Tokens + warp_row + (lane_ >> 3 & 1) * 8 + operand_row(lane_);
  }

  // Segments [first, last).
  __device__ __forceinline__ void run(int first, int last, bool split) {
    constexpr int kPerTile = kTileCols / kCols;
    int at = first * l_.segment_tiles * kPerTile;
    load(at);
    store(0, 0, kChunks);
    __syncthreads();
    const int all = l_.k_tiles * kPerTile, stop_all = last * l_.segment_tiles * kPerTile;
    const int stop = stop_all < all ? stop_all : all;
    Totals totals;
    for (int segment = first; segment < last; ++segment) {
      const int whole = (segment + 1) * l_.segment_tiles * kPerTile, end = whole < stop ? whole : stop;
      Sums sum = {};
      for (; at < end; ++at) {
        const bool more = at + 1 < stop;
        if (more) load(at + 1);
        multiply(at & 1, sum, more);
        __syncthreads();
      }
      if (split) return leave(segment, sum);
      enter(segment, segment + 1 == last, sum, totals);
    }
  }

 private:
  struct None {};
  struct InRegisters {
    Sums v = {};
  };
  using Totals = std::conditional_t<kInRegisters, InRegisters, None>;

  __device__ __forceinline__ void load(int tile) {
    weight_.load(l_.weight, unit_ + tile, lane_);
    const int chunk = tile * kChunks + static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const auto* at = reinterpret_cast<const uint4*>(l_.x) + x_[i] + chunk;
      x_next_[i] = x_columns(at, static_cast<int>(l_.weight.cols) - chunk * 8);
    }
  }
  // Chunks [first, last) of the weight; x with the first.
  __device__ __forceinline__ void store(int stage, int first, int last) {
    uint4* const to = shared_ + stage * kStage;
    const int thread = static_cast<int>(threadIdx.x);
    if (first == 0) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        to[chunk_at(thread / kChunks + i * (kThreads / kChunks), thread % kChunks)] = x_next_[i];
      }
    }
    const int row = Tokens + thread / 32 * kF16UnitRows + unit_row(lane_);
#pragma unroll
    for (int c = first; c < last; ++c) to[chunk_at(row, c)] = weight_.eight(c);
  }

  // Of squares with results only, where the instruction is emulated and slow.
  __device__ __forceinline__ bool wanted(int i, int j) const {
    if constexpr (kM8n8k4Path == MmaPath::native) return true;
    return wanted_token_ + i * kSquare < rows_ && wanted_row_ + j * kSquare < l_.weight.rows;
  }
  __device__ __forceinline__ void fragments(const uint4* from, int chunk, uint4 (&a)[kSquares],
                                            uint4 (&b)[kSquaresAcross]) const {
#pragma unroll
    for (int i = 0; i < kSquares; ++i) a[i] = from[chunk_at(a_row_, chunk) + i * (kSquare * kChunks)];
#pragma unroll
    for (int j = 0; j < kSquaresAcross; ++j) b[j] = from[chunk_at(b_row_, chunk) + j * (kSquare * kChunks)];
  }
  // 32 columns of a stage; meanwhile the next go to the other stage.
  __device__ __forceinline__ void multiply(int stage, Sums& sum, bool more) {
    const uint4* const from = shared_ + stage * kStage;
    uint4 a[2][kSquares], b[2][kSquaresAcross];
    fragments(from, 0, a[0], b[0]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // In time, and when half of the registers are free.
        if (half == 1 && c + 1 < kChunks) fragments(from, c + 1, a[(c + 1) % 2], b[(c + 1) % 2]);
#pragma unroll
        for (int i = 0; i < kSquares; ++i) {
#pragma unroll
          for (int j = 0; j < kSquaresAcross; ++j) {
            if (!wanted(i, j)) continue;
            const uint4 &u = a[c % 2][i], &v = b[c % 2][j];
            mma_m8n8k4_f16<kM8n8k4Path>(sum[i][j], half == 0 ? make_uint2(u.x, u.y) : make_uint2(u.z, u.w),
                                        half == 0 ? make_uint2(v.x, v.y) : make_uint2(v.z, v.w));
          }
        }
      }
      // Late: what they wait for was asked for at the start.
      if (more && c == 2) store(stage ^ 1, 0, 2);
      if (more && c == 3) store(stage ^ 1, 2, kChunks);
    }
  }

  // Of the first results of a lane. Read anew, so that no register keeps it through the loop.
  struct Place {
    int token, row, lane;
  };
  __device__ __forceinline__ static Place place() {
    int thread, along, across;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(along));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(across));
    const int lane = thread % 32, warp = thread / 32;
    return {along * Tokens + warp / kWarpsAcross * (Tokens / 2) + (lane >> 2 & 1) * 8 + sum_row(lane, 0),
            across * kRows + warp % kWarpsAcross * kWarpRows + (lane >> 3 & 1) * 8, lane};
  }

  // A segment's sums enter the total, which leaves after the last.
  __device__ __forceinline__ void enter(int segment, bool last, Sums& sum, Totals& totals) {
    const Place at = place();
#pragma unroll
    for (int i = 0; i < kSquares; ++i) {
#pragma unroll
      for (int j = 0; j < kSquaresAcross; ++j) {
        float4 v[2];
        if constexpr (kInRegisters) {
          const int n = at.row + j * kSquare, last_row = static_cast<int>(l_.weight.rows) - 1;
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            totals.v[i][j][e] = add_segment(l_, 0, false, n < last_row ? n : last_row, segment, sum[i][j][e],
                                            totals.v[i][j][e]);
          }
          if (!last) continue;
          exchange(at.lane, totals.v[i][j], v);
          out<false>(at, i, j, true, v);
        } else {
          exchange(at.lane, sum[i][j], v);
          if (segment == 0) {
            out<false>(at, i, j, last, v);
          } else {
            out<true>(at, i, j, last, v);
          }
        }
        asm volatile("" ::: "memory");  // a square at a time: registers are few
      }
    }
  }
  template <bool Add>
  __device__ __forceinline__ void out(const Place& at, int i, int j, bool last, const float4 (&v)[2]) const {
    put_rows<Add>(l_, p_.fours, rows_, at.token + i * kSquare, at.row + j * kSquare + (at.lane & 2) * 2, last, v);
  }

  // Of a split: sums to this segment's part; the block that comes last for the tile adds them up.
  __device__ __forceinline__ void leave(int segment, Sums& sum) {
    constexpr int kEach = kSquares * kSquaresAcross * 2 * kThreads;
    const std::int64_t tile = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    float4* const parts = p_.parts + tile * l_.segments * kEach + threadIdx.x;
    float4* own = parts + segment * kEach;
#pragma unroll
    for (int i = 0; i < kSquares; ++i) {
#pragma unroll
      for (int j = 0; j < kSquaresAcross; ++j) {
        const float(&v)[8] = sum[i][j];
        store_part(own, make_float4(v[0], v[1], v[2], v[3]));
        store_part(own + kThreads, make_float4(v[4], v[5], v[6], v[7]));
        own += 2 * kThreads;
      }
    }
    __threadfence();
    __syncthreads();
    auto* const before = reinterpret_cast<unsigned*>(shared_);  // the stages are done with
    if (threadIdx.x == 0) *before = atomicAdd(p_.counters + tile, 1u);
    __syncthreads();
    if (*before + 1 != static_cast<unsigned>(l_.segments)) return;
    if (threadIdx.x == 0) p_.counters[tile] = 0;
    __threadfence();
    const Place at = place();
#pragma unroll 1
    for (int square = 0; square < kSquares * kSquaresAcross; ++square) {
      const float4* from = parts + square * 2 * kThreads;
      float total[8] = {};
#pragma unroll 1
      for (int s = 0; s < l_.segments; ++s, from += kEach) {
        const float4 u = load_part(from), v = load_part(from + kThreads);
        const float e[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) total[i] = num::add(total[i], e[i]);
      }
      float4 v[2];
      exchange(at.lane, total, v);
      out<false>(at, square / kSquaresAcross, square % kSquaresAcross, true, v);
    }
  }

  const TileParams& p_;
  const LinearParams& l_;
  uint4* const shared_;
  const int rows_;
  int x_[kLoads], unit_;  // where rows start, in 16 bytes; in units
  int lane_, a_row_, b_row_, wanted_token_, wanted_row_;
  Columns32<F> weight_;
  uint4 x_next_[kLoads];
};

template <WeightFormat F, int Tokens>
__global__ __launch_bounds__(kThreads, 1) void sm70_tile(TileParams p) {
  __shared__ uint4 shared[2 * Tile<F, Tokens>::kStage];
  const int rows = row_count(*p.linear.step, p.linear.rows);
  if (static_cast<int>(blockIdx.x) * Tokens >= rows) return;
  const bool split = p.counters != nullptr;
  const int first = split ? static_cast<int>(blockIdx.z) : 0;
  Tile<F, Tokens>(p, shared, rows).run(first, split ? first + 1 : p.linear.segments, split);
}

template <int Tokens>
void launch(const Launch& to, const LinearParams& l) {
  const std::int64_t across = (l.weight.rows + kRows - 1) / kRows, along = (to.max_of(l.rows) + Tokens - 1) / Tokens;
  const std::int64_t tiles = across * along, most = std::int64_t{to.multiprocessors} * kSm70PartsPerProcessor;
  const bool split = to.sums != nullptr && l.weight.block == nullptr && l.segments > 1 && tiles < to.multiprocessors &&
                     tiles * l.segments <= most && most * sizeof(unsigned) <= kSm70Counters;
  const TileParams p{l, split ? reinterpret_cast<unsigned*>(to.sums) : nullptr,
                     split ? reinterpret_cast<float4*>(to.sums + kSm70Counters) : nullptr, y_in_fours(l)};
  const dim3 grid(static_cast<unsigned>(along), static_cast<unsigned>(across),
                  static_cast<unsigned>(split ? l.segments : 1));
  with_format(l.weight.format, [&](auto format) {
    sm70_tile<decltype(format)::value, Tokens><<<grid, kThreads, 0, to.stream>>>(p);
  });
}

}  // namespace

void launch_sm70_tile(const Launch& to, const LinearParams& p) {
  if (to.max_of(p.rows) <= 64 || p.weight.block != nullptr) return launch<64>(to, p);
  launch<128>(to, p);
}

std::uint64_t sm70_sums_bytes(int multiprocessors) {
  return kSm70Counters + static_cast<std::uint64_t>(multiprocessors) * kSm70PartsPerProcessor * kSm70PartBytes;
}

}  // namespace nibble::cuda
