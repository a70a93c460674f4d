#include "backends/cpu/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "backends/cpu/kernels/sample.h"
#include "core/numerics/philox.h"
#include "core/numerics/reduce.h"

namespace nibble::cpu {

namespace {

const SampleKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, sample_kernels());
}

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// Below this a candidate adds nothing to a running sum that starts at 1 and cannot be drawn.
constexpr float kFloor = 0x1p-24f;
// ln(2^-24) is -16.64: what lies further down than this is below the floor, rounding included.
constexpr double kReach = 17.5;
// From here on a radix sort beats a comparison sort.
constexpr std::int64_t kRadixFrom = 4096;

constexpr std::uint64_t round_up(std::uint64_t n) {
  return (n + 63) / 64 * 64;
}

// One row's scratch, in this order.
struct Lane {
  std::uint64_t *keys, *other;  // [vocab + 1]
  float* z;                     // [vocab]; probabilities once the candidates are out
  float *block_max, *ranked;    // [blocks]

  static std::uint64_t blocks(std::int64_t vocab) {
    return static_cast<std::uint64_t>((vocab + kSampleBlock - 1) / kSampleBlock);
  }
  static std::uint64_t bytes(std::int64_t vocab) {
    const auto n = static_cast<std::uint64_t>(vocab);
    return 2 * round_up((n + 1) * 8) + round_up(n * 4) + 2 * round_up(blocks(vocab) * 4);
  }
  Lane(std::byte* at, std::int64_t vocab) {
    const auto n = static_cast<std::uint64_t>(vocab);
    const auto take = [&at](std::uint64_t size) {
      std::byte* const here = at;
      at += round_up(size);
      return here;
    };
    keys = reinterpret_cast<std::uint64_t*>(take((n + 1) * 8));
    other = reinterpret_cast<std::uint64_t*>(take((n + 1) * 8));
    z = reinterpret_cast<float*>(take(n * 4));
    block_max = reinterpret_cast<float*>(take(blocks(vocab) * 4));
    ranked = reinterpret_cast<float*>(take(blocks(vocab) * 4));
  }
};

// Ascending by the upper half; keys come by ascending lower half and the sort is stable.
// Returns the buffer that holds the result.
std::uint64_t* radix_sort(std::uint64_t* from, std::uint64_t* to, std::int64_t n) {
  constexpr int kBits = 11, kDigits = 1 << kBits;
  for (int shift = 32; shift < 64; shift += kBits) {
    std::uint32_t at[kDigits] = {};
    for (std::int64_t i = 0; i < n; ++i) ++at[from[i] >> shift & (kDigits - 1)];
    std::uint32_t sum = 0, largest = 0;
    for (std::uint32_t& a : at) {
      const std::uint32_t count = a;
      largest = std::max(largest, count);
      a = sum;
      sum += count;
    }
    if (largest == static_cast<std::uint32_t>(n)) continue;  // one digit for all
    for (std::int64_t i = 0; i < n; ++i) to[at[from[i] >> shift & (kDigits - 1)]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

// Tokens of later rows are in `counts` already: where there is no other one, the penalty is undone.
void undo_later(const SampleRow& row, std::int64_t vocab, Lane& lane) {
  for (const std::int32_t token : row.later) {
    const auto again = std::count(row.later.begin(), row.later.end(), token);
    if (row.counts[token] > again) continue;
    const float v = row.logits[token];
    lane.z[token] = v == v ? num::add(v, 0.0f) : kMinusInf;
    const std::int64_t block = token / kSampleBlock, first = block * kSampleBlock;
    float most = kMinusInf;
    for (std::int64_t i = first; i < std::min(first + kSampleBlock, vocab); ++i) {
      most = num::max(lane.z[i], most);
    }
    lane.block_max[block] = most;
  }
}

// Logits that cannot be among the first top_k, or that lie below the floor, are below this.
float threshold(const SampleParams& params, float z_first, std::int64_t vocab, Lane& lane) {
  const auto blocks = static_cast<std::int64_t>(Lane::blocks(vocab));
  const double reach =
      static_cast<double>(z_first) - kReach * static_cast<double>(params.temperature);
  float low = reach < -std::numeric_limits<float>::max() ? kMinusInf : static_cast<float>(reach);
  if (params.top_k > 0 && params.top_k <= blocks) {
    // at least top_k logits reach the k-th largest of the blocks' maxima
    float* const kth = lane.ranked + params.top_k - 1;
    std::copy_n(lane.block_max, blocks, lane.ranked);
    std::nth_element(lane.ranked, kth, lane.ranked + blocks, std::greater<>());
    low = std::max(low, *kth);
  }
  return low;
}

// The candidates in order, cut to top_k. Returns their number.
std::int64_t order(const SampleKernels& kernels, const SampleParams& params, float z_first,
                   std::int64_t vocab, Lane& lane) {
  std::int64_t n = kernels.gather(lane.z, lane.block_max, threshold(params, z_first, vocab, lane),
                                  vocab, lane.keys);
  if (params.top_k > 0 && n > params.top_k) {
    std::nth_element(lane.keys, lane.keys + params.top_k - 1, lane.keys + n);
    n = params.top_k;
    std::sort(lane.keys, lane.keys + n);
  } else if (n < kRadixFrom) {
    std::sort(lane.keys, lane.keys + n);
  } else if (radix_sort(lane.keys, lane.other, n) == lane.other) {
    std::swap(lane.keys, lane.other);
  }
  return n;
}

// Position in the list p[0 .. n) that is drawn.
std::int64_t draw(const SampleParams& params, const float* p, std::int64_t n) {
  std::int64_t kept = 1;  // the first one is 1 and always stays
  while (kept < n && p[kept] >= kFloor) ++kept;
  const float enough = params.top_p < 1.0f ? num::mul(params.top_p, num::tree_sum(p, kept))
                                           : std::numeric_limits<float>::infinity();
  float sum = p[0];
  std::int64_t last = 1;
  for (; last < kept && p[last] >= params.min_p && sum < enough; ++last)
    sum = num::add(sum, p[last]);
  const float u = num::uniform(params.seed, static_cast<std::uint64_t>(params.position), 0);
  const float target = num::mul(u, sum);
  float running = p[0];
  std::int64_t at = 0;
  while (!(running > target) && at + 1 < last) running = num::add(running, p[++at]);
  return at;
}

std::int32_t sample_row(const SampleKernels& kernels, const SampleRow& row, std::int64_t vocab,
                        Lane lane) {
  const SampleParams& params = *row.params;
  const bool penalty = params.repetition_penalty != 1.0f && row.counts != nullptr;
  if (params.temperature == 0.0f && !penalty) {
    return static_cast<std::int32_t>(kernels.argmax(row.logits, vocab));
  }
  kernels.condition(row.logits, penalty ? row.counts : nullptr, params.repetition_penalty, vocab,
                    lane.z, lane.block_max);
  if (penalty) undo_later(row, vocab, lane);
  if (params.temperature == 0.0f) {
    return static_cast<std::int32_t>(kernels.argmax(lane.z, vocab));
  }
  const auto blocks = static_cast<std::int64_t>(Lane::blocks(vocab));
  const float z_first = *std::max_element(lane.block_max, lane.block_max + blocks);
  const std::int64_t n = order(kernels, params, z_first, vocab, lane);
  float* const p = lane.z;
  kernels.probabilities(lane.keys, n, z_first, params.temperature, p);
  return candidate_id(lane.keys[draw(params, p, n)]);
}

}  // namespace

std::uint64_t sample_workspace_bytes(std::int64_t vocab, std::int64_t lanes) {
  return Lane::bytes(vocab) * static_cast<std::uint64_t>(lanes);
}

void sample(Isa isa, Parallel& parallel, std::span<const SampleRow> rows, std::int64_t vocab,
            std::byte* workspace, std::int64_t lanes, std::int32_t* tokens) {
  const SampleKernels& kernels = kernels_of(isa);
  const auto count = static_cast<std::int64_t>(rows.size());
  parallel(std::min(lanes, count), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const Lane lane(workspace + static_cast<std::uint64_t>(l) * Lane::bytes(vocab), vocab);
      for (std::int64_t r = l; r < count; r += lanes) {
        tokens[r] = sample_row(kernels, rows[static_cast<std::size_t>(r)], vocab, lane);
      }
    }
  });
}

void token_logprob(Isa isa, Parallel& parallel, const float* logits, std::int64_t stride,
                   std::int64_t vocab, std::span<const std::int32_t> targets, double* logprobs) {
  const SampleKernels& kernels = kernels_of(isa);
  const auto count = static_cast<std::int64_t>(targets.size());
  parallel(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* const z = logits + r * stride;
      float largest = 0, sum = 0;
      kernels.sum_exp(z, vocab, &largest, &sum);
      logprobs[r] = static_cast<double>(z[targets[static_cast<std::size_t>(r)]]) -
                    static_cast<double>(largest) - std::log(static_cast<double>(sum));
    }
  });
}

}  // namespace nibble::cpu
