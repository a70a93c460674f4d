// linear_tile.cu: y = x w^T for more than eight rows
//   map    block = 64 weight rows x Tokens rows of x; 4 warps of 16 weight rows (the matrix unit's M)
//   loop   64 columns a turn: x goes through shared memory, the next turn's loads are issued before this
//          turn's products; weights go from global memory to fragments
//   sums   k ascending, segments in order in the same thread; the tile's size changes no bits
//   cost   weights are read once for each Tokens rows -> matrix units or their decoding from 64 rows on
#include <type_traits>

#include "backends/cuda/ops/linear_groups.cuh"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPitch = kTileCols + 8;  // bf16: rows 4 banks apart, so that fragment loads do not collide
static_assert(kPitch * 2 % 16 == 0, "rows of x are written 16 bytes at a time");

template <class U, int Tokens, class P>
__global__ __launch_bounds__(kThreads, kLeastBlocks<P, 2>) void tile_kernel(P p) {
  static_assert(Tokens % 16 == 0);
  constexpr int kColumns = Tokens / 8;                       // n8 tiles
  constexpr int kChunks = Tokens * (kTileCols / 8) / kThreads;  // of 8 columns, a thread's
  __shared__ alignas(16) std::uint16_t xs[2][Tokens * kPitch];

  std::int64_t rows, first;
  if (!rows_of_block<Tokens>(p, rows, first)) return;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) * kTileRows;

  const RowsOf<P, kChunks> from(p, [&](int i) { return first + (thread + i * kThreads) / 8; }, rows);
  uint4 staged[kChunks];
  const auto fetch = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = thread + i * kThreads;
      const std::int64_t row = first + chunk / 8;
      const std::int64_t k = static_cast<std::int64_t>(tile) * kTileCols + chunk % 8 * 8;
      staged[i] = row < rows ? operands8(p, from(row, i), k) : make_uint4(0, 0, 0, 0);
    }
  };
  const auto keep = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = thread + i * kThreads;
      *reinterpret_cast<uint4*>(&xs[tile & 1][chunk / 8 * kPitch + chunk % 8 * 8]) = staged[i];
    }
  };
  const std::int64_t unit0 = static_cast<std::int64_t>(blockIdx.x) * p.k_tiles * 4 + warp;

  float sum[kColumns][4] = {}, total[kColumns][4] = {};
  U unit;
  unit.load(p.weight, unit0, lane);
  fetch(0);
  keep(0);
  __syncthreads();
  int segment = 0, left = p.segment_tiles;
  for (int tile = 0; tile < p.k_tiles; ++tile) {
    const bool more = tile + 1 < p.k_tiles;
    U next = unit;
    if (more) {
      next.load(p.weight, unit0 + static_cast<std::int64_t>(tile + 1) * 4, lane);
      fetch(tile + 1);
    }
    const std::uint16_t* x = xs[tile & 1] + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      std::uint32_t a[4];
      unit.fragment(p.weight, s, a);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const std::uint16_t* b = x + c * 8 * kPitch + s * 16;
        mma_m16n8k16_bf16<kMmaPath>(sum[c], a, *reinterpret_cast<const std::uint32_t*>(b),
                                    *reinterpret_cast<const std::uint32_t*>(b + 8));
      }
    }
    if (--left == 0 || !more) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int64_t token = first + c * 8 + result_col(lane, i);
          total[c][i] = add_row_segment(p, token, token < rows, n0, segment, sum[c][i], total[c][i]);
          sum[c][i] = 0.0f;
        }
      }
      ++segment;
      left = p.segment_tiles;
    }
    unit = next;
    if (more) keep(tile + 1);  // the other half: read last before the barrier of the turn before
    __syncthreads();
  }

#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (finish_gate_up(p, first + c * 8, rows, n0 + warp * kUnitRows, lane, total[c])) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t token = first + c * 8 + result_col(lane, i);
      const std::int64_t n = n0 + warp * kUnitRows + result_row(lane, i);
      if (token < rows && n < p.weight.rows) finish_row(p, token, n, total[c][i]);
    }
  }
}

template <int Tokens, class P>
void launch(const Launch& to, const P& p, std::int64_t tiles) {
  const dim3 grid(static_cast<unsigned>(p.weight.padded_rows / kTileRows), static_cast<unsigned>(tiles));
  with_unit(p.weight, [&](auto unit) {
    tile_kernel<typename decltype(unit)::type, Tokens><<<grid, kThreads, 0, to.stream>>>(p);
  });
}
template <int Tokens>
void launch_rows(const Launch& to, const LinearParams& p) {
  const std::int64_t tiles = (to.max_of(p.rows) + Tokens - 1) / Tokens;
  if (p.weight.gate_up) return launch<Tokens>(to, GateUpParams{p}, tiles);
  launch<Tokens>(to, p, tiles);
}
template <int Tokens>
void launch_rows(const Launch& to, const GroupedParams& p) {
  launch_groups<Tokens>(to, p, launch<Tokens, GroupedParams>);
}

}  // namespace

void launch_tile(const Launch& to, const LinearParams& p) {
  const std::int64_t rows = to.max_of(p.rows);
  if (rows <= 16) return launch_rows<16>(to, p);
  if (rows <= 32) return launch_rows<32>(to, p);
  launch_rows<64>(to, p);
}
// An expert has max_rows of the rows at most; a tile is made for what it has where tokens spread evenly.
void launch_tile(const Launch& to, const GroupedParams& p) {
  const std::int64_t even = to.max_of(Rows::routed) / p.experts;
  if (to.max_rows <= 16 || even <= 8) return launch_rows<16>(to, p);
  if (to.max_rows <= 32 || even <= 24) return launch_rows<32>(to, p);
  launch_rows<64>(to, p);
}

}  // namespace nibble::cuda
