#include "backends/cpu/ops/experts.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/kernels/experts.h"

namespace nibble::cpu {
namespace {

using Kind = ActivationFormat::Kind;

const ExpertKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, expert_kernels());
}

// Counting, which keeps the order of equal keys.
void sort_pairs(const ExpertRouteArgs& a) {
  const auto pairs = static_cast<std::int32_t>(a.rows * a.per_token);
  std::fill_n(a.starts, a.experts + 1, 0);
  for (std::int32_t j = 0; j < pairs; ++j) ++a.starts[a.ids[j] + 1];
  for (std::int32_t e = 0; e < a.experts; ++e) a.starts[e + 1] += a.starts[e];
  for (std::int32_t j = 0; j < pairs; ++j) {
    const std::int32_t i = a.starts[a.ids[j]]++;
    a.order[i] = j;
    a.place[j] = i;
  }
  // Each start has moved to the next expert's.
  std::copy_backward(a.starts, a.starts + a.experts, a.starts + a.experts + 1);
  a.starts[0] = 0;
}

constexpr std::int64_t kGatherRows = kOperandRows;
constexpr std::int64_t kSpareBytes = 64;  // between the two arrays that lie there

std::byte* aligned64(std::byte* at) {
  return at + (64 - reinterpret_cast<std::uintptr_t>(at) % 64) % 64;
}

struct ScaleRow {
  std::int64_t bytes, element;
};
ScaleRow scale_row(Kind kind, std::int64_t cols) {
  switch (kind) {
    case Kind::nvfp4_static:
      return {cols / 16, 1};
    case Kind::fp8_token:
      return {4, 4};
    case Kind::fp8_token_group128:
      return {(cols + 127) / 128 * 4, 4};
    default:
      return {0, 1};
  }
}

// Rows of x in the order that `source` says, without gaps, as a LinearArgs reads them.
class Gathered {
 public:
  Gathered(const LinearArgs& from, std::int64_t cols, std::byte* memory) : from_(from), args_(from) {
    const bool plain = from.format.kind == Kind::none;
    row_bytes_ = plain ? cols * 4 : from.format.kind == Kind::nvfp4_static ? cols / 2 : cols;
    x_ = memory;
    scale_ = scale_row(from.format.kind, cols);
    std::byte* const behind = aligned64(x_ + kGatherRows * row_bytes_);
    args_.x_stride = plain ? cols : row_bytes_;
    if (plain) {
      args_.x = reinterpret_cast<const float*>(x_);
    } else {
      args_.codes = reinterpret_cast<const std::uint8_t*>(x_);
    }
    if (scale_.bytes > 0) {
      scales_ = behind;
      args_.scales = scales_;
      args_.scale_stride = scale_.bytes / scale_.element;
    }
    if (from.x_exponents != nullptr) {
      exponents_ = reinterpret_cast<std::int32_t*>(behind);
      args_.x_exponents = exponents_;
    }
  }

  template <class Source>
  const LinearArgs& rows(Parallel& parallel, std::int64_t count, const Source& source) {
    const std::int64_t element = from_.format.kind == Kind::none ? 4 : 1;
    const auto* const x = from_.format.kind == Kind::none ? reinterpret_cast<const std::byte*>(from_.x)
                                                          : reinterpret_cast<const std::byte*>(from_.codes);
    parallel(count, std::max<std::int64_t>(1, 65536 / row_bytes_), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t row = source(r);
        std::memcpy(x_ + r * row_bytes_, x + row * from_.x_stride * element, static_cast<std::size_t>(row_bytes_));
        if (scales_ != nullptr) {
          std::memcpy(scales_ + r * scale_.bytes,
                      static_cast<const std::byte*>(from_.scales) + row * from_.scale_stride * scale_.element,
                      static_cast<std::size_t>(scale_.bytes));
        }
        if (exponents_ != nullptr) exponents_[r] = from_.x_exponents[row];
      }
    });
    args_.rows = count;
    return args_;
  }

 private:
  const LinearArgs& from_;
  LinearArgs args_;
  std::int64_t row_bytes_;
  ScaleRow scale_;
  std::byte *x_, *scales_ = nullptr;
  std::int32_t* exponents_ = nullptr;
};

// Of x itself, from row `first` on.
LinearArgs rows_from(LinearArgs a, std::int64_t first) {
  if (a.x != nullptr) a.x += first * a.x_stride;
  if (a.codes != nullptr) a.codes += first * a.x_stride;
  if (a.scales != nullptr) {
    a.scales = static_cast<const std::byte*>(a.scales) +
               first * a.scale_stride * scale_row(a.format.kind, a.weight->cols).element;
  }
  if (a.x_exponents != nullptr) a.x_exponents += first;
  return a;
}

}  // namespace

void expert_route(Isa isa, Parallel& parallel, const ExpertRouteArgs& a) {
  const ExpertKernels& kernels = kernels_of(isa);
  parallel(a.rows, std::max<std::int64_t>(1, 4096 / a.experts), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels.route(a.logits.data + t * a.logits.stride, a.experts, a.per_token, a.normalised,
                    a.weights.data + t * a.weights.stride, a.ids + t * a.per_token);
    }
  });
  sort_pairs(a);
}

std::int64_t grouped_gather_bytes(std::int64_t cols) {
  // float32 has the widest rows, and their exponents are no more than scales of 128 columns
  return kGatherRows * (cols + (cols + 127) / 128) * 4 + kSpareBytes;
}

void grouped_linear(Profile profile, const Kernels& kernels, Parallel& parallel, const GroupedLinearArgs& a) {
  for (std::size_t e = 0; e < a.weights.size(); ++e) {
    const std::int64_t begin = a.starts[e], end = a.starts[e + 1];
    if (begin == end) continue;
    LinearArgs of = a.linear;
    of.weight = &a.weights[e];
    of.y = a.linear.y + begin * a.linear.y_stride;
    if (a.per_token == 0) {
      LinearArgs rows = rows_from(of, begin);
      rows.rows = end - begin;
      any_linear(profile, kernels, parallel, rows);
      continue;
    }
    Gathered gathered(of, of.weight->cols, a.gather);
    for (std::int64_t first = begin; first < end; first += kGatherRows) {
      const std::int64_t count = std::min(kGatherRows, end - first);
      const auto source = [&](std::int64_t r) { return a.order[first + r] / a.per_token; };
      LinearArgs rows = gathered.rows(parallel, count, source);
      rows.y = a.linear.y + first * a.linear.y_stride;
      any_linear(profile, kernels, parallel, rows);
    }
  }
}

void expert_combine(Isa isa, Parallel& parallel, const ExpertCombineArgs& a) {
  const ExpertKernels& kernels = kernels_of(isa);
  constexpr std::int64_t kPiece = 4096;
  const std::int64_t pieces = (a.cols + kPiece - 1) / kPiece;
  parallel(a.rows * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t t = i / pieces, c = i % pieces * kPiece, n = std::min(kPiece, a.cols - c);
      float* const y = a.y.data + t * a.y.stride + c;
      std::fill_n(y, n, 0.0f);
      for (std::int32_t s = 0; s < a.per_token; ++s) {
        const std::int64_t row = a.place[t * a.per_token + s];
        kernels.add_scaled(a.x.data + row * a.x.stride + c, a.weights.data[t * a.weights.stride + s], n, y);
      }
      if (a.shared.data == nullptr) continue;
      const float gate = num::sigmoid(a.shared_gate.data[t * a.shared_gate.stride]);
      kernels.add_scaled(a.shared.data + t * a.shared.stride + c, gate, n, y);
    }
  });
}

}  // namespace nibble::cpu
