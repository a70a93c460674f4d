// delta_units.cu: prefill rows of the delta rule as matrix units compute them: whether those serve, what the copy engine
// needs, and both launches.
#include <string>

#include "backends/cuda/ops/delta_sm70.cuh"
#include "backends/cuda/ops/delta_units.cuh"
#include "backends/cuda/ops/linear_parts.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "backends/cuda/tensor_map.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

// Why the kernels of matrix units do not serve; null: they do.
const char* refuse_units(bool warps) {
  if (warps && !has_fp4() && !has_wgmma()) return "the card runs no code for sm_120a or sm_90a";
  if (!warps && !has_wgmma()) return "the card runs no code for sm_90a";
  if (!has_tensor_maps()) return "the driver makes no tensor maps";
  return nullptr;
}

}  // namespace

bool delta_on_units(ArchPath, const DeltaShape& shape) { return num::delta_on_units(shape); }

std::uint64_t delta_records_bytes(ArchPath path, const DeltaShape& shape, std::int64_t rows, std::int32_t ranges) {
  const std::int64_t of_chunk = path == ArchPath::sm70 ? sm70_chunk_bytes(shape) : std::int64_t{shape.value_heads} * kRecordBytes;
  return static_cast<std::uint64_t>(most_records(rows, ranges) * of_chunk);
}

std::string delta_rule_kernel(const DeltaRuleArgs& a) {
  if (a.section != Section::prefill) return delta_in_registers(a.state.shape) ? "columns in registers" : "generic";
  if (a.records == nullptr) return "chunks";
  if (a.units == ArchPath::sm70) return has_m8n8k4() ? "chunks, mma.m8n8k4" : "chunks, mma.m8n8k4, emulated";
  const bool warps = a.units == ArchPath::sm120;
  const char* const why = refuse_units(warps);
  if (why != nullptr) return std::string("chunks, fused sums in software: ") + why;
  return warps ? "chunks, mma.m16n8k16" : "chunks, wgmma.m64k16";
}

void delta_units(const Launch& to, const DeltaRuleArgs& a) {
  const DeltaShape& d = a.state.shape;
  if (to.max_ranges <= 0 || to.max_rows <= 0) return;
  const bool warps = a.units == ArchPath::sm120;
  if (refuse_units(warps) != nullptr) return delta_units_plain(to, a);
  const auto fits = [](const View& v) {
    return v.dtype == DType::bf16 && v.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
  };
  if (!num::delta_on_units(d) || !fits(a.qkv) || !fits(a.y)) {
    throw Error(ErrorCode::internal,
                "[cuda] delta rule on matrix units: expected key_dim 32 or 128, values in eights, and "
                "rows of bf16 at multiples of 16 bytes");
  }
  const auto map_of = [&](int cols) {
    return tensor_map({CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a.qkv.data, d.channels(), to.max_rows, a.qkv.stride * 2, cols,
                       kDeltaChunk, cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B});
  };
  const DeltaUnitsParams p{to.step, typed<float>(a.g), typed<float>(a.beta), typed<Bf16>(a.y), a.state, a.section, a.records, warps};
  const CUtensorMap keys = map_of(d.key_dim < 64 ? d.key_dim : 64);
  delta_prepare(to, keys, p);
  delta_pass(to, keys, map_of(64), p);
}

void delta_units_sm70(const Launch& to, const DeltaRuleArgs& a) {
  const DeltaShape& d = a.state.shape;
  if (to.max_ranges <= 0 || to.max_rows <= 0) return;
  const auto fits = [](const View& v) {
    return v.dtype == DType::f32 && v.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
  };
  if (!num::delta_on_units(d) || !fits(a.qkv) || !fits(a.y) || reinterpret_cast<std::uintptr_t>(a.records) % 16 != 0) {
    throw Error(ErrorCode::internal,
                "[cuda] delta rule on sm_70's matrix units: expected key_dim 32 or 128, values in eights, and rows of float32 "
                "at multiples of 16 bytes");
  }
  const DeltaSm70Params p{to.step, typed<float>(a.qkv), typed<float>(a.g), typed<float>(a.beta), typed<float>(a.y), a.state,
                          a.section, a.records};
  delta_sm70_prepare(to, p);
  delta_sm70_pass(to, p);
}

}  // namespace nibble::cuda
