// attention.cu: causal softmax attention over the KV pages of a sequence
//   q, y [T, heads * head_dim], pages [pages, kv_heads, 64, head_dim]: all of the operand type
//   map   block = kQueries queries (rows times the heads that share a kv head) of one range, 256
//         columns of the head; tiles of 64 keys ascending, of decode and verify rows those of one split of 1,024, which a
//         second launch combines. Scores: warp = some queries, lane = keys
//         lane and lane + 32; softmax: warp = a query at a time; values: thread = one column of some
//         queries, O in registers
//   sums  chains over head_dim and keys, num:: tree over a tile's p        parity: ordered
//   cost  4 * head_dim fma a query and key from float32 units -> arithmetic bound in prefill, latency of a split's
//         tiles in decode
//   needs nothing; any arch
#include "backends/cuda/device/gated.cuh"
#include "backends/cuda/device/sequence.cuh"
#include "backends/cuda/device/tree.cuh"
#include "backends/cuda/ops/attention_units.h"
#include "backends/cuda/ops/sequence.h"
#include "core/numerics/attention_order.h"
#include "core/state/state_layout.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = static_cast<int>(kPageTokens);
constexpr int kSplitTiles = static_cast<int>(kSplitTokens / kPageTokens);
constexpr int kDepth = 32;       // of a tile over head_dim
constexpr int kMaxLanes = 16;    // the highest score is sought in 16 lanes: matters with NaN only
constexpr int kFewQueries = 8, kManyQueries = 32;
static_assert(kTile == 2 * kWarp && kDepth == kWarp);

template <int kQueries>
struct __align__(16) Shared {
  float q[kDepth][kQueries + 4];
  float k[kDepth][kTile + 1];
  float scores[kQueries][kTile];
  float top[kWarps][kMaxLanes];
  float m[kQueries], l[kQueries], total_m[kQueries], total_l[kQueries];
  float factor[kQueries];                         // of O, in the tile
  float total_factor[kQueries], later[kQueries];  // of both O, when a split is taken
  int count[kQueries];                            // keys of the tile that the query sees
};
static_assert(sizeof(Shared<kManyQueries>) <= 48 * 1024);

template <class T>
struct AttentionTask {
  TypedRows<T> q, y;
  float scale;
  AttentionShape shape;
  Section section;
  const T *keys, *values;
  // Each split of its own block, which leaves m, l and O here: [slots, kv_heads, most, head_dim + 2]; null: a block goes
  // through all of them.
  float* parts;
  int most;  // queries of a range
  HeadGates<T> gates;

  __device__ __forceinline__ void write(std::int64_t row, int head, int column, float v) const {
    if (gates.data != nullptr) v = gated_by(v, gates.of(row, head)[column]);
    put(y.row(row) + std::int64_t{head} * shape.head_dim + column, v);
  }
};

// Splits of the section's ranges are numbered one after the other.
__device__ __forceinline__ int splits_of(const RangeView& r) {
  return static_cast<int>((r.position + r.rows - 1) / kSplitTokens) + 1;
}
struct SplitSlot {
  const RangeView* range;
  int split;
};
__device__ SplitSlot find_split(const StepView& step, Section section, int slot) {
  const int s = static_cast<int>(section);
  for (int at = step.first_range[s]; at < step.first_range[s + 1]; ++at) {
    const RangeView* const r = step.range + at;
    if (r->rows <= 0) continue;
    const int splits = splits_of(*r);
    if (slot < splits) return {r, slot};
    slot -= splits;
  }
  return {nullptr, 0};
}
template <class T>
__device__ __forceinline__ float* part_of(const AttentionTask<T>& a, int slot, int kv_head, int query) {
  return a.parts + ((std::int64_t{slot} * a.shape.kv_heads + kv_head) * a.most + query) * (a.shape.head_dim + 2);
}

// The queries of a block: number `first` .. of rows * group, rows outermost.
struct Queries {
  const RangeView* range;
  int first, count, group;
  __device__ __forceinline__ int row(int i) const { return (first + i) / group; }
  __device__ __forceinline__ int head(int i) const { return (first + i) % group; }
  __device__ __forceinline__ std::int64_t position(int i) const { return range->position + row(i); }
};

// Tiles of queries are numbered through the section's ranges.
__device__ Queries find_queries(const StepView& step, Section section, int tile, int per_tile,
                                int group) {
  const int s = static_cast<int>(section);
  for (int at = step.first_range[s]; at < step.first_range[s + 1]; ++at) {
    const RangeView* r = step.range + at;
    if (r->rows <= 0) continue;
    const int queries = r->rows * group, tiles = (queries + per_tile - 1) / per_tile;
    if (tile < tiles) {
      const int first = tile * per_tile, left = queries - first;
      return {r, first, left < per_tile ? left : per_tile, group};
    }
    tile -= tiles;
  }
  return {nullptr, 0, 0, group};
}

// A warp turns the scores of one query into probabilities; its running maximum and sum.
__device__ __forceinline__ void softmax(float* s, int n, float scale, bool first, float* top,
                                        float& running_m, float& running_l, float& factor) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float low = num::mul(s[lane], scale), high = num::mul(s[lane + kWarp], scale);
  s[lane] = low;
  s[lane + kWarp] = high;
  __syncwarp();
  if (lane < kMaxLanes) {
    float x = -__builtin_inff();
    for (int j = lane; j < n; j += kMaxLanes) x = num::max(x, s[j]);
    top[lane] = x;
  }
  __syncwarp();
  const float before = running_m;
  float highest = before;
  for (int i = 0; i < kMaxLanes; ++i) highest = num::max(highest, top[i]);
  const float p_low = lane < n ? num::exp(num::sub(low, highest)) : 0.0f;
  const float p_high = lane + kWarp < n ? num::exp(num::sub(high, highest)) : 0.0f;
  const float sum = warp_fold(num::add(num::add(0.0f, p_low), p_high));
  const float f = first ? 0.0f : num::exp(num::sub(before, highest));
  s[lane] = p_low;
  s[lane + kWarp] = p_high;
  __syncwarp();
  if (lane == 0) {
    running_l = num::fma(running_l, f, sum);
    running_m = highest;
    factor = f;
  }
}

template <class T, int kQueries>
__device__ void score(Shared<kQueries>& shared, const AttentionTask<T>& a, const Queries& mine,
                      int kv_head, const T* keys) {
  constexpr int kRows = kQueries / kWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int dim = a.shape.head_dim, i0 = warp * kRows;
  float low[kRows] = {}, high[kRows] = {};
  for (int d0 = 0; d0 < dim; d0 += kDepth) {
    const bool inside = d0 + lane < dim;
    __syncthreads();
    for (int j = warp; j < kTile; j += kWarps) {
      shared.k[lane][j] = inside ? widen(keys[std::int64_t{j} * dim + d0 + lane]) : 0.0f;
    }
    for (int i = warp; i < kQueries; i += kWarps) {
      float x = 0.0f;
      if (inside && i < mine.count) {
        const std::int64_t row = std::int64_t{mine.range->first_row} + mine.row(i);
        const std::int64_t head = std::int64_t{kv_head} * mine.group + mine.head(i);
        x = widen(a.q.row(row)[head * dim + d0 + lane]);
      }
      shared.q[lane][i] = x;
    }
    __syncthreads();
    if (i0 >= mine.count) continue;
    const int depth = dim - d0 < kDepth ? dim - d0 : kDepth;
#pragma unroll 4
    for (int d = 0; d < depth; ++d) {
      const float left = shared.k[d][lane], right = shared.k[d][lane + kWarp];
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const float q = shared.q[d][i0 + m];
        low[m] = num::fma(q, left, low[m]);
        high[m] = num::fma(q, right, high[m]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    shared.scores[i0 + m][lane] = low[m];
    shared.scores[i0 + m][lane + kWarp] = high[m];
  }
}

// Query i takes the split that it has just finished; the first one is taken as it is.
__device__ __forceinline__ void combine(float& total_m, float& total_l, float m, float l, float& f,
                                        float& h) {
  const float top = num::max(total_m, m);
  f = num::exp(num::sub(total_m, top));
  h = num::exp(num::sub(m, top));
  total_m = top;
  total_l = num::fma(l, h, num::mul(total_l, f));
}

template <class T, int kQueries, int kWidth>
__global__ void __launch_bounds__(kThreads, kQueries * kWidth > 16 * kThreads ? 1 : 2)
    attend(const StepView* steps, AttentionTask<T> a) {
  constexpr int kRows = kQueries * kWidth / kThreads;  // queries of a thread, one column each
  constexpr int kUnroll = kRows > 16 ? 1 : kRows > 8 ? 2 : 4;  // registers
  static_assert(kRows >= 1);
  __shared__ Shared<kQueries> shared;
  const int kv_head = static_cast<int>(blockIdx.y), group = a.shape.heads / a.shape.kv_heads;
  const bool by_split = kQueries == kFewQueries && a.parts != nullptr;  // never of prompts: known when compiled
  Queries mine{nullptr, 0, 0, group};
  int slot = 0, split = 0;
  if (!by_split) {
    mine = find_queries(*steps, a.section, static_cast<int>(blockIdx.x), kQueries, group);
  } else {
    const int tiles = (a.most + kQueries - 1) / kQueries, first = static_cast<int>(blockIdx.x) % tiles * kQueries;
    slot = static_cast<int>(blockIdx.x) / tiles;
    const SplitSlot found = find_split(*steps, a.section, slot);
    split = found.split;
    const int left = found.range == nullptr ? 0 : found.range->rows * group - first;
    if (left > 0) mine = {found.range, first, left < kQueries ? left : kQueries, group};
  }
  if (mine.range == nullptr) return;
  const int t = static_cast<int>(threadIdx.x), warp = t / kWarp, dim = a.shape.head_dim;
  const int column = static_cast<int>(blockIdx.z) * kWidth + t % kWidth, i0 = t / kWidth * kRows;
  const bool inside = column < dim;
  const std::int64_t page_head = std::int64_t{kTile} * dim;
  const std::int32_t* pages = steps->pages + mine.range->first_page;
  const std::int64_t last = mine.position(mine.count - 1) / kTile + 1, begin = std::int64_t{split} * kSplitTiles;
  const bool alone = !by_split || splits_of(*mine.range) == 1;
  const std::int64_t end = by_split ? min(last, begin + kSplitTiles) : last;

  float o[kRows] = {}, total[kRows] = {};
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const bool first = tile % kSplitTiles == 0;
    const std::int64_t at = (std::int64_t{pages[tile]} * a.shape.kv_heads + kv_head) * page_head;
    score<T, kQueries>(shared, a, mine, kv_head, a.keys + at);  // its barriers guard the last tile's p
    if (t < kQueries) {
      const std::int64_t seen = t < mine.count ? mine.position(t) - tile * kTile + 1 : 0;
      shared.count[t] = seen < 0 ? 0 : seen < kTile ? static_cast<int>(seen) : kTile;
      if (first) {
        shared.m[t] = -__builtin_inff();
        shared.l[t] = 0.0f;
      }
    }
    __syncthreads();
    for (int i = warp; i < mine.count; i += kWarps) {
      if (shared.count[i] == 0) continue;
      softmax(shared.scores[i], shared.count[i], a.scale, first, shared.top[warp], shared.m[i],
              shared.l[i], shared.factor[i]);
    }
    __syncthreads();

    const int common = i0 < mine.count ? shared.count[i0] : 0;  // all queries of the thread see them
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first) o[r] = 0.0f;
      if (shared.count[i0 + r] > 0) o[r] = num::mul(o[r], shared.factor[i0 + r]);
    }
    const T* v = a.values + at + column;
    if (inside && i0 < mine.count) {  // counts ascend; what a query that is not there gets, nobody reads
#pragma unroll kUnroll
      for (int j = 0; j < common; ++j) {
        const float x = widen(v[std::int64_t{j} * dim]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) o[r] = num::fma(shared.scores[i0 + r][j], x, o[r]);
      }
      const int most = shared.count[(i0 + kRows < mine.count ? i0 + kRows : mine.count) - 1];
      for (int j = common; j < most; ++j) {
        const float x = widen(v[std::int64_t{j} * dim]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (j < shared.count[i0 + r]) o[r] = num::fma(shared.scores[i0 + r][j], x, o[r]);
        }
      }
    }

    // A query's split ends with the split's last tile or with the last tile of the block: it then
    // takes the split if it has seen something of it, that is, of the split's first tile.
    if (tile + 1 < end && (tile + 1) % kSplitTiles != 0) continue;
    const std::int64_t split_start = tile / kSplitTiles * kSplitTokens;
    const bool only = tile - begin < kSplitTiles;  // the block's first
    if (t < mine.count && mine.position(t) >= split_start) {
      if (only) {
        shared.total_m[t] = shared.m[t];
        shared.total_l[t] = shared.l[t];
      } else {
        combine(shared.total_m[t], shared.total_l[t], shared.m[t], shared.l[t],
                shared.total_factor[t], shared.later[t]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = i0 + r;
      if (i >= mine.count || mine.position(i) < split_start) continue;
      total[r] = only ? o[r]
                      : num::fma(o[r], shared.later[i], num::mul(total[r], shared.total_factor[i]));
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int i = i0 + r;
    if (i >= mine.count || !inside) continue;
    if (!alone) {
      if (mine.position(i) < begin * kTile) continue;  // sees nothing of the split
      float* const part = part_of(a, slot, kv_head, mine.first + i);
      part[2 + column] = total[r];
      if (column == 0) part[0] = shared.total_m[i], part[1] = shared.total_l[i];
      continue;
    }
    const std::int64_t row = std::int64_t{mine.range->first_row} + mine.row(i);
    a.write(row, kv_head * group + mine.head(i), column, num::mul(total[r], num::div(1.0f, shared.total_l[i])));
  }
}

// Splits of a query, ascending; a block has a row and a head. Where there is one, attend() has written y.
template <class T>
__global__ void __launch_bounds__(kThreads) combine_splits(const StepView* steps, AttentionTask<T> a) {
  const int s = static_cast<int>(a.section), head = static_cast<int>(blockIdx.y), dim = a.shape.head_dim;
  const std::int64_t row = steps->first_row[s] + std::int64_t{blockIdx.x};
  if (row >= steps->first_row[s + 1]) return;
  const RangeView* const range = steps->range + steps->range_of_row[row];
  if (splits_of(*range) == 1) return;
  int slot = 0;
  for (const RangeView* r = steps->range + steps->first_range[s]; r != range; ++r) slot += r->rows > 0 ? splits_of(*r) : 0;
  const int group = a.shape.heads / a.shape.kv_heads, inside = static_cast<int>(row - range->first_row);
  const int splits = static_cast<int>((range->position + inside) / kSplitTokens) + 1;
  for (int column = static_cast<int>(threadIdx.x); column < dim; column += kThreads) {
    float m = 0.0f, l = 0.0f, total = 0.0f;
    for (int i = 0; i < splits; ++i) {
      const float* const part = part_of(a, slot + i, head / group, inside * group + head % group);
      if (i == 0) {
        m = part[0], l = part[1], total = part[2 + column];
      } else {
        float before, later;
        combine(m, l, part[0], part[1], before, later);
        total = num::fma(part[2 + column], later, num::mul(total, before));
      }
    }
    a.write(row, head, column, num::mul(total, num::div(1.0f, l)));
  }
}

template <class T, int kQueries, int kWidth>
void launch(const Launch& to, const AttentionTask<T>& task, int slots) {
  const std::int64_t group = task.shape.heads / task.shape.kv_heads;
  // Each range has at most one tile that is not full.
  const std::int64_t rows = section_max_rows(to, task.section, to.max_rows);
  const std::int64_t tiles = task.parts != nullptr ? std::int64_t{slots} * ((task.most + kQueries - 1) / kQueries)
                                                   : rows * group / kQueries + to.max_ranges;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(task.shape.kv_heads),
                  static_cast<unsigned>((task.shape.head_dim + kWidth - 1) / kWidth));
  attend<T, kQueries, kWidth><<<grid, kThreads, 0, to.stream>>>(to.step, task);
}

template <class T, int kQueries>
void by_width(const Launch& to, const AttentionTask<T>& task, int slots = 0) {
  if (task.shape.head_dim <= 64) {
    launch<T, kQueries, 64>(to, task, slots);
  } else if (task.shape.head_dim <= 128) {
    launch<T, kQueries, 128>(to, task, slots);
  } else {
    launch<T, kQueries, 256>(to, task, slots);
  }
}

// Rows of a range that decodes or verifies.
std::int64_t most_rows(Section section, std::int32_t records) { return section == Section::verify ? records : 1; }

}  // namespace

void attention(const Launch& to, const AttentionArgs& a) {
  if (to.max_rows <= 0 || to.max_ranges <= 0) return;
  if (a.units) return a.section == Section::prefill ? attention_units(to, a) : attention_decode(to, a);
  const bool split = a.parts != nullptr && a.section != Section::prefill;
  const std::int64_t group = a.state.shape.heads / a.state.shape.kv_heads, rows = most_rows(a.section, a.records);
  with_type(a.q.dtype, [&]<class T>(T*) {
    const AttentionTask<T> task{typed<T>(a.q),
                                typed<T>(a.y),
                                a.scale,
                                a.state.shape,
                                a.section,
                                reinterpret_cast<const T*>(a.state.k),
                                reinterpret_cast<const T*>(a.state.v),
                                split ? a.parts : nullptr,
                                static_cast<int>(group * rows),
                                {reinterpret_cast<const T*>(a.gate.data), a.gate.stride, a.gate_head_stride}};
    if (a.section == Section::prefill) return by_width<T, kManyQueries>(to, task);
    by_width<T, kFewQueries>(to, task, static_cast<int>(a.split_slots));
    if (split) {
      const auto all = static_cast<unsigned>(section_max_rows(to, a.section, a.records));
      combine_splits<T><<<dim3(all, static_cast<unsigned>(a.state.shape.heads)), kThreads, 0, to.stream>>>(to.step, task);
    }
  });
}

std::int64_t attention_split_slots(bool units, std::int64_t pages, std::int32_t slots) {
  const std::int64_t each = (units ? num::kAttentionSplit : kSplitTokens) / kPageTokens;
  return pages <= each ? 0 : pages / each + slots;  // a sequence's last split may be short
}
std::uint64_t attention_parts_bytes(const AttentionShape& shape, std::int64_t split_slots, std::int32_t records) {
  const std::int64_t queries = std::int64_t{records} * (shape.heads / shape.kv_heads);
  return static_cast<std::uint64_t>(split_slots * shape.kv_heads * attention_part_floats(queries, shape.head_dim)) * sizeof(float);
}

}  // namespace nibble::cuda
