#include "backends/cpu/ops/quantize.h"

#include <algorithm>

#include "backends/cpu/kernels/quantize.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

const QuantizeKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, quantize_kernels());
}

}  // namespace

void check_quantize(const QuantizeArgs& a) {
  if (a.format.kind == ActivationFormat::Kind::none ||
      (a.format.kind == ActivationFormat::Kind::nvfp4_static && a.cols % 16 != 0)) {
    throw Error(ErrorCode::internal,
                "[quantize] expected a format, and for nvfp4 a multiple of 16 columns, found " +
                    std::string(activation_format_name(a.format.kind)) + " and " +
                    std::to_string(a.cols));
  }
}

void quantize_columns(Isa isa, const QuantizeArgs& a, std::int64_t row, std::int64_t first,
                      std::int64_t count, const float* x) {
  const QuantizeKernels& kernels = kernels_of(isa);
  std::uint8_t* const codes = a.codes + row * a.code_stride;
  auto* const bytes = static_cast<std::uint8_t*>(a.scales);
  auto* const floats = static_cast<float*>(a.scales);
  switch (a.format.kind) {
    case ActivationFormat::Kind::none:
      return;
    case ActivationFormat::Kind::nvfp4_static:
      return kernels.nvfp4(x, count, a.format.scale, codes + first / 2,
                           bytes + row * a.scale_stride + first / 16);
    case ActivationFormat::Kind::fp8_tensor_static:
      return kernels.fp8_tensor(x, count, a.format.scale, codes + first);
    case ActivationFormat::Kind::fp8_token:
      return kernels.fp8_dynamic(x, count, codes, floats + row * a.scale_stride);
    case ActivationFormat::Kind::fp8_token_group128:
      for (std::int64_t k = 0; k < count; k += 128) {
        kernels.fp8_dynamic(x + k, std::min<std::int64_t>(128, count - k), codes + first + k,
                            floats + row * a.scale_stride + (first + k) / 128);
      }
  }
}

void quantize(Isa isa, Parallel& parallel, const QuantizeArgs& a) {
  check_quantize(a);
  parallel(a.rows, std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, a.cols)),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t row = begin; row < end; ++row) {
               quantize_columns(isa, a, row, 0, a.cols, a.x + row * a.x_stride);
             }
           });
}

}  // namespace nibble::cpu
