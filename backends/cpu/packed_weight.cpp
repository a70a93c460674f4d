#include "backends/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/numerics/row_scale.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 31;

std::uint64_t aligned(std::uint64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}
std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

[[noreturn]] void fail(ErrorCode code, const Weight& w, const std::string& what) {
  throw Error(code, "[pack] " + w.name + ": " + what);
}

int element_bytes(WeightFormat f) {
  switch (f) {
    case WeightFormat::f32:
      return 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return 2;
    default:
      return 1;
  }
}

bool is_plain(WeightFormat f) {
  return f == WeightFormat::f32 || f == WeightFormat::f16 || f == WeightFormat::bf16;
}
WeightFormat packed_format(WeightFormat f, WeightOperand operand) {
  if (operand == WeightOperand::stored || !is_plain(f)) return f;
  return operand == WeightOperand::bf16 ? WeightFormat::bf16 : WeightFormat::f16;
}

struct Sizes {
  std::int64_t panels = 0, panel_bytes = 0;  // of the image
  std::uint64_t alpha_at = 0, block_at = 0, block_count = 0, total = 0;
};

Sizes sizes_of(const Weight& w, WeightOperand operand, Layout layout) {
  if (w.rows <= 0 || w.cols <= 0 || w.rows > kMaxDim || w.cols > kMaxDim) {
    fail(ErrorCode::bad_file, w,
         "expected a matrix of 1 to 2^31 rows and columns, found [" + std::to_string(w.rows) +
             ", " + std::to_string(w.cols) + "]");
  }
  const bool nvfp4 = w.format == WeightFormat::nvfp4;
  if (nvfp4 && w.cols % 16 != 0) {
    fail(ErrorCode::unsupported, w,
         "expected a multiple of 16 columns for nvfp4, found " + std::to_string(w.cols));
  }
  const std::int64_t blocks = ceil_div(w.rows, kScaleBlock) * ceil_div(w.cols, kScaleBlock);
  std::int64_t scales = 0;
  switch (w.scale_layout) {
    case ScaleLayout::none:
      break;
    case ScaleLayout::tensor:
      scales = 1;
      break;
    case ScaleLayout::row:
      scales = w.rows;
      break;
    case ScaleLayout::block128:
      scales = blocks;
      break;
  }
  if (nvfp4 && w.scale_layout == ScaleLayout::block128) {
    fail(ErrorCode::unsupported, w,
         "expected a tensor or row scale for nvfp4, found 128x128 blocks");
  }
  if (w.scales.size() != static_cast<std::uint64_t>(scales)) {
    fail(
        ErrorCode::bad_file, w,
        "expected " + std::to_string(scales) + " scales, found " + std::to_string(w.scales.size()));
  }
  Sizes s;
  s.panels = ceil_div(w.rows, kPanelRows);
  s.panel_bytes = nvfp4 ? ceil_div(w.cols, kNvfp4Group) * kNvfp4GroupBytes
                        : static_cast<std::int64_t>(aligned(static_cast<std::uint64_t>(
                              w.cols * kPanelRows * element_bytes(packed_format(w.format, operand)))));
  const auto codes =
      checked_mul(static_cast<std::uint64_t>(s.panels), static_cast<std::uint64_t>(s.panel_bytes));
  if (!codes || *codes >> 62 != 0)
    fail(ErrorCode::bad_file, w, "its packed size exceeds 2^62 bytes");
  s.alpha_at = layout == Layout::rows ? 0 : *codes;
  s.block_at =
      s.alpha_at + aligned(static_cast<std::uint64_t>(s.panels) * kPanelRows * sizeof(float));
  if (w.scale_layout == ScaleLayout::block128) s.block_count = static_cast<std::uint64_t>(blocks);
  s.total = s.block_at + aligned(s.block_count * sizeof(float));
  return s;
}

void expect_bytes(const Weight& w, const char* what, std::uint64_t expected, std::uint64_t found) {
  if (expected != found) {
    fail(ErrorCode::bad_file, w,
         "expected " + std::to_string(expected) + " bytes of " + what + ", found " +
             std::to_string(found));
  }
}

// Four codes of a row at a time: 16 bits that lie beside each other in both, in the order of the file or of nibble_at.
template <NibbleOrder Order>
void pack_nvfp4_panel(const Weight& w, std::int64_t first, int rows, std::byte* out) {
  static_assert(nibble_at(NibbleOrder::words, 3, 5) == 5 * 4 + 3);
  const std::int64_t code_stride = w.cols / 2, scale_stride = w.cols / 16;
  for (std::int64_t k0 = 0; k0 < w.cols; k0 += kNvfp4Group, out += kNvfp4GroupBytes) {
    const std::int64_t blocks = std::min<std::int64_t>(kNvfp4Group, w.cols - k0) / 16;
    for (int r = 0; r < rows; ++r) {
      const std::byte* const scales = w.block_scales.data() + (first + r) * scale_stride + k0 / 16;
      for (std::int64_t b = 0; b < blocks; ++b) out[b * kPanelRows + r] = scales[b];
      const std::byte* const codes = w.codes.data() + (first + r) * code_stride + k0 / 2;
      // Of k-steps 0 and 2, then of 1 and 3: nibble_at(bytes, j, r).
      std::byte* const to = out + 64 + (Order == NibbleOrder::words ? 2 * r : nibble_at(NibbleOrder::bytes, 0, r) / 2);
      for (std::int64_t c = 0; c < blocks * 4; ++c) {
        std::byte* const chunk = to + c * kNvfp4ChunkBytes;
        if constexpr (Order == NibbleOrder::words) {
          std::memcpy(chunk, codes + c * 2, 2);
        } else {
          constexpr std::byte kLow{15}, kHigh{240};
          static_assert(nibble_at(Order, 2, 0) == nibble_at(Order, 0, 0) + 1 &&
                        nibble_at(Order, 1, 0) == nibble_at(Order, 0, 0) + 16);
          const std::byte a = codes[c * 2], b = codes[c * 2 + 1];
          chunk[0] = (a & kLow) | (b << 4);
          chunk[8] = (a >> 4) | (b & kHigh);
        }
      }
    }
  }
}

template <int Size>
void pack_plain_panel(const Weight& w, std::int64_t first, int rows, std::byte* out) {
  constexpr std::int64_t kBlock =
      64;  // k at a time: the panel's lines stay in the first-level cache
  for (std::int64_t k0 = 0; k0 < w.cols; k0 += kBlock) {
    const std::int64_t k1 = std::min(w.cols, k0 + kBlock);
    for (int r = 0; r < rows; ++r) {
      const std::byte* in = w.codes.data() + (first + r) * w.cols * Size;
      for (std::int64_t k = k0; k < k1; ++k) {
        std::memcpy(out + (k * kPanelRows + r) * Size, in + k * Size, Size);
      }
    }
  }
}

float plain_value(const Weight& w, std::int64_t at) {
  const auto i = static_cast<std::size_t>(at);
  if (w.format == WeightFormat::f32) return load_le<float>(w.codes, i * 4);
  const auto half = load_le<std::uint16_t>(w.codes, i * 2);
  return w.format == WeightFormat::f16 ? num::f16_to_float(half) : num::bf16_to_float(half);
}

// A panel in the operand's format; with f16 its rows' exponents enter alpha.
void pack_operand_panel(const Weight& w, std::int64_t first, int rows, std::byte* out,
                        WeightOperand operand, float* alpha) {
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = (first + r) * w.cols;
    int e = 0;
    if (operand == WeightOperand::f16) {
      std::uint32_t amax = 0;
      for (std::int64_t k = 0; k < w.cols; ++k) {
        amax = std::max(amax, num::finite_magnitude(plain_value(w, row + k)));
      }
      e = num::weight_exponent(amax);
      alpha[first + r] = num::mul(alpha[first + r], num::power_of_two(e));
    }
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const float v = plain_value(w, row + k);
      const std::uint16_t h =
          operand == WeightOperand::f16 ? num::weight_to_f16(v, e) : num::float_to_bf16(v);
      std::memcpy(out + (k * kPanelRows + r) * 2, &h, 2);
    }
  }
}

void pack_panel(const Weight& w, const PackedWeight& p, std::int64_t panel, std::byte* out,
                WeightOperand operand, float* alpha) {
  std::memset(out, 0, static_cast<std::size_t>(p.panel_bytes));
  const std::int64_t first = panel * kPanelRows;
  const int rows = static_cast<int>(std::min<std::int64_t>(kPanelRows, w.rows - first));
  if (is_plain(w.format) && (operand == WeightOperand::f16 || p.format != w.format)) {
    return pack_operand_panel(w, first, rows, out, operand, alpha);
  }
  switch (w.format) {
    case WeightFormat::nvfp4:
      return p.order == NibbleOrder::words ? pack_nvfp4_panel<NibbleOrder::words>(w, first, rows, out)
                                           : pack_nvfp4_panel<NibbleOrder::bytes>(w, first, rows, out);
    case WeightFormat::f32:
      return pack_plain_panel<4>(w, first, rows, out);
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return pack_plain_panel<2>(w, first, rows, out);
    case WeightFormat::fp8_e4m3:
      return pack_plain_panel<1>(w, first, rows, out);
  }
}

}  // namespace

NibbleOrder nibble_order(Isa isa) {
  return isa == Isa::avx512 ? NibbleOrder::words : NibbleOrder::bytes;
}

bool usable_in_place(const Weight& weight, WeightOperand operand) {
  if (weight.materialize) return false;
  // f16 rows get exponents of their own, even those that were f16
  return !is_plain(weight.format) || operand == WeightOperand::stored ||
         (operand == WeightOperand::bf16 && weight.format == WeightFormat::bf16);
}

std::uint64_t packed_bytes(const Weight& weight, WeightOperand operand, Layout layout) {
  return sizes_of(weight, operand, layout).total;
}

void expect_sizes(const Weight& weight) {
  const auto elements =
      static_cast<std::uint64_t>(weight.rows) * static_cast<std::uint64_t>(weight.cols);
  if (weight.format == WeightFormat::nvfp4) {
    expect_bytes(weight, "codes", elements / 2, weight.codes.size());
    expect_bytes(weight, "block scales", elements / 16, weight.block_scales.size());
  } else {
    expect_bytes(weight, "codes",
                 elements * static_cast<std::uint64_t>(element_bytes(weight.format)),
                 weight.codes.size());
  }
}

PackedWeight pack(const Weight& weight, std::byte* arena, Parallel& parallel, NibbleOrder order,
                  WeightOperand operand, Layout layout) {
  const Sizes s = sizes_of(weight, operand, layout);
  if (reinterpret_cast<std::uintptr_t>(arena) % kAlign != 0) {
    fail(ErrorCode::internal, weight, "expected an arena aligned to 64 bytes");
  }
  expect_sizes(weight);
  if (layout == Layout::rows && !usable_in_place(weight, operand)) {
    fail(ErrorCode::internal, weight, "expected a weight that can be used in place");
  }

  PackedWeight p;
  p.format = packed_format(weight.format, operand);
  p.layout = layout;
  p.order = order;
  p.rows = weight.rows;
  p.order_rows = weight.order_rows();
  p.cols = weight.cols;
  p.panels = s.panels;
  p.panel_bytes = s.panel_bytes;
  p.bytes = s.total;
  p.codes = arena;

  const std::int64_t padded = s.panels * kPanelRows;
  auto* alpha = reinterpret_cast<float*>(arena + s.alpha_at);
  for (std::int64_t n = 0; n < padded; ++n) {
    alpha[n] = n >= weight.rows ? 0.0f
               : weight.scale_layout == ScaleLayout::row
                   ? weight.scales[static_cast<std::size_t>(n)]
               : weight.scale_layout == ScaleLayout::tensor ? weight.scales[0]
                                                            : 1.0f;
  }
  p.alpha = alpha;
  if (s.block_count > 0) {
    auto* block = reinterpret_cast<float*>(arena + s.block_at);
    std::copy(weight.scales.begin(), weight.scales.end(), block);
    p.block = block;
  }
  if (layout == Layout::rows) {
    p.codes = weight.codes.data();
    p.block_scales = weight.block_scales.data();
    p.panel_bytes = static_cast<std::int64_t>(weight.codes.size()) / weight.rows * kPanelRows;
    return p;
  }
  parallel(s.panels, std::max<std::int64_t>(1, 65536 / (weight.cols * kPanelRows)),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i)
               pack_panel(weight, p, i, arena + i * s.panel_bytes, operand, alpha);
           });
  return p;
}

}  // namespace nibble::cpu
