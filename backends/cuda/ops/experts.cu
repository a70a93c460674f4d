// experts.cu: which experts serve a token, tokens in the order of experts, and their results together again
//   route    block = a token; 256 threads keep E keys (logit, id) in shared memory, k rounds find the next largest
//   sort     block = an expert: it counts the pairs of lower experts and puts its own behind them, a warp a run of
//            pairs in order, so that no two threads contend and the sort is stable
//   combine  block = 256 columns of a token; slots ascending
//   sums     the one tree (route), a chain (combine)                                       parity: ordered
//   cost     route 4 E bytes a token; sort reads all pairs twice for each expert, from L2; combine k + 1 rows a token
//   needs    E up to kMostExperts; any arch
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/ops/experts.h"
#include "core/ops/expert_limits.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = kTreeThreads, kWarps = kThreads / kWarp;

// Larger for a larger logit, then for a lower id; zeros of both signs are one value.
__device__ __forceinline__ std::uint64_t key_of(float z, int e) {
  const std::uint32_t bits = z == 0.0f ? 0u : num::bit_cast<std::uint32_t>(z);
  const std::uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return std::uint64_t{ordered} << 32 | static_cast<std::uint32_t>(~e);
}
__device__ __forceinline__ int id_of(std::uint64_t key) { return ~static_cast<int>(static_cast<std::uint32_t>(key)); }

// Of what the block's threads bring; `shared`: [kWarps], free again on return.
__device__ __forceinline__ std::uint64_t block_max(std::uint64_t v, std::uint64_t* shared) {
  for (int s = kWarp / 2; s > 0; s /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0u, v, s);
    v = other > v ? other : v;
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = v;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) v = shared[w] > v ? shared[w] : v;
  __syncthreads();
  return v;
}

struct RouteTask {
  const StepView* step;
  TypedRows<const float> logits;
  TypedRows<float> weights;
  std::int32_t* ids;
  int experts, per_token;
  bool normalised;
};

__global__ __launch_bounds__(kThreads) void route_kernel(RouteTask r) {
  __shared__ std::uint64_t keys[kMostExperts], warps[kWarps];
  __shared__ float z[kMostExperts], p[kMostExperts], chosen[kMostExperts], lanes[kTreeThreads];
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  if (t >= r.step->rows) return;
  const int thread = static_cast<int>(threadIdx.x);
  const float* const logits = r.logits.row(t);
  std::uint64_t best = 0;  // below every key
  for (int e = thread; e < r.experts; e += kThreads) {
    const float v = logits[e] == logits[e] ? logits[e] : -num::bit_cast<float>(0x7F800000u);
    z[e] = v;
    keys[e] = key_of(v, e);
    best = keys[e] > best ? keys[e] : best;
  }
  std::uint64_t last = block_max(best, warps);  // a barrier: z and keys are there
  const float first = z[id_of(last)];
  for (int e = thread; e < r.experts; e += kThreads) {
    p[e] = z[e] == first ? 1.0f : num::exp(num::sub(z[e], first));
  }
  __syncthreads();
  for (int s = 0; s < r.per_token; ++s) {
    if (s > 0) {
      best = 0;
      for (int e = thread; e < r.experts; e += kThreads) best = keys[e] < last && keys[e] > best ? keys[e] : best;
      last = block_max(best, warps);
    }
    if (thread == 0) {
      r.ids[t * r.per_token + s] = id_of(last);
      chosen[s] = p[id_of(last)];
    }
  }
  __syncthreads();
  const float total = r.normalised ? block_sum(chosen, r.per_token, lanes) : block_sum(p, r.experts, lanes);
  for (int s = thread; s < r.per_token; s += kThreads) r.weights.row(t)[s] = num::div(chosen[s], total);
}

__device__ __forceinline__ int warp_count(int v) {
  for (int s = kWarp / 2; s > 0; s /= 2) v += __shfl_xor_sync(~0u, v, s);
  return v;
}

struct SortTask {
  const StepView* step;
  const std::int32_t* ids;
  std::int32_t *order, *place, *starts;
  int experts;
};

__global__ __launch_bounds__(kThreads) void sort_kernel(SortTask a) {
  __shared__ int below_of[kWarps], own_of[kWarps];
  const int pairs = row_count(*a.step, Rows::routed), expert = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int run = (pairs + kThreads - 1) / kThreads * kWarp;  // of a warp, whole turns
  const int begin = warp * run, end = begin + run < pairs ? begin + run : pairs;
  int below = 0, own = 0;
  for (int j = begin + lane; j < end; j += kWarp) {
    const int id = a.ids[j];
    below += id < expert;
    own += id == expert;
  }
  below = warp_count(below);
  own = warp_count(own);
  if (lane == 0) {
    below_of[warp] = below;
    own_of[warp] = own;
  }
  __syncthreads();
  int at = 0;
  for (int w = 0; w < kWarps; ++w) at += below_of[w];
  if (threadIdx.x == 0) {
    a.starts[expert] = at;
    if (expert == a.experts - 1) a.starts[a.experts] = pairs;
  }
  for (int w = 0; w < warp; ++w) at += own_of[w];
  for (int j0 = begin; j0 < end; j0 += kWarp) {
    const int j = j0 + lane;
    const bool mine = j < end && a.ids[j] == expert;
    const unsigned all = __ballot_sync(~0u, mine);
    if (mine) {
      const int i = at + __popc(all & ((1u << lane) - 1u));
      a.order[i] = j;
      a.place[j] = i;
    }
    at += __popc(all);
  }
}

struct CombineTask {
  const StepView* step;
  TypedRows<const float> x, weights, shared, shared_gate;  // shared.data null: none
  const std::int32_t* place;
  TypedRows<float> y;
  int per_token, cols;
};

__global__ __launch_bounds__(kThreads) void combine_kernel(CombineTask a) {
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (t >= a.step->rows || c >= a.cols) return;
  float sum = 0.0f;
  for (int s = 0; s < a.per_token; ++s) {
    sum = num::fma(a.weights.row(t)[s], a.x.row(a.place[t * a.per_token + s])[c], sum);
  }
  if (a.shared.data != nullptr) sum = num::fma(num::sigmoid(a.shared_gate.row(t)[0]), a.shared.row(t)[c], sum);
  a.y.row(t)[c] = sum;
}

}  // namespace

void expert_route(const Launch& to, const ExpertRouteArgs& a) {
  const auto rows = static_cast<unsigned>(to.max_rows);
  if (rows == 0) return;
  route_kernel<<<rows, kThreads, 0, to.stream>>>({to.step, typed<const float>(a.logits), typed<float>(a.weights), a.experts,
                                                  a.logits.cols, to.experts_per_token, a.normalised});
  sort_kernel<<<static_cast<unsigned>(a.logits.cols), kThreads, 0, to.stream>>>(
      {to.step, a.experts, a.order, a.place, a.starts, a.logits.cols});
}

void expert_combine(const Launch& to, const ExpertCombineArgs& a) {
  if (to.max_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(to.max_rows), static_cast<unsigned>((a.y.cols + kThreads - 1) / kThreads));
  combine_kernel<<<grid, kThreads, 0, to.stream>>>({to.step, typed<const float>(a.x), typed<const float>(a.weights),
                                                    typed<const float>(a.shared), typed<const float>(a.shared_gate), a.place,
                                                    typed<float>(a.y), to.experts_per_token, a.y.cols});
}

}  // namespace nibble::cuda
