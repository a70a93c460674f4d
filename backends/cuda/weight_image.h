// weight_image.h: a weight as the CUDA backend owns it: packed once, on the device, at load.
// Linear, Embed and a tied head read the same image.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/arch_path.h"
#include "core/base/dtype.h"
#include "core/checkpoint/weight.h"
#include "core/numerics/matrix_order.h"

namespace nibble::cuda {

// Device addresses inside the weight arena. Layout of codes and scales: device/weight_decode.cuh, and
// device/weight_f16.cuh where `values` is f16, whatever the format.
struct WeightImage {
  WeightFormat format = WeightFormat::bf16;
  std::int64_t rows = 0, cols = 0;                // N, K
  std::int64_t order_rows = 0;                    // Weight's; of gate_up either weight's. 0: its own rows
  std::int64_t segment_rows() const { return order_rows > 0 ? order_rows : gate_up ? rows / 2 : rows; }
  std::int64_t padded_rows = 0, padded_cols = 0;  // what lies there; padding is zero
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;  // nvfp4 block scales
  ScaleCode scale_code = ScaleCode::e4m3;
  CodeOrder order = CodeOrder::k16;   // k64: nvfp4 on sm120, where the weight's inputs are declared nvfp4 too; k32: fp8 on
                                      // sm90 in mode a8
  const float* block = nullptr;       // block128 scales [ceil(N / 128), ceil(K / 128)] or null
  const float* alpha = nullptr;   // [padded_rows]: tensor or row scale, 1 for none and block128;
                                  // of f16 values 2^e of the row; of e5m3 scales times 2^7
  num::Segments segments{1, 64};  // of a sum over K with unquantised or per-row activations
  DType values = DType::bf16;     // of operands; unquantised weights became bf16, or f16 scaled by row
  const std::uint32_t* odd = nullptr;  // on the device: look_at_packed()
  bool plain = false;  // no FP8 code is NaN; false until looked at
  // Of pack_gate_up: rows of gate and up take turns (gate_up_row). A kernel that reads it makes SwiGLU's y, half as many
  // columns as there are rows; `segments` are those of either weight alone.
  bool gate_up = false;
};

// Bytes of the image in the arena, a multiple of 256.
std::uint64_t image_bytes(const Weight& weight);
std::uint64_t gate_up_bytes(const Weight& gate, const Weight& up);

// Uploads through `staging` (pinned host memory, `staging_bytes` of it, and as much device memory
// at `device_staging`), piece by piece, and packs on the device into `arena` (256-byte aligned,
// image_bytes() of it). Returns when the pieces are enqueued and the host memory may be reused.
struct Staging {
  std::byte *host = nullptr, *device = nullptr;
  std::size_t bytes = 0;
  cudaStream_t stream = nullptr;
};
// `path` decides what values and scales become, and with weight.activation and fp8_unit (Linear's) the order of codes.
WeightImage pack_weight(const Weight& weight, std::byte* arena, const Staging& staging,
                        ArchPath path = ArchPath::sm90, bool fp8_unit = false);

// The same for one image of two weights of the same shape and format, scales each its own: a multiple of 8 rows, no
// scales of 128x128 blocks, a path with bf16 operands.
WeightImage pack_gate_up(const Weight& gate, const Weight& up, std::byte* arena, const Staging& staging,
                         ArchPath path = ArchPath::sm90);

// Sets `plain`; the packing must have finished.
void look_at_packed(WeightImage& image);

}  // namespace nibble::cuda
