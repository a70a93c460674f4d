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

// Of a kernel's launch bounds. Left to itself, ptxas 13.0 spills in grouped forms for the sake of another block.
template <class P, int Blocks>
constexpr int kLeastBlocks = std::is_same_v<P, GroupedParams> ? Blocks : 0;

NIBBLE_HD int highest_bit(std::uint32_t v) {
#if defined(__CUDA_ARCH__)
  return 31 - __clz(static_cast<int>(v));
#else
  return 31 - __builtin_clz(v);
#endif
}

// The last of n experts e with first(e) <= slot, where first rises and first(0) <= slot; n up to 1,024.
// ballot(f) has bit i where f(i) holds, of a warp's lanes i.
template <class First, class Ballot>
NIBBLE_HD int last_at_most(int n, std::int64_t slot, const First& first, const Ballot& ballot) {
  const int step = (n + 31) / 32;
  const std::uint32_t coarse = ballot([&](int i) { return i * step < n && first(i * step) <= slot; });
  const int begin = highest_bit(coarse) * step;  // bit 0 is set
  const std::uint32_t fine = ballot([&](int i) { return i < step && begin + i < n && first(begin + i) <= slot; });
  return begin + highest_bit(fine);
}

// A slot's expert and sorted places [first, end), `tokens` of them at most; none where first >= end.
struct GroupRows {
  int expert;
  std::int64_t first, end;
};
template <class Ballot>
NIBBLE_HD GroupRows group_rows(const std::int32_t* starts, int experts, std::int64_t slot, bool by_place, int tokens,
                               const Ballot& ballot) {
  if (by_place) {
    if (slot >= starts[experts]) return {0, slot, 0};
    const int e = last_at_most(experts, slot, [&](int i) { return std::int64_t{starts[i]}; }, ballot);
    return {e, slot, (slot - starts[e]) % tokens == 0 ? starts[e + 1] : 0};
  }
  const auto first_slot = [&](int i) { return std::int64_t{starts[i] / tokens + i}; };
  const int e = last_at_most(experts, slot, first_slot, ballot);
  return {e, starts[e] + (slot - first_slot(e)) * tokens, starts[e + 1]};
}

// False for a block without rows. Else rows [first, rows) are the block's, Tokens of them at most.
template <int Tokens>
__device__ __forceinline__ bool rows_of_block(const LinearParams& p, std::int64_t& rows, std::int64_t& first) {
  rows = row_count(*p.step, p.rows);
  first = static_cast<std::int64_t>(blockIdx.y) * Tokens;
  return first < rows;
}
// Codes and scales become the expert's. All of a block's threads get the same.
template <int Tokens>
__device__ __forceinline__ bool rows_of_block(GroupedParams& p, std::int64_t& rows, std::int64_t& first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto ballot = [lane](const auto& of) { return __ballot_sync(~0u, of(lane)); };
  const GroupRows g = group_rows(p.starts, p.experts, blockIdx.y, p.by_place, Tokens, ballot);
  const int e = g.expert;
  first = g.first;
  rows = g.end;
  p.expert = e;
  p.weight.codes += e * p.expert_bytes;
  p.weight.scales += e * p.expert_bytes;  // read for formats that have them only
  return first < rows;
}

// The row of x that makes row `row` of y; any where there is none.
__device__ __forceinline__ std::int64_t source_row(const LinearParams&, std::int64_t row, bool) { return row; }
__device__ __forceinline__ std::int64_t source_row(const GroupedParams& p, std::int64_t row, bool there) {
  if (p.per_token == 0) return row;
  return there ? __ldg(p.order + row) / p.per_token : 0;
}

// add_segment and finish of the row of y. What they read of a weight is the expert's from here on: rarely used, it shall
// not take registers before.
__device__ __forceinline__ float add_row_segment(const LinearParams& p, std::int64_t row, bool there, std::int64_t n,
                                                 int segment, float sum, float total) {
  return add_segment(p, row, there, n, segment, sum, total);
}
__device__ __forceinline__ float add_row_segment(const GroupedParams& p, std::int64_t row, bool there, std::int64_t n,
                                                 int segment, float sum, float total) {
  if (p.kind == ActivationKind::fp8_token_group128) {
    sum = scaled_segment(p, source_row(p, row, there), there, segment, sum);
  }
  if (p.weight.block == nullptr) return num::add(total, sum);
  return add_segment(p, p.weight.block + p.expert * p.expert_bytes / static_cast<std::int64_t>(sizeof(float)), n, segment,
                     sum, total);
}
__device__ __forceinline__ void finish_row(const LinearParams& p, std::int64_t row, std::int64_t n, float total) {
  finish(p, row, n, total);
}
__device__ __forceinline__ void finish_row(const LinearParams& p, std::int64_t row, std::int64_t n, float total,
                                           float scale) {
  finish(p, row, n, total, scale);
}
__device__ __forceinline__ void finish_row(const GroupedParams& p, std::int64_t row, std::int64_t n, float total,
                                           float scale) {
  LinearParams own = p;
  own.weight.alpha += p.expert * p.expert_bytes / static_cast<std::int64_t>(sizeof(float));
  finish(own, row, n, total, scale);
}
__device__ __forceinline__ void finish_row(const GroupedParams& p, std::int64_t row, std::int64_t n, float total) {
  const bool by_row = p.kind == ActivationKind::fp8_token;
  finish_row(p, row, n, total, by_row ? activation_scale(p, source_row(p, row, true)) : p.static_scale);
}

// A lane's results of the unit at row n0, for the eight rows of y from `first`: those of gate, then of up. False: they are
// of other weights.
__device__ __forceinline__ bool finish_gate_up(const LinearParams&, std::int64_t, std::int64_t, std::int64_t, int,
                                               const float (&)[4]) {
  return false;
}
__device__ __forceinline__ bool finish_gate_up(const GateUpParams& p, std::int64_t first, std::int64_t rows,
                                               std::int64_t n0, int lane, const float (&total)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t token = first + result_col(lane, i), n = n0 + result_row(lane, i);
    if (token < rows && n < p.weight.rows) finish_swiglu(p, token, n, total[i], total[i + 2]);
  }
  return true;
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
