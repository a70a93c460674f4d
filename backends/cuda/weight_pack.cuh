// weight_pack.cuh: the kernels behind weight_image.cu, from bytes of a checkpoint to the orders of
// device/weight_decode.cuh and device/weight_f16.cuh.
#pragma once

#include "backends/cuda/device/weight_decode.cuh"
#include "core/numerics/row_scale.h"

namespace nibble::cuda {
namespace {

// A piece of the file on the device: `rows` rows from row `first`, the rest of its last tile is padding. Where gate_up,
// the rows of gate, then as many of up.
struct Piece {
  const std::byte* data;
  std::int64_t first, rows, cols, k_tiles;
  float* unit;  // [padded rows] 2^e of a row, where values become f16; else null
  std::uint32_t* odd;
  ScaleCode scale_code;
  CodeOrder order;
  bool gate_up;
};
// Where row r of the piece's image lies in the data.
__device__ __forceinline__ std::int64_t row_of(const Piece& p, std::int64_t r) {
  return p.gate_up ? gate_up_row(r, p.rows / 2) : r;
}

template <WeightFormat F>
__device__ float value_of(const std::byte* row, std::int64_t k) {
  if constexpr (F == WeightFormat::f32) {
    return reinterpret_cast<const float*>(row)[k];
  } else if constexpr (F == WeightFormat::f16) {
    return num::f16_to_float(reinterpret_cast<const std::uint16_t*>(row)[k]);
  } else {
    return num::bf16_to_float(reinterpret_cast<const std::uint16_t*>(row)[k]);
  }
}
template <WeightFormat F>
__device__ std::uint32_t operand_of(const Piece& p, const std::byte* row, std::int64_t r, std::int64_t k) {
  if (p.unit != nullptr) {
    const auto field = static_cast<int>(num::bit_cast<std::uint32_t>(p.unit[p.first + r]) >> 23);
    return num::weight_to_f16(value_of<F>(row, k), field - 127);
  }
  if constexpr (F == WeightFormat::bf16) return reinterpret_cast<const std::uint16_t*>(row)[k];
  return num::float_to_bf16(value_of<F>(row, k));
}

// Block = one row.
template <WeightFormat F>
__global__ __launch_bounds__(128) void row_units(Piece p) {
  __shared__ std::uint32_t most;
  const auto r = static_cast<std::int64_t>(blockIdx.x);
  const std::byte* row = p.data + r * p.cols * (F == WeightFormat::f32 ? 4 : 2);
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  std::uint32_t own = 0;
  for (std::int64_t k = threadIdx.x; k < p.cols; k += 128) {
    const std::uint32_t m = num::finite_magnitude(value_of<F>(row, k));
    own = m > own ? m : own;
  }
  atomicMax(&most, own);
  __syncthreads();
  if (threadIdx.x == 0) p.unit[p.first + r] = num::power_of_two(num::weight_exponent(most));
}

// The word of a step's fragment register pair: what lies in the unit at 32-bit word `at`.
template <WeightFormat F>
__device__ std::uint32_t packed_word(const Piece& p, std::int64_t row0, std::int64_t k0, int at) {
  constexpr int kSize = F == WeightFormat::f32 ? 4 : F == WeightFormat::fp8_e4m3 ? 1 : 2;
  const std::int64_t stride = F == WeightFormat::nvfp4 ? p.cols / 2 : p.cols * kSize;
  std::uint32_t word = 0;
  if constexpr (F == WeightFormat::nvfp4) {
    const int lane = at / 4, g = lane / 4, q = lane % 4;
    if (p.order == CodeOrder::k64) {
      const std::int64_t r = row0 + g + at % 2 * 8, k = k0 + q * 8 + at % 4 / 2 * 32;
      if (r >= p.rows || k >= p.cols) return 0;
      for (int i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(p.data[row_of(p, r) * stride + k / 2 + i]) << (8 * i);
      return word;
    }
    for (int reg = 0; reg < 4; ++reg) {
      const std::int64_t r = row0 + g + reg % 2 * 8, k = k0 + at % 4 * 16 + 2 * q + reg / 2 * 8;
      if (r >= p.rows || k >= p.cols) continue;
      const auto two = static_cast<std::uint32_t>(p.data[row_of(p, r) * stride + k / 2]);
      word |= (two & 15u) << (4 * reg) | (two >> 4) << (16 + 4 * reg);
    }
  } else if constexpr (F == WeightFormat::fp8_e4m3) {
    const int lane = at % 128 / 4, g = lane / 4, q = lane % 4;
    if (p.order == CodeOrder::k32) {
      const std::int64_t r = row0 + g + at % 2 * 8, k = k0 + at / 128 * 32 + at % 4 / 2 * 16 + 4 * q;
      if (r >= p.rows) return 0;
      for (int i = 0; i < 4; ++i) {
        if (k + i < p.cols) word |= static_cast<std::uint32_t>(p.data[r * stride + k + i]) << (8 * i);
      }
      return word;
    }
    const int step = at / 128 * 2 + at % 4 / 2;
    for (int i = 0; i < 4; ++i) {  // registers 0, 1 or 2, 3
      const std::int64_t r = row0 + g + i / 2 * 8;
      const std::int64_t k = k0 + step * 16 + 2 * q + at % 2 * 8 + i % 2;
      if (r >= p.rows || k >= p.cols) continue;
      word |= static_cast<std::uint32_t>(p.data[row_of(p, r) * stride + k]) << (8 * i);
    }
  } else {
    const int lane = at % 128 / 4, g = lane / 4, q = lane % 4, reg = at % 4;
    const std::int64_t r = row0 + g + reg % 2 * 8;
    for (int half = 0; half < 2; ++half) {
      const std::int64_t k = k0 + at / 128 * 16 + 2 * q + reg / 2 * 8 + half;
      if (r >= p.rows || k >= p.cols) continue;
      word |= operand_of<F>(p, p.data + row_of(p, r) * stride, r, k) << (16 * half);
    }
  }
  return word;
}

__device__ void note_nan(const Piece& p, std::uint32_t four) {
  if (((four & 0x7F7F7F7Fu) + 0x01010101u & 0x80808080u) != 0) *p.odd = 1;
}

// Block = one tile of 64 rows and 64 columns (4 units); grid: column tiles x row tiles of the piece.
template <WeightFormat F>
__global__ __launch_bounds__(128) void pack_codes(Piece p, std::byte* out) {
  constexpr int kWords = unit_bytes(F) / 4;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const std::int64_t k0 = static_cast<std::int64_t>(blockIdx.x) * kTileCols;
  const int stride = code_stride(F, p.scale_code);
  std::byte* const tile = out + unit_index(p.first + row0, k0, p.k_tiles) * stride;
  for (int i = static_cast<int>(threadIdx.x); i < 4 * kWords; i += 128) {
    const std::uint32_t word = packed_word<F>(p, row0 + i / kWords * kUnitRows, k0, i % kWords);
    reinterpret_cast<std::uint32_t*>(tile + i / kWords * stride)[i % kWords] = word;
    if constexpr (F == WeightFormat::fp8_e4m3) note_nan(p, word);
  }
}

// The same in the order of weight_f16.cuh: word `at` of the unit at row row0 of the piece and column k0.
template <WeightFormat F>
__device__ std::uint32_t packed_f16_word(const Piece& p, std::int64_t row0, std::int64_t k0, int at) {
  constexpr int kCols = kF16UnitCols / f16_parts(F) / 4;  // of a word
  const std::int64_t r = row0 + unit_row(at / 4 % 32), k = k0 + at / 128 * (kCols * 4) + at % 4 * kCols;
  if (r >= p.rows) return 0;
  std::uint32_t word = 0;
  if constexpr (F == WeightFormat::nvfp4) {
    for (int i = 0; i < 4; ++i) {
      if (k + 2 * i < p.cols) word |= static_cast<std::uint32_t>(p.data[r * (p.cols / 2) + k / 2 + i]) << (8 * i);
    }
    return m8n8k4_word(word);
  } else if constexpr (F == WeightFormat::fp8_e4m3) {
    for (int i = 0; i < 4; ++i) {
      if (k + i < p.cols) word |= static_cast<std::uint32_t>(p.data[r * p.cols + k + i]) << (8 * i);
    }
  } else {
    const std::byte* const row = p.data + r * p.cols * (F == WeightFormat::f32 ? 4 : 2);
    for (int i = 0; i < 2; ++i) {
      if (k + i < p.cols) word |= operand_of<F>(p, row, r, k + i) << (16 * i);
    }
  }
  return word;
}
template <WeightFormat F>
__global__ __launch_bounds__(128) void pack_f16_codes(Piece p, std::byte* out) {
  constexpr int kWords = f16_unit_bytes(F) / 4;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const std::int64_t k0 = static_cast<std::int64_t>(blockIdx.x) * kTileCols;
  for (int i = static_cast<int>(threadIdx.x); i < 4 * kWords; i += 128) {
    const int unit = i / kWords;
    const std::int64_t r = row0 + unit / 2 * kF16UnitRows, k = k0 + unit % 2 * kF16UnitCols;
    const std::uint32_t word = packed_f16_word<F>(p, r, k, i % kWords);
    const std::int64_t at = (p.first + r) / kF16UnitRows * (p.k_tiles * 2) + k / kF16UnitCols;
    reinterpret_cast<std::uint32_t*>(out + at * f16_unit_bytes(F))[i % kWords] = word;
    if constexpr (F == WeightFormat::fp8_e4m3) note_nan(p, word);
  }
}

// A step's nibbles take over the sign and the zero of their block's scale.
__device__ std::uint32_t taken_over(std::uint32_t word, std::uint32_t upper, std::uint32_t lower) {
  if ((upper & 0x80u) != 0) word ^= 0x08080808u;
  if ((upper & 0x7Fu) == 0) word &= ~0x07070707u;
  if ((lower & 0x80u) != 0) word ^= 0x80808080u;
  if ((lower & 0x7Fu) == 0) word &= ~0x70707070u;
  return word;
}

// The same for block scales, after the codes; 256 bytes a tile, a thread each. Then e5m3 has as many pairs of words.
__global__ __launch_bounds__(256) void pack_scales(Piece p, std::byte* codes, std::byte* out) {
  __shared__ std::uint8_t tile[256];
  const std::int64_t stride = p.cols / 16, tile_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const int i = static_cast<int>(threadIdx.x), unit = i / kUnitScaleBytes, at = i % kUnitScaleBytes;
  const std::int64_t row = tile_row + unit * kUnitRows + at / 8 + at % 2 * 8;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * 4 + at % 8 / 2;
  const bool there = row < p.rows && block < stride;
  const std::byte scale = there ? p.data[row_of(p, row) * stride + block] : std::byte{0};
  const std::int64_t first = unit_index(p.first + tile_row, static_cast<std::int64_t>(blockIdx.x) * kTileCols, p.k_tiles);
  if (p.scale_code == ScaleCode::e4m3) {
    const std::int64_t n = p.first + row, k = block * 16;
    out[p.order == CodeOrder::k64 ? scale_at_k64(n, k, p.k_tiles) : scale_at(n, k, p.k_tiles, p.scale_code)] = scale;
    return;
  }
  tile[i] = static_cast<std::uint8_t>(scale);
  __syncthreads();
  const int pair = i % 2, lane = i / 2 % 32;
  const int in_unit = lane / 4 * 8 + pair * 4;
  const std::uint8_t* const own = tile + i / 64 * kUnitScaleBytes + in_unit;
  const std::int64_t unit_at = (first + i / 64) * scale_stride(ScaleCode::e5m3);
  auto* const words = reinterpret_cast<std::uint32_t*>(codes + unit_at) + i % 64 * 2;
  std::uint32_t two[2] = {taken_over(words[0], own[0], own[1]), taken_over(words[1], own[2], own[3])};
  arrange(two);
  words[0] = two[0];
  words[1] = two[1];
  if (lane % 4 != 0) return;
  std::uint8_t coded[4];
  for (int j = 0; j < 4; ++j) coded[j] = static_cast<std::uint8_t>(e5m3_of(own[j]));
  *reinterpret_cast<std::uint32_t*>(out + unit_at + in_unit) = arranged_scales(coded);
}

// The same in the order of weight_f16.cuh. A thread's two words are its own.
__global__ __launch_bounds__(256) void pack_f16_scales(Piece p, std::byte* codes, std::byte* out) {
  const std::int64_t stride = p.cols / 16;
  const int i = static_cast<int>(threadIdx.x);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTileRows + i / 4;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * 4 + i % 4, n = p.first + row, k = block * 16;
  const bool there = row < p.rows && block < stride;
  const auto e4m3 = there ? static_cast<std::uint32_t>(p.data[row * stride + block]) : 0u;
  if ((e4m3 & 0x80u) != 0) {
    const std::int64_t unit = n / kF16UnitRows * (p.k_tiles * 2) + k / kF16UnitCols;
    auto* const words = reinterpret_cast<std::uint32_t*>(codes + unit * f16_unit_bytes(WeightFormat::nvfp4)) +
                        lane_of_row(static_cast<int>(n % kF16UnitRows)) * 4 + k % kF16UnitCols / 8;
    words[0] ^= 0xF000F000u;
    words[1] ^= 0xF000F000u;
  }
  out[f16_scale_at(p.k_tiles * kTileCols, n, k)] = static_cast<std::byte>(f16_scale_of(e4m3));
}

}  // namespace
}  // namespace nibble::cuda
