// eights.cuh: how rows are cut among blocks that take eight columns a thread, with codes or without.
#pragma once

#include "backends/cuda/device/codes.cuh"
#include "backends/cuda/device/row_max.cuh"
#include "backends/cuda/ops/eights.h"

namespace nibble::cuda {

// Threads of all blocks of a row; block x of row y. Whole warps, so that groups of 128 columns stay in one.
struct Cut {
  unsigned blocks, threads;
};
constexpr unsigned kThreadsOfEights = 256, kMostThreadsOfEights = 512;
constexpr std::int64_t kMostRowsOfGrid = 65535;

// token: all blocks of a row are one cluster.
inline Cut cut_of(std::int32_t cols, bool token) {
  const auto eights = static_cast<unsigned>(cols / 8), wanted = (eights + kThreadsOfEights - 1) / kThreadsOfEights;
  const unsigned blocks = token && wanted > kMostBlocksOfRow ? kMostBlocksOfRow : wanted;
  return {blocks, ((eights + blocks - 1) / blocks + 31) / 32 * 32};
}

struct OwnEight {
  std::int64_t row;
  int column;
  bool exists;
};
__device__ __forceinline__ OwnEight own_eight(std::int32_t cols) {
  const int column = 8 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  return {blockIdx.y, column, column < cols};
}

// Few rows: their values are read before it is known whether the step has them, since its count takes as long to come.
constexpr std::int64_t kEarlyRows = 64;

// What pack8 does, and fp8_token; K none: nothing.
template <ActivationFormat::Kind K>
__device__ __forceinline__ void finish8(const CodesOf8& to, const OwnEight& own, const Eight& v, unsigned most) {
  using Kind = ActivationFormat::Kind;
  if constexpr (K == Kind::fp8_token) {
    __shared__ unsigned maxima[32];
    if (most > kInfinity) most = most8_number(v);
    const float scale = fp8_scale(row_max(most, maxima));
    if (own.exists) *reinterpret_cast<uint2*>(to.codes.row(own.row) + own.column) = e4m3_codes8(v, scale);
    if (own.column == 0) reinterpret_cast<float*>(to.scales)[own.row * to.scale_stride] = scale;
  } else if constexpr (K != Kind::none) {
    pack8<K>(to, own.row, own.column, own.exists, v, most);
  }
}

// Host side. Whether this card took code in which a row's blocks meet.
template <class Kernel>
bool blocks_meet(Kernel* kernel) {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return attributes.ptxVersion >= 90;
}

constexpr const char* kNotEights = "columns do not come in eights of bf16 at aligned addresses";
constexpr const char* kTooManyRows = "there are more rows than a grid has in its second dimension";
constexpr const char* kTooLong = "a row's blocks do not fit in a cluster";
constexpr const char* kNoClusters = "the card took code without clusters";

inline const char* refuse_eights(std::int64_t rows, std::int32_t cols, const PackArgs* pack) {
  if (rows > kMostRowsOfGrid) return kTooManyRows;
  if (cols <= 0 || (pack != nullptr && !codes_in_eights(*pack, cols))) return kNotEights;
  const bool token = pack != nullptr && pack->format.kind == ActivationFormat::Kind::fp8_token;
  return cut_of(cols, token).threads > kMostThreadsOfEights ? kTooLong : nullptr;
}

// kernel(args...) over rows of `cols` columns. Null: launched; else why not.
template <ActivationFormat::Kind K, class... Params, class... Args>
const char* launch_eights(const Launch& to, std::int64_t rows, std::int32_t cols, void (*kernel)(Params...),
                          const Args&... args) {
  constexpr bool token = K == ActivationFormat::Kind::fp8_token;
  if (token && !blocks_meet(kernel)) return kNoClusters;
  const Cut cut = cut_of(cols, token);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = cut.blocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cut.blocks, static_cast<unsigned>(rows));
  config.blockDim = dim3(cut.threads);
  config.stream = to.stream;
  if (token) config.attrs = &cluster, config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
  return nullptr;
}

// f(std::integral_constant<Kind, kind>); none where there is no `pack`.
template <class F>
auto with_kind_of(const PackArgs* pack, F f) {
  using Kind = ActivationFormat::Kind;
  const Kind kind = pack == nullptr ? Kind::none : pack->format.kind;
  switch (kind) {
    case Kind::nvfp4_static:
      return f(std::integral_constant<Kind, Kind::nvfp4_static>{});
    case Kind::fp8_tensor_static:
      return f(std::integral_constant<Kind, Kind::fp8_tensor_static>{});
    case Kind::fp8_token:
      return f(std::integral_constant<Kind, Kind::fp8_token>{});
    case Kind::fp8_token_group128:
      return f(std::integral_constant<Kind, Kind::fp8_token_group128>{});
    case Kind::none:
      break;
  }
  return f(std::integral_constant<Kind, Kind::none>{});
}

}  // namespace nibble::cuda
