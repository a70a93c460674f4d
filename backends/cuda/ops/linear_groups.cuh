// linear_groups.cuh: which rows a block of a linear kernel takes: tile blockIdx.y of x, or of one expert's rows.
//
// Grouped, blockIdx.y is a slot, and which expert's tile it is follows from ExpertRoute's starts alone, by a search of
// two loads. There are slots for every way in which tokens may spread; those without a tile return at once.
//   by place   slot i is sorted place i, and has a tile where an expert's tile begins: for few rows and many experts
//   else       slot starts[e] / Tokens + e + j is tile j of expert e: rising in e, and never short, since the next
//              expert's first slot lies floor(b / Tokens) - floor(a / Tokens) + 1 >= ceil((b - a) / Tokens) behind
#pragma once

#include "backends/cuda/ops/linear_parts.cuh"

namespace nibble::cuda {

// The last of n experts e with first(e) <= slot, where first rises and first(0) <= slot; n up to 1,024. The whole
// warp must call.
template <class First>
__device__ __forceinline__ int last_at_most(int n, std::int64_t slot, const First& first) {
  const int lane = static_cast<int>(threadIdx.x) % 32, step = (n + 31) / 32;
  const int coarse = lane * step;
  const unsigned below = __ballot_sync(~0u, coarse < n && first(coarse) <= slot);
  const int begin = (31 - __clz(static_cast<int>(below))) * step;  // lane 0's bit is set
  const int fine = begin + lane;
  const unsigned within = __ballot_sync(~0u, lane < step && fine < n && first(fine) <= slot);
  return begin + 31 - __clz(static_cast<int>(within));
}

// False for a block without rows. Else rows [first, rows) are the block's, Tokens of them at most.
template <int Tokens>
__device__ __forceinline__ bool rows_of_block(const LinearParams& p, std::int64_t& rows, std::int64_t& first) {
  rows = row_count(*p.step, p.rows);
  first = static_cast<std::int64_t>(blockIdx.y) * Tokens;
  return first < rows;
}
// `p` becomes the expert's. All of a block's threads get the same.
template <int Tokens>
__device__ __forceinline__ bool rows_of_block(GroupedParams& p, std::int64_t& rows, std::int64_t& first) {
  const auto slot = static_cast<std::int64_t>(blockIdx.y);
  int e;
  if (p.by_place) {
    if (slot >= p.starts[p.experts]) return false;
    e = last_at_most(p.experts, slot, [&](int i) { return std::int64_t{p.starts[i]}; });
    first = slot;
    if ((first - p.starts[e]) % Tokens != 0) return false;
  } else {
    const auto first_slot = [&](int i) { return std::int64_t{p.starts[i] / Tokens + i}; };
    e = last_at_most(p.experts, slot, first_slot);
    first = p.starts[e] + (slot - first_slot(e)) * Tokens;
  }
  rows = p.starts[e + 1];
  const std::int64_t shift = e * p.expert_bytes;
  p.weight.codes += shift;
  if (p.weight.scales != nullptr) p.weight.scales += shift;
  p.weight.alpha += shift / static_cast<std::int64_t>(sizeof(float));
  if (p.weight.block != nullptr) p.weight.block += shift / static_cast<std::int64_t>(sizeof(float));
  return first < rows;
}

// The row of x that makes row `row` of y; any where there is none.
__device__ __forceinline__ std::int64_t source_row(const LinearParams&, std::int64_t row, bool) { return row; }
__device__ __forceinline__ std::int64_t source_row(const GroupedParams& p, std::int64_t row, bool there) {
  if (p.per_token == 0) return row;
  return there ? __ldg(p.order + row) / p.per_token : 0;
}

// The rows of x for Count rows that a thread asks for again and again; row_of(i) is the i-th one of y.
template <class P, int Count>
struct RowsOf {
  template <class F>
  __device__ __forceinline__ RowsOf(const P&, const F&, std::int64_t) {}
  __device__ __forceinline__ std::int64_t operator()(std::int64_t row, int) const { return row; }
};
template <int Count>
struct RowsOf<GroupedParams, Count> {
  std::int32_t from[Count];
  template <class F>
  __device__ __forceinline__ RowsOf(const GroupedParams& p, const F& row_of, std::int64_t rows) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      from[i] = static_cast<std::int32_t>(source_row(p, row_of(i), row_of(i) < rows));
    }
  }
  __device__ __forceinline__ std::int64_t operator()(std::int64_t, int i) const { return from[i]; }
};

inline std::int64_t group_slots(const Launch& to, int experts, int tokens) {
  return to.max_of(Rows::routed) / tokens + experts;
}
// launch(to, p, slots) with as many as this class needs.
template <int Tokens, class F>
void launch_groups(const Launch& to, GroupedParams p, F launch) {
  const std::int64_t places = to.max_of(Rows::routed), slots = group_slots(to, p.experts, Tokens);
  p.by_place = places <= slots;
  launch(to, p, p.by_place ? places : slots);
}

}  // namespace nibble::cuda
