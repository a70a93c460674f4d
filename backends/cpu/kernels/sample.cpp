#include "backends/cpu/kernels/sample.h"

#include "core/numerics/reduce.h"
#include "core/numerics/scalar.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

constexpr int kWide = 64;  // independent maxima, enough to hide the latency of a comparison
constexpr float kMinusInf = -__builtin_inff();

// NaN never wins a comparison, so it needs no care here.
float largest_of(const float* __restrict x, std::int64_t n) {
  float m[kWide];
  for (int j = 0; j < kWide; ++j) m[j] = kMinusInf;
  std::int64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    for (int j = 0; j < kWide; ++j) m[j] = num::max(x[i + j], m[j]);
  }
  for (int j = 0; i + j < n; ++j) m[j] = num::max(x[i + j], m[j]);
  for (int s = kWide / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) m[j] = num::max(m[j + s], m[j]);
  }
  return m[0];
}

std::int64_t argmax(const float* logits, std::int64_t n) {
  float best = kMinusInf;
  std::int64_t at = 0, size = 0;
  for (std::int64_t b = 0; b < n; b += kSampleBlock) {
    const std::int64_t count = n - b < kSampleBlock ? n - b : kSampleBlock;
    const float m = largest_of(logits + b, count);
    if (m > best) {
      best = m;
      at = b;
      size = count;
    }
  }
  for (std::int64_t i = at; i < at + size; ++i) {
    if (logits[i] == best) return i;
  }
  return 0;  // nothing above -inf
}

void condition(const float* __restrict logits, const std::int32_t* __restrict counts, float penalty,
               std::int64_t n, float* __restrict z, float* __restrict block_max) {
  for (std::int64_t b = 0; b < n; b += kSampleBlock) {
    const std::int64_t count = n - b < kSampleBlock ? n - b : kSampleBlock;
    const float* __restrict from = logits + b;
    float* __restrict to = z + b;
    if (counts == nullptr) {
      for (std::int64_t i = 0; i < count; ++i) {
        const float v = from[i];
        to[i] = num::add(v == v ? v : kMinusInf, 0.0f);
      }
    } else {
      const std::int32_t* __restrict seen = counts + b;
      for (std::int64_t i = 0; i < count; ++i) {
        const float v = from[i] == from[i] ? from[i] : kMinusInf;
        const float less = num::div(v, penalty), more = num::mul(v, penalty);
        const float punished = v > 0.0f ? less : more;
        to[i] = num::add(seen[i] > 0 ? punished : v, 0.0f);
      }
    }
    block_max[b / kSampleBlock] = largest_of(to, count);
  }
}

std::int64_t gather(const float* z, const float* block_max, float threshold, std::int64_t n,
                    std::uint64_t* out) {
  std::int64_t found = 0;
  for (std::int64_t b = 0; b < n; b += kSampleBlock) {
    if (!(block_max[b / kSampleBlock] >= threshold)) continue;
    const std::int64_t end = n - b < kSampleBlock ? n : b + kSampleBlock;
    for (std::int64_t i = b; i < end; ++i) {
      out[found] = candidate_key(z[i], i);
      found += z[i] >= threshold ? 1 : 0;
    }
  }
  return found;
}

void probabilities(const std::uint64_t* __restrict keys, std::int64_t n, float z_first,
                   float temperature, float* __restrict p) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float z = candidate_logit(keys[i]);
    const float e = num::exp(num::div(num::sub(z, z_first), temperature));
    p[i] = z == z_first ? 1.0f : e;
  }
}

void sum_exp(const float* logits, std::int64_t n, float* largest, float* sum) {
  const float m = largest_of(logits, n);
  *largest = m;
  *sum = num::tree_reduce(
      n, [=](float s, std::int64_t i) { return num::add(s, num::exp(num::sub(logits[i], m))); });
}

}  // namespace

const SampleKernels& sample_kernels() {
  static constexpr SampleKernels kTable = {argmax, condition, gather, probabilities, sum_exp};
  return kTable;
}

}  // namespace nibble::cpu::NIBBLE_ISA
