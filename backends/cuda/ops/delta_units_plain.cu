// delta_units_plain.cu: what delta_prepare.cu and delta_pass.cu compute, without matrix units, for cards that run no code
// for sm_90a. Each fused sum is made by the exact model (core/numerics/fused_dot.h)
//   map   block = 16 columns of a value head of a range, chunks one after the other; operands pass through shared
//         memory as float32, 16 of key_dim at a time. S stays in global memory, each element one thread's
//   sums  core/numerics/delta_order.h                                      parity: mirrored
//   cost  70,000 fused sums a chunk and block at key_dim 128, half of them of keys and queries alone, which each block
//         makes again -> arithmetic bound, by far
//   needs key_dim a multiple of 16; any arch (47 KiB of shared memory), rows anywhere
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/ops/delta_rule.h"
#include "core/numerics/delta_order.h"
#include "core/numerics/fused_dot.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kChunk = 64, kColumns = 16;
constexpr int kBlock = num::kDeltaBlock, kBlocks = kChunk / kBlock, kCells = kBlock * kBlock;
constexpr int kGroup = num::kSm90Order.group, kTf32Group = num::kSm90Tf32Order.group;
constexpr int kTile = kGroup + 1, kPanel = kChunk + 1;  // odd strides: neighbours lie in different banks
static_assert(kThreads == kColumns * kGroup);           // a thread has an element of 16 rows of S

struct Shared {
  // X[i][j], j <= i, and L[i][j], j < i, transposed right of it; then A, zero above the diagonal.
  float square[kChunk][kChunk + 1];
  float m[kChunk][kChunk];  // W, then M
  union {
    float keys[kChunk][kTile];  // or queries
    float u[kColumns][kPanel];  // U, then as bf16
  };
  float s[kColumns][kTile];  // of S, as bf16, transposed
  union {
    float queries[kChunk][kTile];
    float y[kBlocks - 1][kBlock][kBlock];
    struct {
      float residual[kColumns][kPanel];  // P, then R, then d(G_last - G_j) * U as bf16
      float answer[kColumns][kPanel];    // Q
    } of;
  };
  float sums[kChunk], grown[kChunk], rest[kChunk], beta[kChunk];  // G, d(G), d(G_last - G)

  __device__ __forceinline__ float& lower(int i, int j) { return square[j][i + 1]; }
  __device__ __forceinline__ float x(int i, int j) const { return j > i ? 0.0f : square[i][j]; }
};
static_assert(sizeof(Shared) <= 48 * 1024);

__device__ __forceinline__ float as_bf16(float v) { return num::bf16_to_float(num::float_to_bf16(v)); }

// Out of line, for they take all registers.
template <int BStride = 1>
__device__ __noinline__ float add_bf16(float c, const float* a, const float* b) {
  return num::fused_dot<kGroup, num::kSm90Order.fraction_bits, 24, num::kBf16MinExponent, BStride>(a, b, c);
}
__device__ __noinline__ float add_tf32(float c, const float* a, const float* b) {
  return num::fused_dot<kTf32Group, num::kSm90Tf32Order.fraction_bits, 24, num::kBf16MinExponent>(a, b, c);
}

// f(i, j) for each of a chunk's rows and `Cols`: always by the same thread.
template <int Cols, class F>
__device__ __forceinline__ void each(F f) {
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < kChunk * Cols; n += kThreads) f(n / Cols, n % Cols);
}

struct Params {
  const StepView* steps;
  TypedRows<Bf16> qkv;
  TypedRows<float> g, beta;
  DeltaLayerView state;
  Section section;
  TypedRows<Bf16> y;
};

struct Block {
  const Params& p;
  Shared& shared;
  float* s;  // the block's first column
  int head, query, key, value;  // first columns of qkv
  int columns;
  int own_x, own_c;  // this thread's element in 16 rows of S

  __device__ __forceinline__ float* state(int x0) const {
    return s + std::int64_t{x0 + own_x} * p.state.shape.value_dim + own_c;
  }

  // Rows [row, row + rows) of the step.
  __device__ void chunk(int row, int rows) {
    gates(row, rows);
    products_of_keys(row, rows);
    __syncthreads();
    invert();
    __syncthreads();
    each<kChunk>([&](int i, int j) {
      float& a = shared.square[i][j];
      a = j > i ? 0.0f : num::delta_tf32(num::mul(a, shared.beta[j]));
    });
    products_of_state(key, row, rows, shared.of.residual);
    products_of_state(query, row, rows, shared.of.answer);
    each<kColumns>([&](int i, int c) {
      const float v = i < rows && c < columns ? widen(p.qkv.row(row + i)[value + c]) : 0.0f;
      float& r = shared.of.residual[c][i];
      r = num::delta_tf32(num::fma(-shared.grown[i], r, v));
    });
    __syncthreads();
    each<kColumns>([&](int i, int c) {
      float u = 0.0f;
#pragma unroll 1
      for (int j = 0; j < kChunk; j += kTf32Group) {
        u = add_tf32(u, &shared.square[i][j], &shared.of.residual[c][j]);
      }
      shared.u[c][i] = u;
    });
    __syncthreads();
    each<kColumns>([&](int i, int c) {
      float& u = shared.u[c][i];
      shared.of.residual[c][i] = as_bf16(num::mul(shared.rest[i], u));
      u = as_bf16(u);
    });
    __syncthreads();
    each<kColumns>([&](int i, int c) {
      if (i >= rows || c >= columns) return;
      float o = num::mul(shared.grown[i], shared.of.answer[c][i]);
#pragma unroll 1
      for (int j = 0; j < kChunk; j += kGroup) o = add_bf16(o, &shared.m[i][j], &shared.u[c][j]);
      put(p.y.row(row + i) + value - 2 * p.state.shape.key_channels() + c, o);
    });
    advance(row, rows);
    __syncthreads();
  }

  __device__ void gates(int row, int rows) {
    const int t = static_cast<int>(threadIdx.x);
    if (t < kChunk) {
      shared.sums[t] = t < rows ? p.g.row(row + t)[head] : 0.0f;
      shared.beta[t] = t < rows ? p.beta.row(row + t)[head] : 0.0f;
    }
    __syncthreads();
    if (t == 0) {
      float sum = 0.0f;
      for (int i = 0; i < kChunk; ++i) shared.sums[i] = sum = num::add(sum, shared.sums[i]);
    }
    __syncthreads();
    if (t < kChunk) {
      shared.grown[t] = num::exp(shared.sums[t]);
      shared.rest[t] = num::exp(num::sub(shared.sums[kChunk - 1], shared.sums[t]));
    }
  }

  // 16 columns of keys or queries; rows that are not the chunk's are zero.
  __device__ void load(int column, int row, int rows, float (&to)[kChunk][kTile]) {
    each<kGroup>([&](int i, int x) { to[i][x] = i < rows ? widen(p.qkv.row(row + i)[column + x]) : 0.0f; });
  }

  // L and M. Beyond the chunk's rows they are zero.
  __device__ void products_of_keys(int row, int rows) {
    each<kChunk>([&](int i, int j) {
      shared.m[i][j] = 0.0f;
      if (j < i) shared.lower(i, j) = 0.0f;
    });
    for (int x0 = 0; x0 < p.state.shape.key_dim; x0 += kGroup) {
      __syncthreads();
      load(key + x0, row, rows, shared.keys);
      load(query + x0, row, rows, shared.queries);
      __syncthreads();
      each<kChunk>([&](int i, int j) {
        if (j > i || i >= rows) return;
        shared.m[i][j] = add_bf16(shared.m[i][j], shared.queries[i], shared.keys[j]);
        if (j < i) shared.lower(i, j) = add_bf16(shared.lower(i, j), shared.keys[i], shared.keys[j]);
      });
    }
    each<kChunk>([&](int i, int j) {
      if (j > i || i >= rows) return;
      const float decay = num::exp(num::sub(shared.sums[i], shared.sums[j]));
      shared.m[i][j] = as_bf16(num::mul(shared.m[i][j], decay));
      if (j < i) shared.lower(i, j) = num::mul(num::mul(shared.beta[i], shared.lower(i, j)), decay);
    });
  }

  // L to X.
  __device__ void invert() {
    const int t = static_cast<int>(threadIdx.x);
    if (t < kChunk) {
      const int first = t / kBlock * kBlock;
      shared.square[t][t] = 1.0f;
      for (int i = t + 1; i < first + kBlock; ++i) {
        float sum = 0.0f;
        for (int m = first; m < i; ++m) sum = num::fma(shared.lower(i, m), shared.x(m, t), sum);
        shared.square[i][t] = -sum;
      }
    }
    for (int below = 1; below < kBlocks; ++below) {
      const int cells = (kBlocks - below) * kCells;
      __syncthreads();
      for (int n = t; n < cells; n += kThreads) {
        const int b = n / kCells, i = n % kCells / kBlock, j = n % kBlock;
        const int c = b * kBlock, r = c + below * kBlock;
        float sum = 0.0f;
        for (int m = c; m < r; ++m) sum = num::fma(shared.lower(r + i, m), shared.x(m, c + j), sum);
        shared.y[b][i][j] = sum;
      }
      __syncthreads();
      for (int n = t; n < cells; n += kThreads) {
        const int b = n / kCells, i = n % kCells / kBlock, j = n % kBlock;
        const int c = b * kBlock, r = c + below * kBlock;
        float sum = 0.0f;
        for (int m = 0; m < kBlock; ++m) sum = num::fma(shared.x(r + i, r + m), shared.y[b][m][j], sum);
        shared.square[r + i][c + j] = -sum;
      }
    }
  }

  // Keys or queries, `from` their first column, times S.
  __device__ void products_of_state(int from, int row, int rows, float (&to)[kColumns][kPanel]) {
    each<kColumns>([&](int i, int c) { to[c][i] = 0.0f; });
    for (int x0 = 0; x0 < p.state.shape.key_dim; x0 += kGroup) {
      __syncthreads();
      load(from + x0, row, rows, shared.keys);
      shared.s[own_c][own_x] = own_c < columns ? as_bf16(*state(x0)) : 0.0f;
      __syncthreads();
      each<kColumns>([&](int i, int c) { to[c][i] = add_bf16(to[c][i], shared.keys[i], shared.s[c]); });
    }
  }

  // S with the chunk in it.
  __device__ void advance(int row, int rows) {
    for (int x0 = 0; x0 < p.state.shape.key_dim; x0 += kGroup) {
      __syncthreads();
      load(key + x0, row, rows, shared.keys);
      __syncthreads();
      if (own_c >= columns) continue;
      float sum = num::mul(shared.grown[kChunk - 1], *state(x0));
#pragma unroll 1
      for (int j = 0; j < kChunk; j += kGroup) {
        sum = add_bf16<kTile>(sum, &shared.of.residual[own_c][j], &shared.keys[j][own_x]);
      }
      *state(x0) = sum;
    }
  }
};

__global__ void __launch_bounds__(kThreads) units_plain(const __grid_constant__ Params p) {
  __shared__ Shared shared;
  const RangeView* range = section_range(*p.steps, p.section, static_cast<int>(blockIdx.z));
  if (range == nullptr) return;
  const RangeView r = *range;
  const DeltaShape& d = p.state.shape;
  const int t = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kColumns, query = key_head_of(d, head) * d.key_dim;
  const int keys = static_cast<int>(d.key_channels());
  Block b{p, shared, state_of(p.state, r.slot, head) + first, head, query, keys + query,
          2 * keys + head * d.value_dim + first, min(kColumns, d.value_dim - first), t / kColumns, t % kColumns};
  if (r.keep > 0 && b.own_c < b.columns) {
    const RecordsView old = records_of(p.state, r.slot, r.half, head);
    for (int x0 = 0; x0 < d.key_dim; x0 += kGroup) {
      float* const at = b.state(x0);
      *at = fold(old, r.keep, x0 + b.own_x, first + b.own_c, *at);
    }
  }
  for (int row = 0; row < r.rows;) {
    const int room = kChunk - static_cast<int>((r.position + row) % kChunk);
    const int rows = min(room, r.rows - row);
    b.chunk(r.first_row + row, rows);
    row += rows;
  }
}

}  // namespace

void delta_units_plain(const Launch& to, const DeltaRuleArgs& a) {
  const DeltaShape& d = a.state.shape;
  if (!num::delta_on_units(d) || a.qkv.dtype != DType::bf16 || a.y.dtype != DType::bf16) {
    throw Error(ErrorCode::internal,
                "[cuda] delta rule, fused sums in software: expected key_dim 32 or 128, values in eights, and rows of "
                "bf16");
  }
  if (to.max_ranges <= 0 || to.max_rows <= 0) return;
  const dim3 grid(static_cast<unsigned>((d.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(d.value_heads), static_cast<unsigned>(to.max_ranges));
  units_plain<<<grid, kThreads, 0, to.stream>>>({to.step, typed<Bf16>(a.qkv), typed<float>(a.g), typed<float>(a.beta),
                                                 a.state, a.section, typed<Bf16>(a.y)});
}

}  // namespace nibble::cuda
