// sample.cu: Sample of core/ops/ops.h in two launches over all rows.
//   best_of_blocks  a warp 256 logits: their first candidate, by (logit descending, id ascending)
//   pick            a block a row. Greedy: the first of those. Else: candidates above a threshold,
//   in id
//                   order, sorted; their probabilities; the draw. The first `lanes` blocks share
//                   the rows that draw, for only so many have scratch.
//   sums  f32: total by the tree, running sums one after the other in list order
//   cost  greedy: logits once, bandwidth bound; drawing: latency of one block, grows with the list
#include <algorithm>

#include "backends/cuda/device/candidates.cuh"
#include "backends/cuda/device/fold.cuh"
#include "backends/cuda/ops/sample.h"
#include "core/numerics/philox.h"

namespace nibble::cuda {
namespace {

constexpr int kBlock = 256;  // logits that share one first candidate
constexpr int kScanThreads = 256, kScanWarps = kScanThreads / 32;
constexpr std::int64_t kMaxLanes = 16;
constexpr int kSmallList = 2048;  // sorted in shared memory

// As the CPU's (backends/cpu/ops/sample.cpp): below the floor a candidate adds nothing to a running
// sum that starts at 1; what lies further below the first than kReach temperatures is below the
// floor.
constexpr float kFloor = 0x1p-24f;
constexpr double kReach = 17.5;

// In this order in the workspace.
struct Scratch {
  Key* best;  // [max_outputs, blocks]
  Key *keys,
      *other;  // [lanes, vocab] each; `other` holds probabilities and sums once keys are sorted
  unsigned* found;  // [lanes, blocks]
  std::int64_t vocab, lanes;
  int blocks;
};

std::size_t carve(std::int64_t max_outputs, std::int64_t vocab, std::byte* at, Scratch* s) {
  std::size_t used = 0;
  const auto take = [&](std::int64_t count, std::size_t size) {
    std::byte* const here = at == nullptr ? nullptr : at + used;
    used += (static_cast<std::size_t>(count) * size + 255) / 256 * 256;
    return here;
  };
  s->vocab = vocab;
  s->lanes = std::min(max_outputs, kMaxLanes);
  s->blocks = static_cast<int>((vocab + kBlock - 1) / kBlock);
  s->best = reinterpret_cast<Key*>(take(max_outputs * s->blocks, sizeof(Key)));
  s->keys = reinterpret_cast<Key*>(take(s->lanes * vocab, sizeof(Key)));
  s->other = reinterpret_cast<Key*>(take(s->lanes * vocab, sizeof(Key)));
  s->found = reinterpret_cast<unsigned*>(take(s->lanes * s->blocks, sizeof(unsigned)));
  return used;
}

struct Logits {
  const StepView* step;
  TypedRows<const float> rows;
  const std::int32_t* counts;  // [slots, counts_stride] or null
  std::int64_t counts_stride;
  int vocab;
  bool wide;
};

// One row's logits as candidates see them.
struct Row {
  const float* z;
  const std::int32_t* counts;  // null: no penalty
  const std::int32_t* later;   // tokens that counts hold but that come after this row
  int later_count;
  float penalty;

  __device__ __forceinline__ Row(const Logits& l, std::int64_t o)
      : z(l.rows.row(o)), counts(nullptr), later(nullptr), later_count(0), penalty(1.0f) {
    const SampleView& how = l.step->sampling[o];
    penalty = how.repetition_penalty;
    if (penalty == 1.0f || l.counts == nullptr) return;
    counts = l.counts + how.slot * l.counts_stride;
    later = l.step->tokens + how.row + 1;
    later_count = how.last_row - how.row;
  }
  __device__ __forceinline__ bool punished(int id) const {
    int count = counts[id];
    for (int i = 0; count > 0 && i < later_count; ++i) count -= later[i] == id ? 1 : 0;
    return count > 0;
  }
  // NaN as -inf, the penalty, -0 as +0.
  __device__ __forceinline__ unsigned rank(float raw, int id) const {
    float v = raw == raw ? raw : num::bit_cast<float>(0xFF800000u);
    if (counts != nullptr && punished(id)) {
      v = v > 0.0f ? num::div(v, penalty) : num::mul(v, penalty);
    }
    return rank_of(num::add(v, 0.0f));
  }
};

__global__ void __launch_bounds__(kScanThreads) best_of_blocks(Logits l, Scratch s) {
  const std::int64_t item = std::int64_t{blockIdx.x} * kScanWarps + threadIdx.x / 32;
  const std::int64_t o = item / s.blocks;
  if (o >= l.step->outputs) return;
  const Row row(l, o);
  const int lane = static_cast<int>(threadIdx.x % 32),
            first = static_cast<int>(item % s.blocks) * kBlock;
  Key best = kNoKey;
  if (l.wide && first + kBlock <= l.vocab) {
    float4 v[2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      v[j] = *reinterpret_cast<const float4*>(row.z + first + 128 * j + 4 * lane);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int id = first + 128 * j + 4 * lane;
      best = min(best, key_of(row.rank(v[j].x, id), id));
      best = min(best, key_of(row.rank(v[j].y, id + 1), id + 1));
      best = min(best, key_of(row.rank(v[j].z, id + 2), id + 2));
      best = min(best, key_of(row.rank(v[j].w, id + 3), id + 3));
    }
  } else {
    for (int id = first + lane; id < min(l.vocab, first + kBlock); id += 32) {
      best = min(best, key_of(row.rank(row.z[id], id), id));
    }
  }
  best = warp_min(best);
  if (lane == 0) s.best[item] = best;
}

struct Shared {
  Key mins[kPickWarps];
  unsigned sums[kPickWarps];
  float lanes[num::kTreeLong];
  float sum;
  int last;
  union {
    Key small[kSmallList];
    unsigned digits[kPickWarps * kDigits];
  };
};

__device__ __forceinline__ Key first_of_row(const Scratch& s, std::int64_t o, Shared& shared) {
  Key best = kNoKey;
  for (int b = static_cast<int>(threadIdx.x); b < s.blocks; b += kPickThreads) {
    best = min(best, s.best[o * s.blocks + b]);
  }
  return block_min(best, shared.mins);
}

// Candidates beyond this rank cannot be drawn.
__device__ __forceinline__ unsigned last_rank(const SampleView& how, const Key* best, int blocks,
                                              Key first) {
  const double reach =
      static_cast<double>(logit_in(first)) - kReach * static_cast<double>(how.temperature);
  const float low = reach < -3.4028234663852886e38 ? num::bit_cast<float>(0xFF800000u)
                                                   : static_cast<float>(reach);
  unsigned last = max(rank_of(low), rank_in(first));
  // at least top_k logits reach the k-th of the blocks' firsts
  if (how.top_k > 0 && how.top_k <= blocks) last = min(last, kth_rank(best, blocks, how.top_k));
  return last;
}

// All candidates up to rank `last`, by ascending id. Returns their number.
__device__ __forceinline__ int gather(const Row& row, const Key* best, unsigned last,
                                      const Scratch& s, unsigned* found, Key* keys,
                                      unsigned* shared) {
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const int vocab = static_cast<int>(s.vocab);
  for (int b = warp; b < s.blocks; b += kPickWarps) {
    unsigned n = 0;
    if (rank_in(best[b]) <= last) {
#pragma unroll
      for (int j = 0; j < kBlock / 32; ++j) {
        const int id = b * kBlock + 32 * j + lane;
        n += __popc(__ballot_sync(kAllLanes, id < vocab && row.rank(row.z[id], id) <= last));
      }
    }
    if (lane == 0) found[b] = n;
  }
  __syncthreads();
  unsigned all = 0;
  for (int b = 0; b < s.blocks; b += kPickThreads) {
    unsigned here = 0;
    const unsigned n = b + t < s.blocks ? found[b + t] : 0u;
    const unsigned before = block_sum_before(n, shared, &here);
    if (b + t < s.blocks) found[b + t] = all + before;
    all += here;
  }
  __syncthreads();
  for (int b = warp; b < s.blocks; b += kPickWarps) {
    if (rank_in(best[b]) > last) continue;
    unsigned at = found[b];
#pragma unroll
    for (int j = 0; j < kBlock / 32; ++j) {
      const int id = b * kBlock + 32 * j + lane;
      const unsigned rank = id < vocab ? row.rank(row.z[id], id) : 0xFFFFFFFFu;
      const bool in = id < vocab && rank <= last;
      const unsigned hits = __ballot_sync(kAllLanes, in);
      if (in)
        keys[at + static_cast<unsigned>(__popc(hits & ((1u << lane) - 1u)))] = key_of(rank, id);
      at += static_cast<unsigned>(__popc(hits));
    }
  }
  __syncthreads();
  return static_cast<int>(all);
}

// Ascending, in place; `other` is scratch.
__device__ __forceinline__ void sort(Key* keys, Key* other, int n, Shared& shared) {
  const int t = static_cast<int>(threadIdx.x);
  if (n > kSmallList) {  // ids ascend already: four passes over the logits' bits
    for (int shift = 32; shift < 64; shift += 16) {
      radix_pass(keys, other, n, shift, shared.digits, shared.sums);
      radix_pass(other, keys, n, shift + 8, shared.digits, shared.sums);
    }
    return;
  }
  for (int i = t; i < n; i += kPickThreads) shared.small[i] = keys[i];
  __syncthreads();
  for (int i = t; i < n; i += kPickThreads) {  // keys differ: each one's rank is its place
    const Key mine = shared.small[i];
    int place = 0;
    for (int j = 0; j < n; ++j) place += shared.small[j] < mine ? 1 : 0;
    keys[place] = mine;
  }
  __syncthreads();
}

// Sum of p[0 .. n) by the tree.
__device__ __forceinline__ float tree_sum(const float* p, int n, float* shared) {
  const int count = num::tree_lanes(n);
  float sum = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); static_cast<int>(threadIdx.x) < count && i < n;
       i += count) {
    sum = num::add(sum, p[i]);
  }
  // lanes that are zero change no bit of a sum of probabilities: 32 lanes fold in 256
  return block_fold(sum, shared);
}

// One warp: running sums over the list until it ends. Lane i of a round adds the same terms in the
// same order as lanes before it, so all hold one sum; it keeps the one that stands before its own
// term.
__device__ __forceinline__ void end_list(const SampleView& how, const float* p, float* running,
                                         int kept, float enough, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float sum = p[0];
  int last = kept;
  if (lane == 0) running[0] = sum;
  for (int first = 1; first < kept; first += 32) {
    const int at = first + lane;
    const float mine = at < kept ? p[at] : 0.0f;
    float before = sum;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float term = __shfl_sync(kAllLanes, mine, i);
      if (i == lane) before = sum;
      sum = num::add(sum, term);
    }
    if (at < kept) running[at] = num::add(before, mine);
    const bool goes_on = at < kept && mine >= how.min_p && before < enough;
    const unsigned stops = __ballot_sync(kAllLanes, !goes_on);
    if (stops != 0) {
      const int stop = __ffs(static_cast<int>(stops)) - 1;
      last = first + stop;
      sum = __shfl_sync(kAllLanes, before, stop);
      break;
    }
  }
  if (lane == 0) {
    shared.last = last;
    shared.sum = sum;
  }
}

__device__ __forceinline__ int first_index(Key candidate, Shared& shared) {
  return static_cast<int>(block_min(candidate, shared.mins));
}

__device__ __forceinline__ std::int32_t draw(const Logits& l, const Scratch& s, std::int64_t o,
                                             Shared& shared) {
  const int t = static_cast<int>(threadIdx.x);
  const SampleView& how = l.step->sampling[o];
  const Row row(l, o);
  const Key* const best = s.best + o * s.blocks;
  Key* const keys = s.keys + blockIdx.x * s.vocab;
  Key* const other = s.other + blockIdx.x * s.vocab;
  const Key first = first_of_row(s, o, shared);
  const unsigned last_of = last_rank(how, best, s.blocks, first);
  int n = gather(row, best, last_of, s, s.found + static_cast<std::int64_t>(blockIdx.x) * s.blocks,
                 keys, shared.sums);
  sort(keys, other, n, shared);
  if (how.top_k > 0) n = min(n, how.top_k);

  float* const p = reinterpret_cast<float*>(other);
  float* const running = p + s.vocab;
  const float z_first = logit_in(first);
  Key below = static_cast<Key>(n);
  for (int i = t; i < n; i += kPickThreads) {
    const float z = logit_in(keys[i]);
    const float e = num::exp(num::div(num::sub(z, z_first), how.temperature));
    const float pi = z == z_first ? 1.0f : e;
    p[i] = pi;
    if (i > 0 && !(pi >= kFloor)) below = min(below, static_cast<Key>(i));
  }
  const int kept = first_index(below, shared);  // its barriers make p whole
  float enough = num::bit_cast<float>(0x7F800000u);
  if (how.top_p < 1.0f) enough = num::mul(how.top_p, tree_sum(p, kept, shared.lanes));
  if (t < 32) end_list(how, p, running, kept, enough, shared);
  __syncthreads();
  const int last = shared.last;
  const float u = num::uniform(how.seed, static_cast<std::uint64_t>(how.position), 0);
  const float target = num::mul(u, shared.sum);
  Key at = static_cast<Key>(last - 1);
  for (int i = t; i < last; i += kPickThreads) {
    if (running[i] > target) at = min(at, static_cast<Key>(i));
  }
  return id_in(keys[first_index(at, shared)]);
}

__global__ void __launch_bounds__(kPickThreads) pick(Logits l, Scratch s, std::int32_t* tokens) {
  __shared__ Shared shared;
  const std::int64_t outputs = l.step->outputs;
  const SampleView* const how = l.step->sampling;
  if (blockIdx.x < outputs && how[blockIdx.x].temperature == 0.0f) {
    const Key first = first_of_row(s, blockIdx.x, shared);
    if (threadIdx.x == 0) tokens[blockIdx.x] = id_in(first);
  }
  if (blockIdx.x >= s.lanes) return;
  for (std::int64_t o = blockIdx.x; o < outputs; o += s.lanes) {
    if (how[o].temperature == 0.0f) continue;
    __syncthreads();  // the row before is done with scratch
    const std::int32_t token = draw(l, s, o, shared);
    if (threadIdx.x == 0) tokens[o] = token;
  }
}

}  // namespace

std::size_t sample_workspace_bytes(std::int64_t max_outputs, std::int64_t vocab) {
  Scratch s;
  return carve(max_outputs, vocab, nullptr, &s);
}

void sample(const Launch& to, const SampleArgs& a) {
  if (to.max_outputs <= 0) return;
  Scratch s;
  carve(to.max_outputs, a.logits.cols, a.workspace, &s);
  const bool wide =
      reinterpret_cast<std::uintptr_t>(a.logits.data) % 16 == 0 && a.logits.stride % 4 == 0;
  const Logits l{
      to.step, typed<const float>(a.logits), a.counts.counts, a.counts.vocab, a.logits.cols, wide};
  const std::int64_t warps = to.max_outputs * s.blocks;
  best_of_blocks<<<static_cast<unsigned>((warps + kScanWarps - 1) / kScanWarps), kScanThreads, 0,
                   to.stream>>>(l, s);
  pick<<<static_cast<unsigned>(to.max_outputs), kPickThreads, 0, to.stream>>>(l, s, a.tokens);
}

}  // namespace nibble::cuda
