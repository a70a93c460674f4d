// linear_sm70_few.cu: y = x w^T on m8n8k4 for classes of few rows
//   x [T, K] f16 with exponents, rows of whole 16 bytes, T <= 32; y [T, N] f32
//   map   a warp = 8, 16 or 32 rows of x, which all quad-pairs share in eights, by 32 rows of the weight and some of
//         its segments; block = four warps: one, two or four of them on the same rows
//   loop  a lane's weights are the fragments: no shared memory. A batch of them and the next columns of x are asked
//         for before this one is multiplied
//   sums  a segment in one accumulator; segments in order, across the warps of a block through shared memory
//                                                                                              parity: mirrored
//   cost  reads each weight once -> bandwidth bound
//   needs K % 8 == 0, FP8 codes without NaN; any arch, by emulation outside 7.0
#include <cstdint>

#include "backends/cuda/ops/linear_sm70.cuh"

namespace nibble::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kChunks = kF16UnitCols / 8;

struct FewParams {
  LinearParams linear;
  int along;   // warps of a block on the same rows of the weight
  bool fours;  // y_in_fours()
};

template <WeightFormat F, int Groups>
struct Few {
  static constexpr int kBatch = 4 / f16_parts(F);                // units, of 2 KB together
  static constexpr int kAhead = Groups == 4 ? 2 : kChunks;       // chunks of x
  static constexpr int kBlocks = Groups == 4 ? 2 : Groups == 2 ? 3 : 4;  // beside each other on a multiprocessor
  using Sums = float[Groups][8];

  const LinearParams& l;
  const uint4* x[Groups];
  int unit, rows, lane;  // of the lane's row of the weight, its first

  __device__ __forceinline__ uint4 x_at(int group, int chunk) const {
    return x_columns(x[group] + chunk, static_cast<int>(l.weight.cols) - chunk * 8);
  }
  __device__ __forceinline__ void load(Columns32<F> (&w)[kBatch], int at, int end) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) w[b].load(l.weight, unit + (at + b < end ? at + b : end - 1), lane);
  }
  __device__ __forceinline__ void accumulate(int segment, Sums& sum) const {
    constexpr int kPerTile = kTileCols / kF16UnitCols;
    const int begin = segment * l.segment_tiles * kPerTile, all = l.k_tiles * kPerTile;
    const int whole = begin + l.segment_tiles * kPerTile, end = whole < all ? whole : all;
    Columns32<F> next[kBatch];
    uint4 a[kAhead][Groups];
    load(next, begin, end);
#pragma unroll
    for (int c = 0; c < kAhead; ++c) {
#pragma unroll
      for (int g = 0; g < Groups; ++g) a[c][g] = x_at(g, begin * kChunks + c);
    }
    for (int at = begin; at < end; at += kBatch) {
      Columns32<F> now[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) now[b] = next[b];
      if (at + kBatch < end) load(next, at + kBatch, end);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (at + b >= end) break;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const uint4 w = now[b].eight(c);
#pragma unroll
          for (int g = 0; g < Groups; ++g) {
            uint4& v = a[c % kAhead][g];
            if (g == 0 || g * 8 < rows) {
              mma_m8n8k4_f16<kM8n8k4Path>(sum[g], make_uint2(v.x, v.y), make_uint2(w.x, w.y));
              mma_m8n8k4_f16<kM8n8k4Path>(sum[g], make_uint2(v.z, v.w), make_uint2(w.z, w.w));
            }
            v = x_at(g, (at + b) * kChunks + c + kAhead);
          }
        }
      }
    }
  }
};

template <WeightFormat F, int Groups>
__global__ __launch_bounds__(kThreads, Few<F, Groups>::kBlocks) void sm70_few(FewParams p) {
  __shared__ float waiting[kWarps][Groups * 8][32];
  const LinearParams& l = p.linear;
  const int rows = row_count(*l.step, l.rows);
  if (rows <= 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int units = static_cast<int>(l.weight.padded_rows / kF16UnitRows), mine = warp % p.along;
  const int own = static_cast<int>(blockIdx.x) * (kWarps / p.along) + warp / p.along;
  const int n0 = own * kF16UnitRows;
  Few<F, Groups> few{l, {}, (own < units ? own : units - 1) * static_cast<int>(l.weight.padded_cols / kF16UnitCols),
                     rows, lane};
#pragma unroll
  for (int g = 0; g < Groups; ++g) {
    const int row = g * 8 + operand_row(lane);
    few.x[g] = reinterpret_cast<const uint4*>(l.x) + (row < rows ? row : rows - 1) * (l.x_stride / 8);
  }

  const int row_of_block = n0 < l.weight.rows ? n0 : static_cast<int>(l.weight.rows) - 1;
  float total[Groups][8] = {};
  for (int first = 0; first < l.segments; first += p.along) {
    float sum[Groups][8] = {};
    if (first + mine < l.segments) few.accumulate(first + mine, sum);
    if (p.along > 1) {
#pragma unroll
      for (int i = 0; i < Groups * 8; ++i) waiting[warp][i][lane] = sum[i / 8][i % 8];
      __syncthreads();
    }
    if (mine == 0) {
      const int count = l.segments - first < p.along ? l.segments - first : p.along;
      for (int s = 0; s < count; ++s) {
#pragma unroll
        for (int i = 0; i < Groups * 8; ++i) {
          const float v = s == 0 ? sum[i / 8][i % 8] : waiting[warp + s][i][lane];
          total[i / 8][i % 8] = add_segment(l, 0, false, row_of_block, first + s, v, total[i / 8][i % 8]);
        }
      }
    }
    if (p.along > 1) __syncthreads();
  }
  if (mine != 0) return;  // whole warps
#pragma unroll
  for (int g = 0; g < Groups; ++g) {
    float4 v[2];
    exchange(lane, total[g], v);
    put_rows<false>(l, p.fours, rows, g * 8 + sum_row(lane, 0), n0 + lane / 4 % 4 * 8 + (lane & 2) * 2, true, v);
  }
}

template <int Groups>
void launch(const Launch& to, const LinearParams& l) {
  const FewParams p{l, l.segments >= 3 ? 4 : l.segments, y_in_fours(l)};
  const std::int64_t units = (l.weight.rows + kF16UnitRows - 1) / kF16UnitRows, a_block = kWarps / p.along;
  const auto blocks = static_cast<unsigned>((units + a_block - 1) / a_block);
  with_format(l.weight.format, [&](auto format) {
    sm70_few<decltype(format)::value, Groups><<<blocks, kThreads, 0, to.stream>>>(p);
  });
}

}  // namespace

void launch_sm70_few(const Launch& to, const LinearParams& p) {
  const std::int64_t rows = to.max_of(p.rows);
  if (rows <= 8) return launch<1>(to, p);
  if (rows <= 16) return launch<2>(to, p);
  launch<4>(to, p);
}

}  // namespace nibble::cuda
