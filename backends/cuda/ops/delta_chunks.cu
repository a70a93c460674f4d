// delta_chunks.cu: the gated delta rule for prefill rows, in chunks on the absolute 64-grid
//   qkv [T, C] operand type, g, beta [T, value_heads] f32, S [slots, value_heads, key_dim, value_dim]
//   map   block = 32 columns of one head of one range, chunks one after the other; 8 warps: warp w has
//         rows 8w .. 8w+7 of the chunk, lane = column. K K^T, Q K^T, K S and Q S come from one pass
//         over key_dim in tiles of 32; S stays in global memory (its slice fits L1)
//   sums  every one is a chain over k or j in one thread's register        parity: ordered
//   solve warp w solves its 8 rows, then the later warps take those 8 u: 8 barriers, not 64
//   cost  about (2 * 64 + 4 * 32) * key_dim fma a row and block -> arithmetic bound; products of
//         keys are computed again for each 32 columns
//   needs nothing; any arch (39 KiB of shared memory)
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/ops/delta_rule.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 64;
constexpr int kColumns = 32;                      // of S in a block: a lane each
constexpr int kDepth = 32;                        // of a tile over key_dim
constexpr int kWarps = kThreads / kColumns;
constexpr int kRows = kChunk / kWarps;            // of a chunk in a warp
constexpr int kDepthRows = kDepth / kWarps;       // of S in a warp, when it is advanced
static_assert(kRows == 8 && kDepthRows == 4);     // read as float4

struct __align__(16) Shared {
  union {
    struct {  // over key_dim: columns of the tile lie together, padded to whole float4
      float k[kDepth][kChunk + 4], q[kDepth][kChunk + 4], s[kDepth][kColumns];
    } in;
    struct {
      float u[kChunk][kColumns];
      float decayed[kChunk][kDepth + 4];  // exp(G_last - G_j) * k_j[k]
    } out;
  };
  // attention[i][j], j <= i, and L[i][j], j < i, share a square: L stands transposed right of it.
  float square[kChunk][kChunk + 1];
  float sums[kChunk], grown[kChunk], rest[kChunk], beta[kChunk];

  __device__ __forceinline__ float& attention(int i, int j) { return square[i][j]; }
  __device__ __forceinline__ float& lower(int i, int j) { return square[j][i + 1]; }
};
static_assert(sizeof(Shared) <= 48 * 1024);

__device__ __forceinline__ void read4(const float* from, float* to) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

template <class T>
struct Block {
  Shared& shared;
  const T *q, *k, *v;  // the range's first row: query and key head; the block's first column
  const float *g, *beta;
  T* y;
  float* s;  // the block's first column
  std::int64_t qkv_stride, g_stride, beta_stride, y_stride, value_dim;
  int key_dim, columns;
  int lane, warp;

  // G, exp(G), exp(G_last - G).
  __device__ void gates(int row, int rows) {
    const int t = static_cast<int>(threadIdx.x);
    if (t < rows) {
      shared.sums[t] = g[(row + t) * g_stride];
      shared.beta[t] = beta[(row + t) * beta_stride];
    }
    __syncthreads();
    if (t == 0) {
      float sum = 0.0f;
      for (int i = 0; i < rows; ++i) {
        sum = num::add(sum, shared.sums[i]);
        shared.sums[i] = sum;
      }
    }
    __syncthreads();
    if (t < rows) {
      shared.grown[t] = num::exp(shared.sums[t]);
      shared.rest[t] = num::exp(num::sub(shared.sums[rows - 1], shared.sums[t]));
    }
  }

  __device__ void load_tile(int row, int rows, int k0) {
    const bool inside = k0 + lane < key_dim;
    for (int i = warp; i < kChunk; i += kWarps) {
      const bool there = inside && i < rows;
      const std::int64_t at = (row + i) * qkv_stride + k0 + lane;
      shared.in.k[lane][i] = there ? widen(k[at]) : 0.0f;
      shared.in.q[lane][i] = there ? widen(q[at]) : 0.0f;
    }
    for (int i = warp; i < kDepth; i += kWarps) {
      shared.in.s[i][lane] =
          k0 + i < key_dim && lane < columns ? s[(k0 + i) * value_dim + lane] : 0.0f;
    }
  }

  // One chunk: rows [row, row + rows) of the range.
  __device__ void chunk(int row, int rows) {
    const int i0 = warp * kRows;
    const bool busy = i0 < rows, second = i0 >= kChunk / 2;  // keys 32 .. 63 are below the diagonal
    gates(row, rows);

    float kk[2][kRows] = {}, qk[2][kRows] = {};  // with key `lane` and key `lane + 32`
    float past[kRows] = {}, answer[kRows] = {};  // k S and q S
    for (int k0 = 0; k0 < key_dim; k0 += kDepth) {
      __syncthreads();
      load_tile(row, rows, k0);
      __syncthreads();
      const int depth = key_dim - k0 < kDepth ? key_dim - k0 : kDepth;
      if (!busy) continue;
#pragma unroll 2
      for (int x = 0; x < depth; ++x) {
        float key[kRows], query[kRows];
        read4(&shared.in.k[x][i0], key);
        read4(&shared.in.k[x][i0 + 4], key + 4);
        read4(&shared.in.q[x][i0], query);
        read4(&shared.in.q[x][i0 + 4], query + 4);
        const float left = shared.in.k[x][lane], state = shared.in.s[x][lane];
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          kk[0][m] = num::fma(key[m], left, kk[0][m]);
          qk[0][m] = num::fma(query[m], left, qk[0][m]);
          past[m] = num::fma(key[m], state, past[m]);
          answer[m] = num::fma(query[m], state, answer[m]);
        }
        if (second) {
          const float right = shared.in.k[x][lane + kChunk / 2];
#pragma unroll
          for (int m = 0; m < kRows; ++m) {
            kk[1][m] = num::fma(key[m], right, kk[1][m]);
            qk[1][m] = num::fma(query[m], right, qk[1][m]);
          }
        }
      }
    }

#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int i = i0 + m;
      if (i >= rows) break;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int j = lane + n * (kChunk / 2);
        if (j > i) continue;
        const float decay = num::exp(num::sub(shared.sums[i], shared.sums[j]));
        shared.attention(i, j) = num::mul(qk[n][m], decay);
        if (j < i) shared.lower(i, j) = num::mul(num::mul(shared.beta[i], kk[n][m]), decay);
      }
      const float value = lane < columns ? widen(v[(row + i) * qkv_stride + lane]) : 0.0f;
      past[m] = num::mul(shared.beta[i], num::sub(value, num::mul(shared.grown[i], past[m])));
    }
    __syncthreads();

    solve(rows, past);
    output(row, rows, answer);
    advance(row, rows);
    __syncthreads();  // S is read in the next chunk by other threads
  }

  // u_i = R_i - chain over j < i of L_ij u_j.
  __device__ void solve(int rows, const float (&r)[kRows]) {
    const int i0 = warp * kRows;
    float taken[kRows] = {};
    for (int j0 = 0; j0 < rows; j0 += kRows) {
      if (j0 == i0) {
#pragma unroll
        for (int m = 0; m < kRows; ++m) {
          if (i0 + m >= rows) break;
          const float u = num::sub(r[m], taken[m]);
          shared.out.u[i0 + m][lane] = u;
#pragma unroll
          for (int n = m + 1; n < kRows; ++n) {
            if (i0 + n < rows) taken[n] = num::fma(shared.lower(i0 + n, i0 + m), u, taken[n]);
          }
        }
      }
      __syncthreads();
      if (j0 < i0 && i0 < rows) {
        for (int j = j0; j < j0 + kRows; ++j) {
          const float u = shared.out.u[j][lane];
#pragma unroll
          for (int m = 0; m < kRows; ++m) {
            if (i0 + m < rows) taken[m] = num::fma(shared.lower(i0 + m, j), u, taken[m]);
          }
        }
      }
    }
  }

  __device__ void output(int row, int rows, const float (&answer)[kRows]) {
    const int i0 = warp * kRows;
    float sum[kRows] = {};
    if (i0 >= rows) return;
    for (int j = 0; j < i0; ++j) {
      const float u = shared.out.u[j][lane];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        if (i0 + m < rows) sum[m] = num::fma(shared.attention(i0 + m, j), u, sum[m]);
      }
    }
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const int i = i0 + m;
      if (i >= rows) break;
#pragma unroll
      for (int j = 0; j <= m; ++j) {
        sum[m] = num::fma(shared.attention(i, i0 + j), shared.out.u[i0 + j][lane], sum[m]);
      }
      if (lane < columns) {
        put(y + (row + i) * y_stride + lane,
            num::add(num::mul(shared.grown[i], answer[m]), sum[m]));
      }
    }
  }

  __device__ void advance(int row, int rows) {
    const float last = num::exp(shared.sums[rows - 1]);
    for (int k0 = 0; k0 < key_dim; k0 += kDepth) {
      if (k0 > 0) __syncthreads();
      for (int j = warp; j < rows; j += kWarps) {
        const float key = k0 + lane < key_dim ? widen(k[(row + j) * qkv_stride + k0 + lane]) : 0.0f;
        shared.out.decayed[j][lane] = num::mul(shared.rest[j], key);
      }
      __syncthreads();
      float sum[kDepthRows] = {};
#pragma unroll 4
      for (int j = 0; j < rows; ++j) {
        const float u = shared.out.u[j][lane];
        float key[kDepthRows];
        read4(&shared.out.decayed[j][warp * kDepthRows], key);
#pragma unroll
        for (int m = 0; m < kDepthRows; ++m) sum[m] = num::fma(key[m], u, sum[m]);
      }
#pragma unroll
      for (int m = 0; m < kDepthRows; ++m) {
        const int at = k0 + warp * kDepthRows + m;
        if (at < key_dim && lane < columns) {
          float* x = s + at * value_dim + lane;
          *x = num::add(num::mul(last, *x), sum[m]);
        }
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    chunks(const StepView* steps, TypedRows<T> qkv, TypedRows<float> g, TypedRows<float> beta,
           DeltaLayerView state, Section section, TypedRows<T> y) {
  __shared__ Shared shared;
  const RangeView* range = section_range(*steps, section, static_cast<int>(blockIdx.z));
  if (range == nullptr) return;
  const RangeView r = *range;
  const DeltaShape& d = state.shape;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int warp = static_cast<int>(threadIdx.x) / kColumns;
  const T* q = qkv.row(r.first_row) + std::int64_t{key_head_of(d, head)} * d.key_dim;
  const std::int64_t value = std::int64_t{head} * d.value_dim + first;
  Block<T> b{shared,
             q,
             q + d.key_channels(),
             qkv.row(r.first_row) + 2 * d.key_channels() + value,
             g.row(r.first_row) + head,
             beta.row(r.first_row) + head,
             y.row(r.first_row) + value,
             state_of(state, r.slot, head) + first,
             qkv.stride,
             g.stride,
             beta.stride,
             y.stride,
             d.value_dim,
             d.key_dim,
             d.value_dim - first < kColumns ? d.value_dim - first : kColumns,
             lane,
             warp};

  if (r.keep > 0) {
    const RecordsView old = records_of(state, r.slot, r.half, head);
    if (lane < b.columns) {
      for (int k = warp; k < d.key_dim; k += kWarps) {
        float* x = b.s + std::int64_t{k} * d.value_dim + lane;
        *x = fold(old, r.keep, k, first + lane, *x);
      }
    }
    __syncthreads();
  }
  for (int row = 0; row < r.rows;) {
    const int room = kChunk - static_cast<int>((r.position + row) % kChunk);
    const int rows = room < r.rows - row ? room : r.rows - row;
    b.chunk(row, rows);
    row += rows;
  }
}

}  // namespace

void delta_chunks(const Launch& to, const DeltaRuleArgs& a) {
  const DeltaShape& d = a.state.shape;
  if (to.max_ranges <= 0) return;
  const dim3 grid(static_cast<unsigned>((d.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(d.value_heads), static_cast<unsigned>(to.max_ranges));
  with_type(a.qkv.dtype, [&]<class T>(T*) {
    const TypedRows<T> qkv = typed<T>(a.qkv), y = typed<T>(a.y);
    const TypedRows<float> g = typed<float>(a.g), beta = typed<float>(a.beta);
    chunks<T><<<grid, kThreads, 0, to.stream>>>(to.step, qkv, g, beta, a.state, a.section, y);
  });
}

}  // namespace nibble::cuda
