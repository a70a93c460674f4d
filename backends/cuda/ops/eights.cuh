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

// n eights a thread; token: all blocks of a row are one cluster.
inline Cut cut_of(std::int32_t cols, int n, bool token) {
  const auto lanes = static_cast<unsigned>((cols / 8 + n - 1) / n),
             wanted = (lanes + kThreadsOfEights - 1) / kThreadsOfEights;
  const unsigned blocks = token && wanted > kMostBlocksOfRow ? kMostBlocksOfRow : wanted;
  return {blocks, ((lanes + blocks - 1) / blocks + 31) / 32 * 32};
}

// The columns of a thread; rows are whole multiples of 8 N.
struct Own {
  std::int64_t row;
  int column;
  bool exists;
};
template <int N>
__device__ __forceinline__ Own own_eights(std::int32_t cols) {
  const int column = 8 * N * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  return {blockIdx.y, column, column < cols};
}

// Few rows take one eight a thread, and values are read before it is known whether the step has them ("early"), since
// its count takes as long to come.
constexpr std::int64_t kFewRowsOfEights = 64;

template <int N>
__device__ __forceinline__ void put_y(const TypedRows<Bf16>& ys, const Own& own, const Eights<N>& v) {
  if (!own.exists || ys.data == nullptr) return;
#pragma unroll
  for (int n = 0; n < N; ++n) store8(ys.row(own.row) + own.column + 8 * n, v.of[n]);
}
// most: of the whole row.
template <int N>
__device__ __forceinline__ void put_token(const CodesOf8& to, const Own& own, const Eights<N>& v, unsigned most) {
  const MadeScale made(most);
  if (own.exists) put_e4m3(to.codes.row(own.row) + own.column, v, made.scale, made.inverse, made.plain);
  if (own.column == 0) reinterpret_cast<float*>(to.scales)[own.row * to.scale_stride] = made.scale;
}

// The made row to y and, as K says, to codes; fp8_token: the blocks of a row meet.
template <ActivationFormat::Kind K, int N>
__device__ __forceinline__ void finish_eights(const TypedRows<Bf16>& ys, const CodesOf8& to, const Own& own,
                                              const Eights<N>& v) {
  using Kind = ActivationFormat::Kind;
  put_y(ys, own, v);
  if constexpr (K == Kind::fp8_token) {
    __shared__ unsigned maxima[32];
    put_token(to, own, v, row_max(v.most_number(), maxima));
  } else if constexpr (K != Kind::none) {
    pack_eights<K>(to, own.row, own.column, own.exists, v);
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
  if (cols <= 0 || (pack != nullptr && !codes_in_eights(*pack, cols, 1))) return kNotEights;
  const bool token = pack != nullptr && pack->format.kind == ActivationFormat::Kind::fp8_token;
  return cut_of(cols, 1, token).threads > kMostThreadsOfEights ? kTooLong : nullptr;
}

// Without codes one: instructions are no limit there, and warps then store whole lines.
inline int eights_a_thread(std::int64_t rows, std::int32_t cols, const PackArgs* pack) {
  return pack != nullptr && rows > kFewRowsOfEights && cols % 16 == 0 && codes_in_eights(*pack, cols, 2) ? 2 : 1;
}
// Of the two kernels that a kind has; without codes there is but one.
template <ActivationFormat::Kind K>
constexpr int kMostEights = K == ActivationFormat::Kind::none ? 1 : 2;
template <ActivationFormat::Kind K>
bool is_early(int n, std::int64_t rows) {
  return n < kMostEights<K> || rows <= kFewRowsOfEights;
}

// kernel(args...) over rows of `cols` columns, n eights a thread. Answers as eights.h says.
template <ActivationFormat::Kind K, class... Params, class... Args>
const char* launch_eights(Serve what, const Launch& to, std::int64_t rows, std::int32_t cols, int n, void (*kernel)(Params...),
                          const Args&... args) {
  constexpr bool token = K == ActivationFormat::Kind::fp8_token;
  if (token && !blocks_meet(kernel)) return kNoClusters;
  if (what == Serve::ask) return nullptr;
  const Cut cut = cut_of(cols, n, token);
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
