// attention_combine.cu: splits of decode and verify rows put together, order of core/numerics/attention_order.h
//   parts [slots, kv_heads]: O [most, dim], m and l [most, 2], float32; y [T, heads * dim] bf16
//   map    block = a row, a head and 64 columns; 64 splits at a time come to shared memory while those before are added
//   sums   a chain of splits, ascending                                    parity: ordered
//   cost   4 bytes a split and column -> latency of the chain
//   needs  dim % 64 == 0; any arch
#include "backends/cuda/device/matrices.cuh"
#include "backends/cuda/ops/attention_splits.cuh"

namespace nibble::cuda {
namespace {

constexpr int kColumns = 64, kBatch = 64, kThreads = 128;

// Splits of a row, ascending: a block has a row, a head and 64 columns. Where its sequence has one, y is there.
__global__ void __launch_bounds__(kThreads) combine(const SplitParams a) {
  __shared__ __align__(16) float room[2][kBatch][kColumns];
  __shared__ float4 factors[kBatch];  // f, h, l
  const StepView& step = *a.steps;
  const int s = static_cast<int>(a.section), t = static_cast<int>(threadIdx.x), lane = t % 32, head = static_cast<int>(blockIdx.y);
  const std::int64_t row = step.first_row[s] + std::int64_t{blockIdx.x};
  const RangeView* const range = row < step.first_row[s + 1] ? step.range + step.range_of_row[row] : nullptr;
  int slot = 0;  // of the range's first split
  if (range != nullptr && splits_of(*range) > 1) {
    for (const RangeView* r = step.range + step.first_range[s] + lane; r < range; r += 32) slot += r->rows > 0 ? splits_of(*r) : 0;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) slot += __shfl_xor_sync(~0u, slot, by);
  }
  let_next_launch_begin();
  wait_for_launches_before();
  if (range == nullptr || splits_of(*range) == 1) return;

  const int dim = a.shape.head_dim, group = a.shape.heads / a.shape.kv_heads, inside = static_cast<int>(row - range->first_row);
  const int splits = static_cast<int>((range->position + inside) / kSplit) + 1, query = inside * group + head % group;
  const int column = static_cast<int>(blockIdx.z) * kColumns;
  const std::int64_t stride = a.shape.kv_heads * attention_part_floats(a.most, dim);  // from a split to the next
  const float* const parts = a.parts + (std::int64_t{slot} * a.shape.kv_heads + head / group) * attention_part_floats(a.most, dim);
  const float* const from = parts + std::int64_t{query} * dim + column;
  const float* const ml = parts + std::int64_t{a.most} * dim + 2 * query;

  const auto bring = [&](int first, int buffer) {
    for (int i = t; i < kBatch * (kColumns / 4); i += kThreads) {
      const int at = first + i / (kColumns / 4), four = i % (kColumns / 4) * 4;
      if (at < splits) bring_16(shared_address(&room[buffer][at - first][four]), from + at * stride + four, true);
    }
    copies_commit();
  };
  float total = 0.0f, l = 0.0f, before = 0.0f;  // before: the maximum of all splits before
  bring(0, 0);
#pragma unroll 1
  for (int first = 0; first < splits; first += kBatch) {
    const int buffer = first / kBatch % 2, count = min(splits - first, kBatch);
    bring(first + kBatch, buffer ^ 1);
    if (t < 32) {
#pragma unroll
      for (int i = lane; i < kBatch; i += 32) {
        const float2 own = first + i < splits ? *reinterpret_cast<const float2*>(ml + (first + i) * stride)
                                              : make_float2(-__builtin_inff(), 0.0f);
        float most = first + i - lane == 0 ? own.x : num::max(before, own.x);
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
          const float other = __shfl_up_sync(~0u, most, by);
          if (lane >= by) most = num::max(other, most);
        }
        float prior = __shfl_up_sync(~0u, most, 1);
        if (lane == 0) prior = before;
        factors[i] = make_float4(num::exp(num::sub(prior, most)), num::exp(num::sub(own.x, most)), own.y, 0.0f);
        before = __shfl_sync(~0u, most, 31);
      }
    }
    copies_wait<1>();
    __syncthreads();  // parts and factors are there
    if (t < kColumns) {
      int i = 0;
      if (first == 0) total = room[buffer][0][t], l = factors[0].z, i = 1;
#pragma unroll 8
      for (; i < count; ++i) {
        const float4 by = factors[i];
        total = num::fma(room[buffer][i][t], by.y, num::mul(total, by.x));
        l = num::fma(by.z, by.y, num::mul(l, by.x));
      }
    }
    __syncthreads();  // both are read
  }
  if (t >= kColumns) return;
  const float y = num::mul(total, num::div(1.0f, l));
  put(a.y.row(row) + std::int64_t{head} * dim + column + t, a.gates.data == nullptr ? y : gated_by(y, a.gates.of(row, head)[column + t]));
}

}  // namespace

void combine_splits(const Launch& to, const AttentionArgs& a, const SplitParams& p) {
  const dim3 grid(static_cast<unsigned>(section_max_rows(to, a.section, a.records)), static_cast<unsigned>(p.shape.heads),
                  static_cast<unsigned>(p.shape.head_dim / kColumns));
  start_early(combine, grid, kThreads, 0, to.stream, p);
}

}  // namespace nibble::cuda
