// weight_image.cu: checkpoint bytes to a weight image, on the device.
//   arena  codes | nvfp4 block scales (e5m3: behind each unit's codes) | alpha [padded rows] | block128 scales | a word that is not zero where a
//   code or block scale is what fast kernels cannot decode, each at a multiple of 256
//   codes, scales: the order of device/weight_decode.cuh, or of device/weight_f16.cuh for operand f16; rows and
//   columns padded to 64 with zeros
//   e5m3 scales (sm90) hold no sign and no zero, f16 ones (sm70) no sign: a block's codes take these over, so that
//   every product is the same
//   f16 and f32 values are rounded to bf16 here, once; for operand f16 all three become f16 with a power of
//   two for each row, which alpha holds
//   pieces: whole groups of 64 rows, copied through one half of the staging memory while the other half's
//   copy and kernel may still run
#include "backends/cuda/weight_image.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/weight_pack.cuh"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr std::uint64_t kAlign = 256;
static_assert(f16_unit_bytes(WeightFormat::nvfp4) == unit_bytes(WeightFormat::nvfp4) &&
              f16_unit_bytes(WeightFormat::fp8_e4m3) == unit_bytes(WeightFormat::fp8_e4m3) &&
              f16_unit_bytes(WeightFormat::bf16) == unit_bytes(WeightFormat::bf16));  // sizes do not tell the order
constexpr std::int64_t kMaxDim = std::int64_t{1} << 31, kScaleBlock = 128;

std::uint64_t aligned(std::uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(ErrorCode code, const Weight& w, const std::string& what) {
  throw Error(code, "[pack] " + w.name + ": " + what);
}
void cuda_ok(cudaError_t e, const Weight& w, const char* what) {
  if (e != cudaSuccess) {
    refuse(ErrorCode::internal, w, std::string(what) + ": " + cudaGetErrorString(e));
  }
}

// Of one row in the file.
std::int64_t row_bytes(const Weight& w) {
  switch (w.format) {
    case WeightFormat::f32:
      return w.cols * 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return w.cols * 2;
    case WeightFormat::fp8_e4m3:
      return w.cols;
    case WeightFormat::nvfp4:
      return w.cols / 2;
  }
  return 0;
}

struct Sizes {
  std::int64_t padded_rows = 0, padded_cols = 0;
  std::uint64_t scales_at = 0, alpha_at = 0, block_at = 0, odd_at = 0, total = 0;
};

// Of an image of `parts` weights like this one.
Sizes sizes_of(const Weight& w, std::int64_t parts = 1) {
  if (w.rows <= 0 || w.cols <= 0 || w.rows > kMaxDim || w.cols > kMaxDim) {
    refuse(ErrorCode::bad_file, w,
           "expected a matrix of 1 to 2^31 rows and columns, found [" + std::to_string(w.rows) +
               ", " + std::to_string(w.cols) + "]");
  }
  const bool nvfp4 = w.format == WeightFormat::nvfp4;
  if (nvfp4 && w.cols % 16 != 0) {
    refuse(ErrorCode::unsupported, w,
           "expected a multiple of 16 columns for nvfp4, found " + std::to_string(w.cols));
  }
  if (nvfp4 && w.scale_layout == ScaleLayout::block128) {
    refuse(ErrorCode::unsupported, w,
           "expected a tensor or row scale for nvfp4, found 128x128 blocks");
  }
  const std::int64_t blocks = ceil_div(w.rows, kScaleBlock) * ceil_div(w.cols, kScaleBlock);
  const std::int64_t scales = w.scale_layout == ScaleLayout::none     ? 0
                              : w.scale_layout == ScaleLayout::tensor ? 1
                              : w.scale_layout == ScaleLayout::row    ? w.rows
                                                                      : blocks;
  if (w.scales.size() != static_cast<std::uint64_t>(scales)) {
    refuse(ErrorCode::bad_file, w,
           "expected " + std::to_string(scales) + " scales, found " +
               std::to_string(w.scales.size()));
  }
  Sizes s;
  s.padded_rows = ceil_div(parts * w.rows, kTileRows) * kTileRows;
  s.padded_cols = ceil_div(w.cols, kTileCols) * kTileCols;
  const auto units = checked_mul(static_cast<std::uint64_t>(s.padded_rows / kUnitRows),
                                 static_cast<std::uint64_t>(s.padded_cols / kTileCols));
  const auto codes = checked_mul(*units, static_cast<std::uint64_t>(unit_bytes(w.format)));
  if (!codes || *codes >> 60 != 0) {
    refuse(ErrorCode::bad_file, w, "its packed size exceeds 2^60 bytes");
  }
  s.scales_at = aligned(*codes);
  s.alpha_at = s.scales_at + (nvfp4 ? aligned(*units * kUnitScaleBytes) : 0);
  s.block_at = s.alpha_at + aligned(static_cast<std::uint64_t>(s.padded_rows) * sizeof(float));
  s.odd_at = s.block_at;
  if (w.scale_layout == ScaleLayout::block128) {
    s.odd_at += aligned(static_cast<std::uint64_t>(blocks) * sizeof(float));
  }
  s.total = s.odd_at + kAlign;
  return s;
}

void expect_bytes(const Weight& w, const char* what, std::uint64_t expected, std::uint64_t found) {
  if (expected != found) {
    refuse(ErrorCode::bad_file, w,
           "expected " + std::to_string(expected) + " bytes of " + what + ", found " +
               std::to_string(found));
  }
}

// Slots of the staging memory, filled in turn.
class Pipe {
 public:
  Pipe(const Weight& w, const Staging& s, std::int64_t largest_group)
      : weight_(w), staging_(s), group_(static_cast<std::size_t>(largest_group)) {
    if (group_ > s.bytes) {
      refuse(ErrorCode::unsupported, w,
             "64 of its rows are " + std::to_string(group_) + " bytes, staging memory has " +
                 std::to_string(s.bytes));
    }
    const std::size_t half = s.bytes / 2 / kAlign * kAlign;
    slots_ = group_ <= half ? 2 : 1;
    slot_bytes_ = slots_ == 2 ? half : s.bytes;
    for (int i = 0; i < slots_; ++i) {
      cuda_ok(cudaEventCreateWithFlags(&done_[i], cudaEventDisableTiming), w, "event");
    }
  }
  ~Pipe() {
    cudaStreamSynchronize(staging_.stream);  // copies still read the host memory
    for (int i = 0; i < slots_; ++i) cudaEventDestroy(done_[i]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  // Calls launch(piece bytes on the device, first row, rows) for groups of rows of the image that all of `from` make,
  // equal shares of each.
  template <class F>
  void rows(std::span<const Bytes> from, std::int64_t bytes_a_row, F launch) {
    const auto parts = static_cast<std::int64_t>(from.size()), all = parts * weight_.rows;
    const std::int64_t most = kMaxTiles * kTileRows;
    const std::int64_t step =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(slot_bytes_) / bytes_a_row / kTileRows *
                                     kTileRows, kTileRows, most);
    for (std::int64_t first = 0; first < all; first += step) {
      const std::int64_t count = std::min(step, all - first);
      const auto share = static_cast<std::size_t>(count / parts * bytes_a_row);
      std::byte* to = slot();
      for (const Bytes& part : from) {
        std::memcpy(to, part.data() + first / parts * bytes_a_row, share);
        to += share;
      }
      launch(send(share * from.size(), nullptr), first, count);
      finish();
    }
  }
  void floats(const std::vector<float>& from, std::byte* to) {
    const auto* bytes = reinterpret_cast<const std::byte*>(from.data());
    const std::size_t total = from.size() * sizeof(float);
    for (std::size_t at = 0; at < total; at += slot_bytes_) {
      const std::size_t some = std::min(slot_bytes_, total - at);
      std::memcpy(slot(), bytes + at, some);
      send(some, to + at);
      finish();
    }
  }

 private:
  static constexpr std::int64_t kMaxTiles = 32768;  // below the limit of gridDim.y

  // The host's part of the slot, once it is free.
  std::byte* slot() const {
    cuda_ok(cudaEventSynchronize(done_[at_]), weight_, "upload");
    return staging_.host + static_cast<std::size_t>(at_) * slot_bytes_;
  }
  // What lies there, to `to` or to the slot's device memory.
  const std::byte* send(std::size_t bytes, std::byte* to) const {
    const std::size_t offset = static_cast<std::size_t>(at_) * slot_bytes_;
    if (to == nullptr) to = staging_.device + offset;
    cuda_ok(cudaMemcpyAsync(to, staging_.host + offset, bytes, cudaMemcpyHostToDevice,
                            staging_.stream), weight_, "upload");
    return to;
  }
  void finish() {
    cuda_ok(cudaGetLastError(), weight_, "packing");
    cuda_ok(cudaEventRecord(done_[at_], staging_.stream), weight_, "upload");
    at_ = (at_ + 1) % slots_;
  }

  const Weight& weight_;
  const Staging& staging_;
  std::size_t group_, slot_bytes_ = 0;
  int slots_ = 0, at_ = 0;
  cudaEvent_t done_[2] = {nullptr, nullptr};
};

void launch_units(WeightFormat f, const Piece& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(p.rows);
  if (f == WeightFormat::f32) return row_units<WeightFormat::f32><<<blocks, 128, 0, stream>>>(p);
  if (f == WeightFormat::f16) return row_units<WeightFormat::f16><<<blocks, 128, 0, stream>>>(p);
  row_units<WeightFormat::bf16><<<blocks, 128, 0, stream>>>(p);
}

template <WeightFormat F>
void launch_pack(const Piece& p, bool f16, std::byte* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.k_tiles),
                  static_cast<unsigned>(ceil_div(p.rows, kTileRows)));
  if (f16) {
    pack_f16_codes<F><<<grid, 128, 0, stream>>>(p, out);
  } else {
    pack_codes<F><<<grid, 128, 0, stream>>>(p, out);
  }
}
void launch_pack(WeightFormat f, const Piece& p, bool f16, std::byte* out, cudaStream_t stream) {
  if (p.unit != nullptr) launch_units(f, p, stream);
  switch (f) {
    case WeightFormat::f32:
      return launch_pack<WeightFormat::f32>(p, f16, out, stream);
    case WeightFormat::f16:
      return launch_pack<WeightFormat::f16>(p, f16, out, stream);
    case WeightFormat::bf16:
      return launch_pack<WeightFormat::bf16>(p, f16, out, stream);
    case WeightFormat::fp8_e4m3:
      return launch_pack<WeightFormat::fp8_e4m3>(p, f16, out, stream);
    case WeightFormat::nvfp4:
      return launch_pack<WeightFormat::nvfp4>(p, f16, out, stream);
  }
}

// [padded rows of the image]
std::vector<float> alpha_of(std::span<const Weight* const> parts, std::int64_t padded_rows, ScaleCode code) {
  const float unit = code == ScaleCode::e5m3 ? num::kSm90Nvfp4Scale : 1.0f;
  std::vector<float> alpha(static_cast<std::size_t>(padded_rows), 0.0f);
  const std::int64_t half = parts.front()->rows, rows = static_cast<std::int64_t>(parts.size()) * half;
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int64_t from = parts.size() == 1 ? n : gate_up_row(n, half);
    const Weight& w = *parts[static_cast<std::size_t>(from / half)];
    const float scale = w.scale_layout == ScaleLayout::row      ? w.scales[static_cast<std::size_t>(from % half)]
                        : w.scale_layout == ScaleLayout::tensor ? w.scales[0]
                                                                : 1.0f;
    alpha[static_cast<std::size_t>(n)] = num::mul(scale, unit);
  }
  return alpha;
}

void expect_pair(const Weight& gate, const Weight& up) {
  if (gate.format != up.format || gate.rows != up.rows || gate.cols != up.cols ||
      gate.activation.kind != up.activation.kind) {
    refuse(ErrorCode::internal, gate, "expected the shape and formats of " + up.name);
  }
  for (const Weight* w : {&gate, &up}) {
    if (w->rows % 8 != 0) {
      refuse(ErrorCode::internal, *w, "expected a multiple of 8 rows, found " + std::to_string(w->rows));
    }
    if (w->scale_layout == ScaleLayout::block128) {
      refuse(ErrorCode::internal, *w, "expected a tensor or row scale, found 128x128 blocks");
    }
  }
}

// Of one weight, or of gate and up.
WeightImage pack_parts(std::span<const Weight* const> parts, std::byte* arena, const Staging& staging, ArchPath path,
                       bool fp8_unit) {
  const Weight& weight = *parts.front();
  const auto count_of_parts = static_cast<std::int64_t>(parts.size());
  const DType operand = operand_of(path);
  const Sizes s = sizes_of(weight, count_of_parts);
  if (reinterpret_cast<std::uintptr_t>(arena) % kAlign != 0) {
    refuse(ErrorCode::internal, weight, "expected an arena aligned to 256 bytes");
  }
  const bool nvfp4 = weight.format == WeightFormat::nvfp4;
  const bool by_row = operand == DType::f16 && !nvfp4 && weight.format != WeightFormat::fp8_e4m3;
  if (by_row && weight.scale_layout != ScaleLayout::none) {
    refuse(ErrorCode::unsupported, weight,
           std::string("expected no scales beside unquantised values in f16, found a ") +
               scale_layout_name(weight.scale_layout) + " scale");
  }
  const auto rows = static_cast<std::uint64_t>(weight.rows);
  const std::int64_t code_row = row_bytes(weight), scale_row = weight.cols / 16;
  std::vector<Bytes> codes, block_scales;
  for (const Weight* w : parts) {
    expect_bytes(*w, "codes", rows * static_cast<std::uint64_t>(code_row), w->codes.size());
    if (nvfp4) {
      expect_bytes(*w, "block scales", rows * static_cast<std::uint64_t>(scale_row), w->block_scales.size());
    }
    codes.push_back(w->codes);
    block_scales.push_back(w->block_scales);
  }

  WeightImage image;
  image.format = weight.format;
  image.rows = count_of_parts * weight.rows;
  image.order_rows = weight.order_rows();
  image.gate_up = count_of_parts == 2;
  image.cols = weight.cols;
  image.padded_rows = s.padded_rows;
  image.padded_cols = s.padded_cols;
  image.codes = arena;
  auto* const alpha = reinterpret_cast<float*>(arena + s.alpha_at);
  image.alpha = alpha;
  image.values = operand;
  if (nvfp4) image.scale_code = scale_code_of(path);
  // The FP4 unit multiplies NVFP4 by NVFP4 only; other inputs meet the weight on m16n8k16.
  const bool fp4 = path == ArchPath::sm120 && weight.activation.kind == ActivationFormat::Kind::nvfp4_static;
  if (nvfp4 && fp4) image.order = CodeOrder::k64;
  const bool fp8 = fp8_unit && path == ArchPath::sm90 && weight.format == WeightFormat::fp8_e4m3;
  if (fp8) image.order = CodeOrder::k32;
  auto* const odd = reinterpret_cast<std::uint32_t*>(arena + s.odd_at);
  image.odd = odd;
  cuda_ok(cudaMemsetAsync(odd, 0, sizeof *odd, staging.stream), weight, "clearing");
  const bool together = nvfp4 && image.scale_code == ScaleCode::e5m3;
  if (nvfp4) image.scales = arena + (together ? static_cast<std::uint64_t>(unit_bytes(weight.format)) : s.scales_at);
  const bool blocks = weight.scale_layout == ScaleLayout::block128;
  if (blocks) image.block = reinterpret_cast<const float*>(arena + s.block_at);
  image.segments = num::linear_segments(image.segment_rows(), weight.cols, blocks || fp8);

  const std::int64_t k_tiles = s.padded_cols / kTileCols;
  const std::int64_t group = std::min<std::int64_t>(kTileRows, image.rows) * code_row;
  Pipe pipe(weight, staging, group);
  if (by_row) {  // rows that are padding have no kernel's
    cuda_ok(cudaMemsetAsync(alpha, 0, static_cast<std::size_t>(s.padded_rows) * sizeof(float),
                            staging.stream), weight, "clearing");
  }
  pipe.rows(codes, code_row,
            [&](const std::byte* data, std::int64_t first, std::int64_t count) {
              launch_pack(weight.format,
                          {data, first, count, weight.cols, k_tiles, by_row ? alpha : nullptr, odd,
                           image.scale_code, image.order, image.gate_up}, operand == DType::f16, arena,
                          staging.stream);
            });
  if (nvfp4) {
    pipe.rows(block_scales, scale_row,
              [&](const std::byte* data, std::int64_t first, std::int64_t count) {
                const dim3 grid(static_cast<unsigned>(k_tiles),
                                static_cast<unsigned>(ceil_div(count, kTileRows)));
                const auto pack = operand == DType::f16 ? pack_f16_scales : pack_scales;
                pack<<<grid, 256, 0, staging.stream>>>(
                    Piece{data, first, count, weight.cols, k_tiles, nullptr, odd, image.scale_code, image.order,
                          image.gate_up},
                    arena, const_cast<std::byte*>(image.scales));
              });
  }
  if (!by_row) pipe.floats(alpha_of(parts, s.padded_rows, image.scale_code), arena + s.alpha_at);
  if (blocks) pipe.floats(weight.scales, arena + s.block_at);
  return image;
}

}  // namespace

std::uint64_t image_bytes(const Weight& weight) { return sizes_of(weight).total; }
std::uint64_t gate_up_bytes(const Weight& gate, const Weight& up) {
  expect_pair(gate, up);
  static_cast<void>(sizes_of(up));  // looks at its scales
  return sizes_of(gate, 2).total;
}

WeightImage pack_weight(const Weight& weight, std::byte* arena, const Staging& staging, ArchPath path, bool fp8_unit) {
  const Weight* const parts[] = {&weight};
  return pack_parts(parts, arena, staging, path, fp8_unit);
}
WeightImage pack_gate_up(const Weight& gate, const Weight& up, std::byte* arena, const Staging& staging,
                         ArchPath path) {
  static_cast<void>(gate_up_bytes(gate, up));
  if (operand_of(path) == DType::f16) refuse(ErrorCode::internal, gate, "expected a path with bf16 operands");
  const Weight* const parts[] = {&gate, &up};
  return pack_parts(parts, arena, staging, path, false);
}

void look_at_packed(WeightImage& image) {
  std::uint32_t odd = 0;
  const cudaError_t e = cudaMemcpy(&odd, image.odd, sizeof odd, cudaMemcpyDeviceToHost);
  if (e != cudaSuccess) {
    throw Error(ErrorCode::internal, std::string("[pack] looking at an image: ") + cudaGetErrorString(e));
  }
  image.plain = odd == 0;
}

}  // namespace nibble::cuda
