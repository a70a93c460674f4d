// attention_units.cu: a prompt's attention on matrix units, order of core/numerics/attention_order.h
//   q, y [T, heads * Dim] bf16, pages [pages, kv_heads, 64, Dim]: bf16, or codes of fp8 (core/numerics/kv_codes.h), which
//          are widened on their way to shared memory, with scales
//   map    block = 64 positions on the absolute grid and some heads of one kv head; a warp has 16 of these rows of one head,
//          so that its rows end in the same tile. O and a tile's scores stay in registers, q in shared memory; tiles of keys
//          and values come by 16 bytes a thread, with Stages = 2 those of the next tile while this one is computed
//   rooms  bytes of shared memory: what a card has of it decides how many warps and stages. The same bits
//   sums   core/numerics/attention_order.h                                 parity: mirrored
//   cost   4 * Dim products a query and key, an exp each -> matrix unit and shared memory, which each warp reads whole
//   needs  mma.m16n8k16 as measured (mma.cuh), else it is emulated; pages whose rows behind a sequence may hold anything
#include "backends/cuda/ops/attention_units.h"

#include "backends/cuda/device/gated.cuh"
#include "backends/cuda/device/matrices.cuh"
#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/weight_decode.cuh"
#include "backends/cuda/ops/attention_pieces.cuh"
#include "backends/cuda/ops/attention_sm70.h"
#include "backends/cuda/ops/linear_parts.cuh"
#include "backends/cuda/shared_memory.h"
#include "core/numerics/attention_order.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr int kTile = num::kAttentionTile, kRows = 16, kGroups = kTile / kRows;  // of a warp; groups of rows in 64 positions
static_assert(kTile == kDeltaChunk);

// Stages: tiles of keys and of values at a time; 0: they share one place.
template <int Dim, int Warps, int Stages, bool Codes>
struct Room {
  static constexpr int kThreads = Warps * 32, kRowBytes = Dim * 2, kChunks = Dim / 8, kTileBytes = kTile * kRowBytes;
  static constexpr int kQueryBytes = Warps * kRows * kRowBytes, kTiles = Stages == 0 ? 1 : 2 * Stages;
  static constexpr int kScales = kQueryBytes + kTiles * kTileBytes;  // of codes: of two tiles, keys' and values'
  static constexpr int kBytes = kScales + (Codes ? 2 * 2 * kTile * 4 : 0);
  // 16 bytes of a row: rows that one instruction reads lie in different banks.
  __device__ __forceinline__ static std::uint32_t at(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kRowBytes + (chunk ^ (row & 7)) * 16);
  }
  __device__ __forceinline__ static std::uint32_t keys(std::uint32_t start, int tile) {
    return start + kQueryBytes + static_cast<std::uint32_t>(Stages == 2 ? tile % 2 : 0) * kTileBytes;
  }
  __device__ __forceinline__ static std::uint32_t values(std::uint32_t start, int tile) {
    return keys(start, tile) + static_cast<std::uint32_t>(Stages) * kTileBytes;
  }
};

struct Params {
  const StepView* steps;
  TypedRows<Bf16> q, y;
  float scale;
  AttentionShape shape;
  const std::byte *keys, *values;
  const float *key_scales, *value_scales;  // of codes
  int parts;  // blocks for the heads of a kv head
  HeadGates<Bf16> gates;
};

// scales: of a tile's keys, then of its values, where they are codes.
template <int Dim, bool Codes>
struct Rows16 {
  float o[Dim / 8][4], m[2], l[2];  // rows g and g + 8

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < Dim / 8; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
    m[0] = m[1] = -__builtin_inff();
    l[0] = l[1] = 0.0f;
  }

  // Scores of a tile to weights, as the left operand of its values; m, l and O to the new maximum. Keys of the tile that
  // rows g and g + 8 see: seen[.].
  __device__ __forceinline__ void weigh(float (&x)[kTile / 8][4], float scale, const float* scales, const int (&seen)[2],
                                        int p, std::uint32_t (&weights)[kTile / 16][4]) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -__builtin_inff();
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& v = x[n][2 * h + i];
          if constexpr (Codes) v = num::mul(v, scales[8 * n + 2 * p + i]);
          v = 8 * n + 2 * p + i < seen[h] ? num::mul(v, scale) : -__builtin_inff();
          most = fmaxf(most, v);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      most = fmaxf(most, m[h]);
      factor[h] = most == m[h] ? 1.0f : num::exp(num::sub(m[h], most));
      m[h] = most;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& v = x[n][2 * h + i];
          const float w = v == most ? 1.0f : num::exp(num::sub(v, most));
          v = 8 * n + 2 * p + i < seen[h] ? w : 0.0f;
          sum = num::add(sum, v);
          if constexpr (Codes) v = 8 * n + 2 * p + i < seen[h] ? num::mul(v, scales[kTile + 8 * n + 2 * p + i]) : 0.0f;
        }
      }
      sum = num::add(sum, __shfl_xor_sync(~0u, sum, 1));
      sum = num::add(sum, __shfl_xor_sync(~0u, sum, 2));
      l[h] = num::fma(l[h], factor[h], sum);
    }
#pragma unroll
    for (int s = 0; s < kTile / 16; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // (g; k 2p ..), (g + 8; the same), (g; k 2p + 8 ..), (g + 8; the same)
        weights[s][i] = bf16_pair(x[2 * s + i / 2][i % 2 * 2], x[2 * s + i / 2][i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < Dim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = num::mul(factor[i / 2], o[n][i]);
    }
  }
};

template <int Dim, int Warps, int Stages, bool Codes>
__global__ void __launch_bounds__(Warps * 32, 1) attend_units(const Params a) {
  // Forms that launch() never takes there: cards of this code have 99 KiB for a block, and 227.
#if defined(__CUDA_ARCH_FEAT_SM120_ALL)
  if constexpr (Room<Dim, Warps, Stages, Codes>::kBytes > 99 * 1024) return;
#elif defined(NIBBLE_SM90A)
  if constexpr (Stages < 2) return;
#endif
  using R = Room<Dim, Warps, Stages, Codes>;
  extern __shared__ __align__(128) std::byte memory[];
  const std::uint32_t start = shared_address(memory);
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32, g = lane / 4, p = lane % 4;
  const Piece piece = piece_of(*a.steps, static_cast<int>(blockIdx.x) / a.parts);
  if (piece.range == nullptr) return;
  const RangeView& r = *piece.range;
  const int kv_head = static_cast<int>(blockIdx.y), group = a.shape.heads / a.shape.kv_heads;
  const int unit = static_cast<int>(blockIdx.x) % a.parts * Warps + warp;
  const std::int64_t end = r.position + r.rows, from = piece.position + unit % kGroups * kRows;  // of the warp's rows
  const int head = kv_head * group + unit / kGroups;
  const bool works = unit / kGroups < group && from < end && from + kRows > r.position;
  const int tiles = static_cast<int>(piece.position / kTile) + 1;
  const std::int32_t* const pages = a.steps->pages + r.first_page;

  float* const scales = reinterpret_cast<float*>(memory + R::kScales);
  const auto bring = [&](const std::byte* pool, int tile, std::uint32_t to) {
    if (Codes && tile < tiles) {
      const std::int64_t number = std::int64_t{pages[tile]} * a.shape.kv_heads + kv_head;
      const std::byte* const page = pool + number * (kTile * Dim);
      const auto there = static_cast<int>(min(end - std::int64_t{tile} * kTile, std::int64_t{kTile}));
#pragma unroll 4
      for (int i = t; i < kTile * R::kChunks; i += R::kThreads) {
        const int row = i / R::kChunks, chunk = i % R::kChunks;
        const uint2 v = row < there ? *reinterpret_cast<const uint2*>(page + row * Dim + chunk * 8) : make_uint2(0, 0);
        *reinterpret_cast<uint4*>(memory + (to - start) + R::at(row, chunk)) =
            make_uint4(e4m3_adjacent(v.x), e4m3_adjacent(v.x >> 16), e4m3_adjacent(v.y), e4m3_adjacent(v.y >> 16));
      }
      if (pool == a.keys) {  // both: weights need those of the values
        for (int i = t; i < 2 * kTile; i += R::kThreads) {
          scales[tile % 2 * 2 * kTile + i] = (i < kTile ? a.key_scales : a.value_scales)[number * kTile + i % kTile];
        }
      }
    }
    if (!Codes && tile < tiles) {
      const auto* const page =
          reinterpret_cast<const Bf16*>(pool) + (std::int64_t{pages[tile]} * a.shape.kv_heads + kv_head) * (kTile * Dim);
      const auto there = static_cast<int>(min(end - std::int64_t{tile} * kTile, std::int64_t{kTile}));
#pragma unroll 4
      for (int i = t; i < kTile * R::kChunks; i += R::kThreads) {
        const int row = i / R::kChunks, chunk = i % R::kChunks;
        bring_16(to + R::at(row, chunk), page + row * Dim + chunk * 8, row < there);
      }
    }
    copies_commit();
  };
  const std::uint32_t queries = start + static_cast<std::uint32_t>(warp * kRows * R::kRowBytes);
#pragma unroll 4
  for (int i = lane; i < kRows * R::kChunks; i += 32) {
    const int row = i / R::kChunks, chunk = i % R::kChunks;
    const std::int64_t position = from + row;
    const bool there = works && position >= r.position && position < end;
    const Bf16* const q = a.q.row(there ? r.first_row + (position - r.position) : r.first_row) + std::int64_t{works ? head : 0} * Dim;
    bring_16(queries + R::at(row, chunk), q + chunk * 8, there);
  }
  bring(a.keys, 0, R::keys(start, 0));  // the queries are of this group
  if constexpr (Stages > 0) bring(a.values, 0, R::values(start, 0));

  Rows16<Dim, Codes> rows;
  rows.clear();
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    if constexpr (Stages == 2) {
      bring(a.keys, tile + 1, R::keys(start, tile + 1));
      bring(a.values, tile + 1, R::values(start, tile + 1));
      copies_wait<2>();
    } else {
      copies_wait<Stages>();
    }
    __syncthreads();
    std::uint32_t weights[kTile / 16][4];
    if (works) {
      const std::uint32_t keys = R::keys(start, tile);
      float x[kTile / 8][4] = {};
#pragma unroll 4
      for (int k = 0; k < Dim / 16; ++k) {
        const uint4 q = fragments_at<false>(queries + R::at(lane % 16, 2 * k + lane / 16));
        const std::uint32_t left[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int i = 0; i < kTile / 16; ++i) {
          const uint4 b = fragments_at<false>(keys + R::at(i * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
          mma_m16n8k16_bf16<kMmaPath>(x[2 * i], left, b.x, b.y);
          mma_m16n8k16_bf16<kMmaPath>(x[2 * i + 1], left, b.z, b.w);
        }
      }
      const auto seen = static_cast<int>(min(from + g - std::int64_t{tile} * kTile, std::int64_t{1 << 20})) + 1;
      const int both[2] = {seen, seen + 8};
      rows.weigh(x, a.scale, scales + tile % 2 * 2 * kTile, both, p, weights);
    }
    if constexpr (Stages < 2) {
      __syncthreads();  // keys are read
      if constexpr (Stages == 0) bring(a.values, tile, R::values(start, tile));
      if constexpr (Stages == 1) bring(a.keys, tile + 1, R::keys(start, tile + 1));
      copies_wait<Stages>();
      __syncthreads();
    }
    if (works) {
      const std::uint32_t values = R::values(start, tile);
#pragma unroll
      for (int s = 0; s < kTile / 16; ++s) {
#pragma unroll
        for (int n = 0; n < Dim / 16; ++n) {
          const uint4 b = fragments_at<true>(values + R::at(s * 16 + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16));
          mma_m16n8k16_bf16<kMmaPath>(rows.o[2 * n], weights[s], b.x, b.y);
          mma_m16n8k16_bf16<kMmaPath>(rows.o[2 * n + 1], weights[s], b.z, b.w);
        }
      }
    }
    __syncthreads();  // the tile is read
    if constexpr (Stages == 0) bring(a.keys, tile + 1, R::keys(start, tile + 1));
    if constexpr (Stages == 1) bring(a.values, tile + 1, R::values(start, tile + 1));
  }
  if (!works) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::int64_t position = from + g + 8 * h;
    if (position < r.position || position >= end) continue;
    const float by = num::div(1.0f, rows.l[h]);
    auto* const y = reinterpret_cast<std::uint32_t*>(a.y.row(r.first_row + (position - r.position)) + std::int64_t{head} * Dim) + p;
    if (a.gates.data == nullptr) {
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) y[4 * n] = bf16_pair(num::mul(rows.o[n][2 * h], by), num::mul(rows.o[n][2 * h + 1], by));
    } else {
      const auto* const gates = reinterpret_cast<const std::uint32_t*>(a.gates.of(r.first_row + (position - r.position), head)) + p;
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n) {
        std::uint32_t gate;  // read where it stands: registers are few
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(gate) : "l"(gates + 4 * n) : "memory");
        y[4 * n] = gated_pair(num::mul(rows.o[n][2 * h], by), num::mul(rows.o[n][2 * h + 1], by), gate);
      }
    }
  }
}

template <int Dim, int Warps, int Stages, bool Codes>
bool launch_as(const Launch& to, Params p, std::size_t most_bytes) {
  using R = Room<Dim, Warps, Stages, Codes>;
  if (R::kBytes > most_bytes) return false;
  p.parts = (p.shape.heads / p.shape.kv_heads * kGroups + Warps - 1) / Warps;
  const dim3 grid(static_cast<unsigned>(most_records(to.max_rows, to.max_ranges) * p.parts), static_cast<unsigned>(p.shape.kv_heads));
  cudaFuncSetAttribute(attend_units<Dim, Warps, Stages, Codes>, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kBytes);
  attend_units<Dim, Warps, Stages, Codes><<<grid, R::kThreads, R::kBytes, to.stream>>>(p);
  return true;
}
template <int Dim, int Warps, int Stages>
bool launch(const Launch& to, const Params& p, std::size_t most_bytes) {
  return p.key_scales != nullptr ? launch_as<Dim, Warps, Stages, true>(to, p, most_bytes)
                                 : launch_as<Dim, Warps, Stages, false>(to, p, most_bytes);
}

}  // namespace

bool attention_on_units(ArchPath path, const AttentionShape& shape, Section section) {
  return (path != ArchPath::sm70 || section == Section::prefill) && num::attention_on_units(shape);
}

std::string attention_kernel(const Launch& to, const AttentionArgs& a) {
  if (!a.units) return "generic";
  if (a.path == ArchPath::sm70) return attention_sm70_kernel();
  const std::string mma = has_m16n8k16() ? "mma.m16n8k16" : "mma.m16n8k16, emulated";
  if (a.section != Section::prefill) return "splits of 512: " + mma;
  const char* const why = refuse_attention_wgmma(to, a);
  if (why == nullptr) return "prompts: wgmma.m64k16";
  return "prompts: " + mma + (a.path == ArchPath::sm90 ? std::string(" (no wgmma: ") + why + ")" : "");
}

void check_on_units(const AttentionArgs& a) {
  const AttentionShape& s = a.state.shape;
  const auto fits = [](const View& v, int bytes) {
    return v.dtype == DType::bf16 && v.stride * 2 % bytes == 0 && reinterpret_cast<std::uintptr_t>(v.data) % static_cast<unsigned>(bytes) == 0;
  };
  const bool fits_gate = a.gate.data == nullptr || (fits(a.gate, 4) && a.gate_head_stride % 2 == 0);
  if (!num::attention_on_units(s) || !fits(a.q, 16) || !fits(a.y, 4) || !fits_gate || a.state.operand != DType::bf16) {
    throw Error(ErrorCode::internal, "[cuda] attention on matrix units: expected heads of 64, 128 or 256, and rows of bf16 at "
                                     "multiples of 16 bytes");
  }
}

void attention_units(const Launch& to, const AttentionArgs& a) {
  const AttentionShape& s = a.state.shape;
  if (to.max_rows <= 0 || to.max_ranges <= 0) return;
  if (a.path == ArchPath::sm70) return attention_sm70(to, a);
  check_on_units(a);
  if (refuse_attention_wgmma(to, a) == nullptr) return attention_wgmma(to, a);
  const Params p{to.step, typed<Bf16>(a.q), typed<Bf16>(a.y), a.scale, s, a.state.k, a.state.v, a.state.k_scales,
                 a.state.v_scales, 1, {reinterpret_cast<const Bf16*>(a.gate.data), a.gate.stride, a.gate_head_stride}};
  const std::size_t most = most_shared();
  const bool launched = s.head_dim == 64    ? launch<64, 8, 2>(to, p, most)
                        : s.head_dim == 128 ? launch<128, 8, 2>(to, p, most) || launch<128, 4, 1>(to, p, most)
                                            : launch<256, 8, 2>(to, p, most) || launch<256, 4, 1>(to, p, most) || launch<256, 2, 0>(to, p, most);
  if (!launched) throw Error(ErrorCode::internal, "[cuda] attention on matrix units: expected 49 KiB of shared memory, found less");
}

}  // namespace nibble::cuda
