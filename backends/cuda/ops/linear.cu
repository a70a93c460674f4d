// linear.cu: which kernel of Linear serves. Kernels of one path give the same bits; the program class's largest
// number of rows decides between them, never the step's own.
#include "backends/cuda/ops/linear.h"

#include <cuda_runtime.h>

#include <string>

#include "backends/cuda/device/mma_f16.cuh"
#include "backends/cuda/device/mma_fp4.cuh"
#include "backends/cuda/device/sm90.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "backends/cuda/tensor_map.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr std::int64_t kFewRows = 8, kFewSm70Rows = 32;

// Compiled with the kernels, so that their attributes tell which code the card took: of what virtual
// architecture, and whether that had the FP4 instruction or wgmma (feature sets have no number to ask for).
#if defined(NIBBLE_NATIVE_FP4)
constexpr int kProbeThreads = 64;
#elif defined(NIBBLE_SM90A)
constexpr int kProbeThreads = 96;
#else
constexpr int kProbeThreads = 32;
#endif
__global__ void __launch_bounds__(kProbeThreads) path_probe() {}

cudaFuncAttributes probe() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, path_probe) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
  return attributes;
}
void launch_sm90(const Launch& to, const LinearParams& p) {
  if (to.max_of(p.rows) <= kFewRows) {
    launch_few(to, p);
  } else {
    launch_tile(to, p);
  }
}

void launch_sm70_tuned(const Launch& to, const LinearParams& p) {
  if (to.max_of(p.rows) <= kFewSm70Rows) {
    launch_sm70_few(to, p);
  } else {
    launch_sm70_tile(to, p);
  }
}

// Why a kernel does not serve; null: it does.
const char* refuse_gate_up(const LinearArgs& a, bool has_epilogue) {
  if (!a.weight.gate_up) return nullptr;
  if (!has_epilogue) return "it has no SwiGLU behind its sums";
  return a.y.dtype == DType::bf16 ? nullptr : "SwiGLU makes bf16";
}
const char* refuse_sm120(const Launch&, const LinearArgs& a) {
  if (a.path != ArchPath::sm120) return "the path is not sm120";
  if (a.weight.format != WeightFormat::nvfp4) return "the weight is not nvfp4";
  if (a.weight.order != CodeOrder::k64) return "codes were not packed for the FP4 unit";
  if (a.format.kind != ActivationKind::nvfp4_static) return "the activations are not nvfp4";
  return refuse_gate_up(a, false);
}
bool divides16(const View& v) {
  return (reinterpret_cast<std::uintptr_t>(v.data) | static_cast<std::uintptr_t>(v.stride)) % 16 == 0;
}
const char* refuse_fp4(const Launch& to, const LinearArgs& a) {
  if (const char* why = refuse_sm120(to, a)) return why;
  if (!divides16(a.x)) return "rows of x are not aligned to 16 bytes";
  if (!divides16(a.x_scales)) return "rows of x's scales are not aligned to 16 bytes";
  if (!has_fp4() && !has_wgmma()) return "the card runs no code for sm_120a or sm_90a";
  if (!has_tensor_maps()) return "the driver makes no tensor maps";
  return nullptr;
}
const char* refuse_sm70(const Launch&, const LinearArgs& a) {
  if (a.path != ArchPath::sm70) return "the path is not sm70";
  if (a.weight.values != DType::f16) return "the weight was not packed for f16 operands";
  if (a.format.kind == ActivationKind::none && a.x.dtype != DType::f16) return "x is not f16";
  if (a.format.kind == ActivationKind::none && a.x.exponents == nullptr) return "x has no exponents";
  return refuse_gate_up(a, false);
}
const char* refuse_sm70_tuned(const Launch& to, const LinearArgs& a) {
  if (const char* why = refuse_sm70(to, a)) return why;
  constexpr std::int64_t kMostRows = std::int64_t{65535} * 256, kMost = std::int64_t{1} << 31;
  if (a.format.kind != ActivationKind::none) return "x is quantised";
  if (a.weight.format == WeightFormat::fp8_e4m3 && !a.weight.plain) return "an FP8 code is NaN";
  if (a.y.dtype != DType::f32) return "y is not f32";
  if (a.weight.cols % 8 != 0) return "the weight's columns are no multiple of 8";
  if (reinterpret_cast<std::uintptr_t>(a.x.data) % 16 != 0) return "x is not aligned to 16 bytes";
  if (a.x.stride % 8 != 0) return "rows of x are not aligned to 16 bytes";
  if (a.weight.padded_rows > kMostRows) return "the weight has more than 65535 tiles of 256 rows";
  if (a.weight.padded_rows / 32 * (a.weight.padded_cols / 32) >= kMost ||
      to.max_of(a.x.rows) * (a.x.stride / 8) >= kMost) {
    return "the weight or x has 2^31 units or more";
  }
  return nullptr;
}
const char* refuse_a8_plain(const Launch&, const LinearArgs& a) {
  if (a.weight.order != CodeOrder::k32) return "codes were not packed for the FP8 unit";
  if (a.format.kind != ActivationKind::fp8_token) return "the activations are not fp8 by row";
  return nullptr;
}
const char* refuse_a8(const Launch& to, const LinearArgs& a) {
  if (const char* why = refuse_a8_plain(to, a)) return why;
  if (!has_wgmma()) return "the card runs no code for sm_90a";
  if (!has_tensor_maps()) return "the driver makes no tensor maps";
  if (to.sums == nullptr || to.multiprocessors <= 0) return "there is no room for partial sums";
  if (!divides16(a.x)) return "rows of x are not aligned to 16 bytes";
  return nullptr;
}
bool never() { return false; }
// Kept small: it is asked for each op at load.
const char* refuse_wgmma(const Launch& to, const LinearArgs& a) {
  if (a.path != ArchPath::sm90) return "the path is not sm90";
  if (!has_wgmma()) return "the card runs no code for sm_90a";
  if (!has_tensor_maps()) return "the driver makes no tensor maps";
  if (a.weight.values != DType::bf16) return "the weight was not packed for bf16 operands";
  if (a.weight.order != CodeOrder::k16) return "codes were packed for the FP8 unit";
  if (a.format.kind != ActivationKind::none) return "x is quantised";
  if (!a.weight.plain) return "an FP8 code is NaN";
  if (a.weight.format == WeightFormat::nvfp4 && a.weight.scale_code != ScaleCode::e5m3) {
    return "block scales were not packed for sm90";
  }
  if (to.sums == nullptr || to.multiprocessors <= 0) return "there is no room for partial sums";
  if (reinterpret_cast<std::uintptr_t>(a.x.data) % 16 != 0) return "x is not aligned to 16 bytes";
  if (a.x.stride % 8 != 0) return "rows of x are not aligned to 16 bytes";
  if (a.weight.gate_up && (a.y.stride % 2 != 0 || reinterpret_cast<std::uintptr_t>(a.y.data) % 4 != 0)) {
    return "rows of y are not aligned to 4 bytes";
  }
  return refuse_gate_up(a, true);
}
const char* refuse_sm90(const Launch&, const LinearArgs& a) {
  if (a.path == ArchPath::sm70) return "the path is sm70";
  if (a.path == ArchPath::sm120 && a.weight.format == WeightFormat::nvfp4 &&
      a.format.kind == ActivationKind::nvfp4_static) {
    return "the path multiplies nvfp4 by nvfp4 on the FP4 unit";  // to other bits
  }
  if (a.weight.order == CodeOrder::k32) return "the path multiplies fp8 by fp8 on the FP8 unit";  // the same
  if (a.weight.values != DType::bf16) return "the weight was not packed for bf16 operands";
  return refuse_gate_up(a, true);
}

struct LinearKernel {
  const char *name, *emulated;
  const char* (*refusal)(const Launch&, const LinearArgs&);
  bool (*native)();
  void (*launch)(const Launch&, const LinearParams&);
};
// Best first.
constexpr LinearKernel kKernels[] = {
    {"mma.m16n8k64 nvfp4, tiled", "mma.m16n8k64 nvfp4, tiled, emulated", refuse_fp4, has_fp4, launch_fp4},
    {"mma.m16n8k64 nvfp4", "mma.m16n8k64 nvfp4, emulated", refuse_sm120, has_fp4, launch_sm120},
    {"mma.m8n8k4", "mma.m8n8k4, emulated", refuse_sm70_tuned, has_m8n8k4, launch_sm70_tuned},
    {"mma.m8n8k4 plain", "mma.m8n8k4 plain, emulated", refuse_sm70, has_m8n8k4, launch_sm70},
    {"wgmma.m64k32 e4m3", "wgmma.m64k32 e4m3", refuse_a8, has_wgmma, launch_a8},
    {"e4m3 plain", "e4m3 plain, emulated", refuse_a8_plain, never, launch_a8_plain},
    {"wgmma.m64k16", "wgmma.m64k16", refuse_wgmma, has_wgmma, launch_wgmma},
    {"mma.m16n8k16", "mma.m16n8k16, emulated", refuse_sm90, has_m16n8k16, launch_sm90},
};

const LinearKernel& kernel_for(const Launch& to, const LinearArgs& a) {
  std::string refusals;
  for (const LinearKernel& k : kKernels) {
    const char* why = k.refusal(to, a);
    if (why == nullptr) return k;
    refusals += std::string(refusals.empty() ? "" : "; ") + k.name + ": " + why;
  }
  throw Error(ErrorCode::internal, "[cuda] linear: no kernel serves: " + refusals);
}

bool aligned_for(const LinearArgs& a) {
  const auto address = reinterpret_cast<std::uintptr_t>(a.x.data);
  const std::int64_t element = a.x.dtype == DType::u8 ? 1 : 2;
  return address % static_cast<std::uintptr_t>(8 * element) == 0 && a.x.stride % 8 == 0;
}

}  // namespace

bool has_m16n8k16() { return native_mma(probe().ptxVersion); }
bool has_m8n8k4() { return native_m8n8k4(probe().ptxVersion); }
bool has_fp4() { return probe().maxThreadsPerBlock == 64; }
bool has_wgmma() { return probe().maxThreadsPerBlock == 96; }

LinearParams linear_params(const Launch& to, const LinearArgs& a) {
  const bool quantised = a.format.kind != ActivationKind::none;
  const bool blocks =
      a.weight.block != nullptr || a.format.kind == ActivationKind::fp8_token_group128 || a.weight.order == CodeOrder::k32;
  const num::Segments segments = num::linear_segments(a.weight.segment_rows(), a.weight.cols, blocks);
  LinearParams p;
  p.step = to.step;
  p.weight = a.weight;
  p.x = a.x.data;
  p.x_stride = a.x.stride;
  p.x_scales = a.x_scales.data;
  p.scale_stride = a.x_scales.stride;
  p.exponents = quantised ? nullptr : a.x.exponents;
  p.kind = a.format.kind;
  p.aligned = aligned_for(a);
  const bool is_static = a.format.kind == ActivationKind::nvfp4_static ||
                         a.format.kind == ActivationKind::fp8_tensor_static;
  p.static_scale = quantised && is_static ? a.format.scale : 1.0f;
  p.rows = a.y.rows;
  p.y = a.y.data;
  p.y_stride = a.y.stride;
  p.y_bf16 = a.y.dtype == DType::bf16;
  p.k_tiles = static_cast<int>(a.weight.padded_cols / kTileCols);
  p.segment_tiles = segments.length / kTileCols;
  p.segments = segments.count;
  p.tile = a.tile;
  p.unfed = a.unfed;
  p.parts = 0;
  return p;
}

void linear(const Launch& to, const LinearArgs& a) {
  const LinearKernel& kernel = kernel_for(to, a);
  if (to.max_of(a.y.rows) > 0) kernel.launch(to, linear_params(to, a));
}

const char* refuse_joined(const Launch& to, std::span<const LinearArgs> all) {
  if (all.size() < 2) return "there is one";
  if (all.size() > static_cast<std::size_t>(kMostParts)) return "there are more than four";
  const LinearArgs& a = all.front();
  const LinearKernel& kernel = kernel_for(to, a);
  if (kernel.launch != launch_wgmma && kernel.launch != launch_a8) return "their kernel takes one weight";
  for (const LinearArgs& b : all) {
    const WeightImage &v = a.weight, &w = b.weight;
    if (b.x.data != a.x.data || b.x.stride != a.x.stride || b.x.rows != a.x.rows || b.format != a.format ||
        b.x_scales.data != a.x_scales.data || b.x_scales.stride != a.x_scales.stride || b.y.rows != a.y.rows) {
      return "they read different inputs";
    }
    if (w.format != v.format || w.order != v.order || w.values != v.values || w.scale_code != v.scale_code || w.cols != v.cols) {
      return "weights differ in format";
    }
    if (w.block != nullptr) return "weights have scales of 128x128 blocks";
    if (w.gate_up) return "a weight is of gate and up";
    if (w.segment_rows() != v.segment_rows()) return "their sums are not cut alike";
    if (&kernel_for(to, b) != &kernel) return "another kernel serves one of them";
  }
  return nullptr;
}

void joined_linears(const Launch& to, std::span<const LinearArgs> all) {
  if (const char* why = refuse_joined(to, all)) {
    throw Error(ErrorCode::internal, std::string("[cuda] joined linear layers: ") + why);
  }
  const LinearKernel& kernel = kernel_for(to, all.front());
  LinearParams p = linear_params(to, all.front());
  std::int64_t rows = 0;
  for (const LinearArgs& a : all) {
    p.part[p.parts++] = {a.weight.codes, a.weight.alpha, a.y.data, static_cast<std::int32_t>(a.y.stride), static_cast<std::int32_t>(a.weight.rows),
                         static_cast<std::int32_t>(rows / kTileRows), a.y.dtype == DType::bf16};
    rows += a.weight.padded_rows;
  }
  p.weight.rows = p.weight.padded_rows = rows;
  if (to.max_of(all.front().y.rows) > 0) kernel.launch(to, p);
}

std::uint64_t linear_sums_bytes(ArchPath path, int multiprocessors) {
  if (path == ArchPath::sm70) return sm70_sums_bytes(multiprocessors);
  return path == ArchPath::sm90 && has_wgmma() ? wgmma_sums_bytes(multiprocessors) : 0;
}

const char* linear_kernel(const Launch& to, const LinearArgs& a) {
  const LinearKernel& kernel = kernel_for(to, a);
  return kernel.native() ? kernel.name : kernel.emulated;
}

std::vector<std::pair<std::string, std::string>> linear_choices(const Launch& to, const LinearArgs& a) {
  std::vector<std::pair<std::string, std::string>> all;
  bool served = false;
  for (const LinearKernel& k : kKernels) {
    const char* const why = k.refusal(to, a);
    std::string verdict = why != nullptr ? why : served ? "one before it serves" : "served";
    if (why == nullptr && !served && k.launch == launch_wgmma) verdict += ", " + wgmma_choice(to, linear_params(to, a));
    if (why == nullptr && !served && k.launch == launch_a8) verdict += ", " + a8_choice(to, linear_params(to, a));
    served = served || why == nullptr;
    all.emplace_back(k.native() ? k.name : k.emulated, std::move(verdict));
  }
  return all;
}

std::vector<LinearTile> linear_tiles(const Launch& to, const LinearArgs& a) {
  const auto launch = kernel_for(to, a).launch;
  if (launch == launch_a8) return a8_tiles(to, linear_params(to, a));
  if (launch == launch_wgmma) return wgmma_tiles(to, linear_params(to, a));
  return {};
}

}  // namespace nibble::cuda
