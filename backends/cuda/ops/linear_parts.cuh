// linear_parts.cuh: what the kernels of Linear share: a warp's weight unit in registers, rows of x as
// bf16 whatever their format, how a segment enters the total and how a total leaves.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/device/pairs.cuh"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/weight_decode.cuh"
#include "backends/cuda/ops/linear.h"

namespace nibble::cuda {

using ActivationKind = ActivationFormat::Kind;

// A launch may multiply one x by several weights, whose tiles of 64 rows follow one another: the part of those from `tile` on.
constexpr int kMostParts = 4;
struct LinearPart {
  const std::byte* codes;
  const float* alpha;
  std::byte* y;
  std::int32_t y_stride, rows;  // of the weight
  std::int32_t tile;
  bool y_bf16;
};

struct LinearParams {
  const StepView* step;
  WeightImage weight;
  const std::byte* x;
  std::int64_t x_stride;  // elements
  const std::byte* x_scales;
  std::int64_t scale_stride;
  const std::int32_t* exponents;  // of f16 rows of x, else null
  ActivationKind kind;
  bool aligned;  // eight columns of x may be read at once
  float static_scale;
  Rows rows;
  std::byte* y;
  std::int64_t y_stride;
  bool y_bf16;
  int k_tiles, segment_tiles, segments;
  int tile;    // LinearArgs::tile
  bool unfed;  // LinearArgs::unfed
  // Of joined layers, whose padded_rows are all their own; else none: `weight` and `y` are all.
  int parts;
  LinearPart part[kMostParts];
};
__device__ __forceinline__ int part_of(const LinearParams& l, int row_tile) {
  int part = 0;
#pragma unroll
  for (int i = 1; i < kMostParts; ++i) part += i < l.parts && row_tile >= l.part[i].tile ? 1 : 0;
  return part;
}
// Where totals of the weight rows from n0 on, which one part has, go.
struct TileOut {
  const float* alpha;
  std::byte* y;
  std::int32_t y_stride, rows, n0;  // of the part; 32 bits because registers are few where it is used
  bool y_bf16;
};
__device__ __forceinline__ TileOut out_of(const LinearParams& l, std::int64_t n0) {
  const auto row = static_cast<std::int32_t>(n0);
  if (l.parts == 0) return {l.weight.alpha, l.y, static_cast<std::int32_t>(l.y_stride), static_cast<std::int32_t>(l.weight.rows), row, l.y_bf16};
  const LinearPart& p = l.part[part_of(l, row / kTileRows)];
  return {p.alpha, p.y, p.y_stride, p.rows, row - p.tile * kTileRows, p.y_bf16};
}

// The same for the experts of a mixture: rows of y are sorted places, `weight` is expert 0's.
struct GroupedParams : LinearParams {
  const std::int32_t *order, *starts;  // ExpertRoute's
  int experts, per_token;              // place i reads row order[i] / per_token of x; 0: row i
  std::int64_t expert_bytes;           // from an expert's image to the next one's
  bool by_place;                       // linear_groups.cuh
  int expert;                          // whose rows the block takes, set there
};

// Of a gate_up image: a type of its own, so that kernels without SwiGLU stay as they are.
struct GateUpParams : LinearParams {};

LinearParams linear_params(const Launch& to, const LinearArgs& a);
// Whether the card has the path's instruction, or an emulation serves.
bool has_m16n8k16();
bool has_m8n8k4();
bool has_fp4();

void launch_few(const Launch& to, const GroupedParams& p);
void launch_tile(const Launch& to, const GroupedParams& p);
void launch_sm70(const Launch& to, const GroupedParams& p);
void launch_sm120(const Launch& to, const GroupedParams& p);

void launch_few(const Launch& to, const LinearParams& p);
void launch_tile(const Launch& to, const LinearParams& p);
void launch_wgmma(const Launch& to, const LinearParams& p);
void launch_a8(const Launch& to, const LinearParams& p);
void launch_a8_plain(const Launch& to, const LinearParams& p);
struct LinearTile;
std::vector<LinearTile> wgmma_tiles(const Launch& to, const LinearParams& p);
std::vector<LinearTile> a8_tiles(const Launch& to, const LinearParams& p);
std::string a8_choice(const Launch& to, const LinearParams& p);
std::string wgmma_choice(const Launch& to, const LinearParams& p);  // "tile 128x8, 160 units of one segment"
std::uint64_t wgmma_sums_bytes(int multiprocessors);
void launch_sm70(const Launch& to, const LinearParams& p);
void launch_sm70_few(const Launch& to, const LinearParams& p);  // 32 rows at most
void launch_sm70_tile(const Launch& to, const LinearParams& p);
std::uint64_t sm70_sums_bytes(int multiprocessors);
void launch_sm120(const Launch& to, const LinearParams& p);
void launch_fp4(const Launch& to, const LinearParams& p);

// 16 rows x 64 columns of a weight, a lane's share.
template <WeightFormat F>
struct Unit {  // bf16 values
  uint4 step[4];
  __device__ __forceinline__ void load(const WeightImage& w, std::int64_t unit, int lane) {
    const auto* at = reinterpret_cast<const uint4*>(w.codes + unit * unit_bytes(F)) + lane;
#pragma unroll
    for (int s = 0; s < 4; ++s) step[s] = __ldg(at + 32 * s);
  }
  __device__ __forceinline__ void fragment(const WeightImage&, int s, std::uint32_t (&a)[4]) const {
    a[0] = step[s].x;
    a[1] = step[s].y;
    a[2] = step[s].z;
    a[3] = step[s].w;
  }
};

template <>
struct Unit<WeightFormat::fp8_e4m3> {
  uint4 steps[2];
  __device__ __forceinline__ void load(const WeightImage& w, std::int64_t unit, int lane) {
    const auto* at =
        reinterpret_cast<const uint4*>(w.codes + unit * unit_bytes(WeightFormat::fp8_e4m3)) + lane;
    steps[0] = __ldg(at);
    steps[1] = __ldg(at + 32);
  }
  __device__ __forceinline__ void fragment(const WeightImage&, int s, std::uint32_t (&a)[4]) const {
    const uint4& v = steps[s / 2];
    if (s % 2 == 0) {
      fp8_fragment(v.x, v.y, a);
    } else {
      fp8_fragment(v.z, v.w, a);
    }
  }
};

template <>
struct Unit<WeightFormat::nvfp4> {
  uint4 codes;
  uint2 scales;
  __device__ __forceinline__ void load(const WeightImage& w, std::int64_t unit, int lane) {
    const int stride = code_stride(WeightFormat::nvfp4, w.scale_code);
    codes = __ldg(reinterpret_cast<const uint4*>(w.codes + unit * stride) + lane);
    scales = __ldg(reinterpret_cast<const uint2*>(w.scales + unit * scale_stride(w.scale_code)) + lane / 4);
  }
  __device__ __forceinline__ void fragment(const WeightImage& w, int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t first = s < 2 ? codes.x : codes.z, second = s < 2 ? codes.y : codes.w;
    const std::uint32_t two = s < 2 ? scales.x : scales.y;
    if (w.scale_code == ScaleCode::e4m3) {
      nvfp4_fragment(s % 2 == 0 ? first : second, two >> (16 * (s % 2)) & 0xFFFFu, a);
    } else if (s % 2 == 0) {
      arranged_fragment<0>(first, second, two, a);
    } else {
      arranged_fragment<1>(first, second, two, a);
    }
  }
};

// The same where codes lie for the FP4 unit (CodeOrder::k64). All lanes take part.
struct K64Unit {
  uint4 codes;
  uint2 scales;  // rows g and g + 8
  __device__ __forceinline__ void load(const WeightImage& w, std::int64_t unit, int lane) {
    const auto* codes_at = reinterpret_cast<const uint4*>(w.codes + unit * unit_bytes(WeightFormat::nvfp4));
    const auto* scales_at = reinterpret_cast<const std::uint32_t*>(w.scales + unit * kUnitScaleBytes) + lane / 4;
    const uint4 v = __ldg(codes_at + lane);
    scales = make_uint2(__ldg(scales_at), __ldg(scales_at + 8));
    const std::uint32_t upper[2] = {across_quad(v.x, lane), across_quad(v.z, lane)};
    const std::uint32_t lower[2] = {across_quad(v.y, lane), across_quad(v.w, lane)};
    codes = make_uint4(k16_word(upper[0], lower[0], 0), k16_word(upper[0], lower[0], 1),
                       k16_word(upper[1], lower[1], 0), k16_word(upper[1], lower[1], 1));
  }
  __device__ __forceinline__ void fragment(const WeightImage&, int s, std::uint32_t (&a)[4]) const {
    const std::uint32_t word = s == 0 ? codes.x : s == 1 ? codes.y : s == 2 ? codes.z : codes.w;
    nvfp4_fragment(word, (scales.x >> (8 * s) & 0xFFu) | (scales.y >> (8 * s) & 0xFFu) << 8, a);
  }

 private:
  // Byte q of lanes 4 g .. 4 g + 3 to lane 4 g + q.
  __device__ __forceinline__ static std::uint32_t across_quad(std::uint32_t v, int lane) {
    std::uint32_t other = __shfl_xor_sync(~0u, v, 1);
    v = __byte_perm(v, other, lane % 2 == 0 ? 0x6240u : 0x3715u);
    other = __shfl_xor_sync(~0u, v, 2);
    return __byte_perm(v, other, lane % 4 < 2 ? 0x5410u : 0x3276u);
  }
};

// Eight columns from k (a multiple of 8) of one row of x, as pairs; zero beyond the weight's columns.
__device__ __forceinline__ uint4 operands8(const LinearParams& p, std::int64_t row, std::int64_t k) {
  std::uint32_t pair[4] = {0, 0, 0, 0};
  const std::int64_t cols = p.weight.cols;
  if (p.kind == ActivationKind::nvfp4_static) {
    if (k < cols) {  // whole blocks of 16 only
      const std::byte* codes = p.x + row * p.x_stride + k / 2;
      const std::uint32_t scale = e4m3_twice(
          static_cast<std::uint32_t>(p.x_scales[row * p.scale_stride + k / 16]));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto two = static_cast<std::uint32_t>(codes[i]);
        pair[i] = e2m1_pair<0>((two & 15u) | (two >> 4) << 16, scale);
      }
    }
  } else if (p.kind == ActivationKind::none) {
    const auto* x = reinterpret_cast<const std::uint16_t*>(p.x) + row * p.x_stride + k;
    if (p.aligned && k + 8 <= cols) return *reinterpret_cast<const uint4*>(x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (k + i < cols) pair[i / 2] |= static_cast<std::uint32_t>(x[i]) << (16 * (i % 2));
    }
  } else {
    const std::byte* x = p.x + row * p.x_stride + k;
    std::uint32_t four[2] = {0, 0};
    if (p.aligned && k + 8 <= cols) {
      const uint2 v = *reinterpret_cast<const uint2*>(x);
      four[0] = v.x;
      four[1] = v.y;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (k + i < cols) four[i / 4] |= static_cast<std::uint32_t>(x[i]) << (8 * (i % 4));
      }
    }
    pair[0] = e4m3_adjacent(four[0]);
    pair[1] = e4m3_adjacent(four[0] >> 16);
    pair[2] = e4m3_adjacent(four[1]);
    pair[3] = e4m3_adjacent(four[1] >> 16);
  }
  return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

// total after segment `segment` of output (token, n); as the CPU's add_segment. n: any row of the tile.
__device__ __forceinline__ float scaled_segment(const LinearParams& p, std::int64_t token, bool there, int segment,
                                                float sum) {
  const auto* scales = reinterpret_cast<const float*>(p.x_scales);
  return num::mul(sum, there ? scales[token * p.scale_stride + segment] : 0.0f);
}
__device__ __forceinline__ float add_segment(const LinearParams& p, const float* block, std::int64_t n, int segment,
                                             float sum, float total) {
  const std::int64_t across = (p.weight.cols + 127) / 128;
  return num::fma(sum, block[n / 128 * across + segment], total);
}
__device__ __forceinline__ float add_segment(const LinearParams& p, std::int64_t token, bool there,
                                             std::int64_t n, int segment, float sum, float total) {
  if (p.kind == ActivationKind::fp8_token_group128) sum = scaled_segment(p, token, there, segment, sum);
  if (p.weight.block == nullptr) return num::add(total, sum);
  return add_segment(p, p.weight.block, n, segment, sum, total);
}

__device__ __forceinline__ float activation_scale(const LinearParams& p, std::int64_t token) {
  return p.kind == ActivationKind::fp8_token
             ? reinterpret_cast<const float*>(p.x_scales)[token * p.scale_stride]
             : p.static_scale;
}
__device__ __forceinline__ void finish(const LinearParams& p, std::int64_t token, std::int64_t n,
                                       float total, float scale) {
  const float y = num::mul(num::mul(total, p.weight.alpha[n]), scale);
  const std::int64_t at = token * p.y_stride + n;
  if (p.y_bf16) {
    put(reinterpret_cast<Bf16*>(p.y) + at, y);
  } else {
    put(reinterpret_cast<float*>(p.y) + at, y);
  }
}
__device__ __forceinline__ void finish(const LinearParams& p, std::int64_t token, std::int64_t n,
                                       float total) {
  finish(p, token, n, total, activation_scale(p, token));
}

// SwiGlu of the bf16 that gate and up are rounded to.
__device__ __forceinline__ std::uint16_t swiglu_of(float gate, float up) {
  const Bf16* const stored = nullptr;
  return num::float_to_bf16(SiluTimes{}(as_stored(stored, gate), as_stored(stored, up)));
}
// finish() of rows n (gate) and n + 8 (up) of an image of both.
__device__ __forceinline__ void finish_swiglu(const LinearParams& p, std::int64_t token, std::int64_t n, float gate,
                                              float up) {
  const float scale = activation_scale(p, token);
  const float* const alpha = p.weight.alpha + n;
  const std::int64_t at = token * p.y_stride + n / kUnitRows * 8 + n % 8;
  reinterpret_cast<std::uint16_t*>(p.y)[at] =
      swiglu_of(num::mul(num::mul(gate, alpha[0]), scale), num::mul(num::mul(up, alpha[8]), scale));
}

// Results of a lane: i = 0, 1: row g, columns 2p, 2p + 1; i = 2, 3: row g + 8.
__device__ __forceinline__ int result_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
__device__ __forceinline__ int result_col(int lane, int i) { return lane % 4 * 2 + i % 2; }

// Calls f(constant) with the format that the image has codes of.
template <class F>
void with_format(WeightFormat format, F f) {
  if (format == WeightFormat::nvfp4) {
    f(std::integral_constant<WeightFormat, WeightFormat::nvfp4>());
  } else if (format == WeightFormat::fp8_e4m3) {
    f(std::integral_constant<WeightFormat, WeightFormat::fp8_e4m3>());
  } else {
    f(std::integral_constant<WeightFormat, WeightFormat::bf16>());
  }
}
// Calls f(std::type_identity) with the unit that reads the image.
template <class F>
void with_unit(const WeightImage& w, F f) {
  if (w.order == CodeOrder::k64) return f(std::type_identity<K64Unit>());
  with_format(w.format, [&](auto format) { f(std::type_identity<Unit<decltype(format)::value>>()); });
}

}  // namespace nibble::cuda
