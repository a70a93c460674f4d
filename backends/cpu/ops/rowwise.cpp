#include "backends/cpu/ops/rowwise.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/kernels/rowwise.h"
#include "core/numerics/codecs.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements worth a task of their own
constexpr std::int64_t kPiece = 4096;   // columns of a row that one task takes

const RowwiseKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, rowwise_kernels());
}

std::int64_t grain_of(std::int64_t elements) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, elements));
}

// f(row, first column, columns): a single long row is spread over threads as well.
template <class F>
void over_pieces(Parallel& parallel, std::int64_t rows, std::int64_t cols, const F& f) {
  const std::int64_t pieces = (cols + kPiece - 1) / kPiece;
  parallel(rows * pieces, grain_of(std::min(cols, kPiece)),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t i = begin; i < end; ++i) {
               const std::int64_t first = i % pieces * kPiece;
               f(i / pieces, first, std::min(kPiece, cols - first));
             }
           });
}

template <class Element, class Widen>
void plain_row(const PackedWeight& w, std::int64_t n, float* y, Widen widen) {
  const bool in_place = w.layout == Layout::rows;
  const auto size = static_cast<std::int64_t>(sizeof(Element)), step = in_place ? size : kPanelRows * size;
  const std::byte* p = w.codes + n / kPanelRows * w.panel_bytes + n % kPanelRows * (in_place ? w.cols * size : size);
  for (std::int64_t k = 0; k < w.cols; ++k) {
    Element e;
    std::memcpy(&e, p + k * step, sizeof e);
    y[k] = widen(e);
  }
}

void nvfp4_row_in_place(const PackedWeight& w, std::int64_t n, float* y) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(w.codes) + n * (w.cols / 2);
  const auto* scales = reinterpret_cast<const std::uint8_t*>(w.block_scales) + n * (w.cols / 16);
  for (std::int64_t k = 0; k < w.cols; ++k) {
    const auto code = static_cast<std::uint8_t>(codes[k / 2] >> (4 * (k % 2)) & 15);
    y[k] = num::mul(num::e2m1_to_float(code), num::e4m3_to_float(scales[k / 16]));
  }
}

void nvfp4_row(const PackedWeight& w, std::int64_t n, float* y) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(w.codes + n / kPanelRows * w.panel_bytes);
  const int r = static_cast<int>(n % kPanelRows);
  for (std::int64_t k = 0; k < w.cols; k += 4) {
    const std::uint8_t* group = p + k / kNvfp4Group * kNvfp4GroupBytes;
    const std::uint8_t* chunk = group + 64 + k % kNvfp4Group / 4 * kNvfp4ChunkBytes;
    const float scale = num::e4m3_to_float(group[k % kNvfp4Group / 16 * kPanelRows + r]);
    for (int j = 0; j < 4; ++j) {
      const int at = nibble_at(w.order, j, r);
      const auto code = static_cast<std::uint8_t>(chunk[at / 2] >> (4 * (at % 2)) & 15);
      y[k + j] = num::mul(num::e2m1_to_float(code), scale);
    }
  }
}

void read_row(const PackedWeight& w, std::int64_t n, float* y) {
  switch (w.format) {
    case WeightFormat::f32:
      plain_row<float>(w, n, y, [](float v) { return v; });
      break;
    case WeightFormat::f16:
      plain_row<std::uint16_t>(w, n, y, [](auto v) { return num::f16_to_float(v); });
      break;
    case WeightFormat::bf16:
      plain_row<std::uint16_t>(w, n, y, [](auto v) { return num::bf16_to_float(v); });
      break;
    case WeightFormat::fp8_e4m3:
      plain_row<std::uint8_t>(w, n, y, [](auto v) { return num::e4m3_to_float(v); });
      break;
    case WeightFormat::nvfp4:
      w.layout == Layout::rows ? nvfp4_row_in_place(w, n, y) : nvfp4_row(w, n, y);
      break;
  }
  const float alpha = w.alpha[n];
  const std::int64_t across = (w.cols + kScaleBlock - 1) / kScaleBlock;
  for (std::int64_t k = 0; k < w.cols; ++k) {
    y[k] = num::mul(y[k], alpha);  // block128: 1, or a power of two
    if (w.block != nullptr) y[k] = num::mul(y[k], w.block[n / kScaleBlock * across + k / kScaleBlock]);
  }
}

}  // namespace

void embed(Parallel& parallel, const PackedWeight& table, const std::int32_t* tokens,
           std::int64_t rows, Out y) {
  parallel(rows, grain_of(table.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) read_row(table, tokens[t], y.data + t * y.stride);
  });
}

void gather_rows(Parallel& parallel, In x, const std::int32_t* row, std::int64_t outputs,
                 std::int64_t cols, Out y) {
  parallel(outputs, grain_of(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      std::memcpy(y.data + o * y.stride, x.data + row[o] * x.stride,
                  static_cast<std::size_t>(cols) * sizeof(float));
    }
  });
}

void add(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, In a, In b, Out y) {
  const RowwiseKernels& kernels = kernels_of(isa);
  over_pieces(parallel, rows, cols, [&](std::int64_t r, std::int64_t c, std::int64_t n) {
    kernels.add(a.data + r * a.stride + c, b.data + r * b.stride + c, n, y.data + r * y.stride + c);
  });
}

void swiglu(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, In gate, In up,
            Out y) {
  const RowwiseKernels& kernels = kernels_of(isa);
  over_pieces(parallel, rows, cols, [&](std::int64_t r, std::int64_t c, std::int64_t n) {
    kernels.swiglu(gate.data + r * gate.stride + c, up.data + r * up.stride + c, n,
                   y.data + r * y.stride + c);
  });
}

void sigmoid_gate(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t heads,
                  std::int64_t head_dim, In x, In gate, std::int64_t gate_head_stride, Out y) {
  const RowwiseKernels& kernels = kernels_of(isa);
  parallel(rows * heads, grain_of(head_dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = i / heads, h = i % heads;
      kernels.sigmoid_gate(x.data + r * x.stride + h * head_dim,
                           gate.data + r * gate.stride + h * gate_head_stride, head_dim,
                           y.data + r * y.stride + h * head_dim);
    }
  });
}

void rms_norm(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, In x,
              const float* weight, float eps, Out y) {
  const RowwiseKernels& kernels = kernels_of(isa);
  parallel(rows, grain_of(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernels.rms_norm(x.data + r * x.stride, weight, cols, eps, y.data + r * y.stride);
    }
  });
}

void add_rms_norm(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, const SumArgs& sum,
                  const float* weight, float eps, Out y) {
  const RowwiseKernels& kernels = kernels_of(isa);
  parallel(rows, grain_of(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* const of_row = sum.sum.data + r * sum.sum.stride;
      kernels.add(sum.a.data + r * sum.a.stride, sum.b.data + r * sum.b.stride, cols, of_row);
      kernels.rms_norm(of_row, weight, cols, eps, y.data + r * y.stride);
    }
  });
}

void gated_rms_norm(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t heads,
                    std::int64_t group, In x, In z, const float* weight, float eps, Out y) {
  const RowwiseKernels& kernels = kernels_of(isa);
  parallel(rows * heads, grain_of(group), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = i / heads, c = i % heads * group;
      kernels.gated_rms_norm(x.data + r * x.stride + c, z.data + r * z.stride + c, weight, group,
                             eps, y.data + r * y.stride + c);
    }
  });
}

}  // namespace nibble::cpu
