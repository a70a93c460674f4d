// attention_units_reference.h: core/numerics/attention_order.h as plain scalar loops in the order of its text, and
// softmax attention in float64, for the last rows of one head of one sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/numerics/attention_order.h"
#include "tests/cpu/units_support.h"

namespace nibble::test {

struct AttentionHead {
  std::int64_t dim, position, rows;  // position of the first row
  Row q;                             // [rows, dim], bf16 values
  Row k, v;                          // [position + rows, dim], bf16 values
  float scale;
  bool sm70 = false;                 // of that profile, with any values
  Row k_scales, v_scales;            // [position + rows] where k and v are codes of fp8, else none
};

namespace units {

inline float larger(float a, float b) {  // of two numbers, or the one that is a number
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a > b ? a : b;
}

struct Sums {
  float m = -INFINITY, l = 0.0f;
  Row o;
};

// Tiles from key `begin` to key `stop` of a row; values from key `end` on count as +0.
inline Sums attention_tiles(const AttentionHead& h, std::int64_t row, std::int64_t begin, std::int64_t stop,
                            std::int64_t end) {
  constexpr std::int64_t kTile = num::kAttentionTile;
  const std::int64_t p = h.position + row;
  const Row q(h.q.begin() + row * h.dim, h.q.begin() + (row + 1) * h.dim);
  Sums s;
  s.o.assign(at(h.dim), 0.0f);
  for (std::int64_t start = begin; start <= p && start < stop; start += kTile) {
    Row x(kTile, -INFINITY), w(kTile, 0.0f), operand(kTile);
    float next = s.m;
    for (std::int64_t j = 0; j < kTile && start + j <= p; ++j) {
      const auto key = h.k.begin() + (start + j) * h.dim;
      const float sum = mma_bf16(0.0f, q, Row(key, key + h.dim));
      x[at(j)] = num::mul(h.k_scales.empty() ? sum : num::mul(sum, h.k_scales[at(start + j)]), h.scale);
      next = larger(next, x[at(j)]);
    }
    const float f = next == s.m ? 1.0f : num::exp(num::sub(s.m, next));
    float chain[4] = {};
    for (std::int64_t j = 0; j < kTile; ++j) {
      if (start + j <= p) w[at(j)] = x[at(j)] == next ? 1.0f : num::exp(num::sub(x[at(j)], next));
      chain[j / 2 % 4] = num::add(chain[j / 2 % 4], w[at(j)]);
      const bool scaled = !h.v_scales.empty() && start + j <= p;
      operand[at(j)] = bf16(scaled ? num::mul(w[at(j)], h.v_scales[at(start + j)]) : w[at(j)]);
    }
    s.l = num::fma(s.l, f, num::add(num::add(chain[0], chain[1]), num::add(chain[2], chain[3])));
    s.m = next;
    for (std::int64_t d = 0; d < h.dim; ++d) {
      Row column(kTile, 0.0f);
      for (std::int64_t j = 0; j < kTile && start + j < end; ++j) column[at(j)] = h.v[at((start + j) * h.dim + d)];
      s.o[at(d)] = mma_bf16(num::mul(f, s.o[at(d)]), operand, column);
    }
  }
  return s;
}

inline Row divided(const Sums& s) {
  Row y;
  for (const float o : s.o) y.push_back(num::mul(o, num::div(1.0f, s.l)));
  return y;
}

inline int activation_exponent(const Row& x, std::int64_t begin, std::int64_t count) {
  std::uint32_t most = 0;
  for (std::int64_t i = begin; i < begin + count; ++i) most = std::max(most, num::finite_magnitude(x[at(i)]));
  return num::activation_exponent(most);
}
inline float times_power(float x, int e) { return num::mul(x, num::power_of_two(e)); }

// A prefill row in profile sm70.
inline Sums attention_tiles_sm70(const AttentionHead& h, std::int64_t row) {
  constexpr std::int64_t kTile = num::kAttentionTile;
  const std::int64_t p = h.position + row, end = h.position + h.rows;
  const int e_q = activation_exponent(h.q, row * h.dim, h.dim);
  Row q;
  for (std::int64_t d = 0; d < h.dim; ++d) q.push_back(f16(h.q[at(row * h.dim + d)], e_q));
  Sums s;
  s.o.assign(at(h.dim), 0.0f);
  for (std::int64_t start = 0; start <= p; start += kTile) {
    const std::int64_t there = std::min(kTile, end - start);
    const int e_k = activation_exponent(h.k, start * h.dim, there * h.dim), e_v = activation_exponent(h.v, start * h.dim, there * h.dim);
    Row x(kTile, -INFINITY), w(kTile, 0.0f), operand(kTile);
    float next = s.m;
    for (std::int64_t j = 0; j < kTile && start + j <= p; ++j) {
      Row key;
      for (std::int64_t d = 0; d < h.dim; ++d) key.push_back(f16(h.k[at((start + j) * h.dim + d)], e_k));
      x[at(j)] = num::mul(times_power(times_power(mma_f16(0.0f, q, key), e_q), e_k), h.scale);
      next = larger(next, x[at(j)]);
    }
    const float f = next == s.m ? 1.0f : num::exp(num::sub(s.m, next));
    float chain[4] = {};
    for (std::int64_t j = 0; j < kTile; ++j) {
      if (start + j <= p) w[at(j)] = x[at(j)] == next ? 1.0f : num::exp(num::sub(x[at(j)], next));
      float& of = chain[j / 2 % 2 + 2 * (j / 8 % 2)];
      of = num::add(of, w[at(j)]);
      operand[at(j)] = f16(w[at(j)]);
    }
    s.l = num::fma(s.l, f, num::add(num::add(chain[0], chain[1]), num::add(chain[2], chain[3])));
    s.m = next;
    for (std::int64_t d = 0; d < h.dim; ++d) {
      Row column(kTile, 0.0f);
      for (std::int64_t j = 0; j < there; ++j) column[at(j)] = f16(h.v[at((start + j) * h.dim + d)], e_v);
      s.o[at(d)] = num::fma(num::power_of_two(e_v), mma_f16(0.0f, operand, column), num::mul(f, s.o[at(d)]));
    }
  }
  return s;
}
inline Row prefill_row(const AttentionHead& h, std::int64_t row) {
  if (h.sm70) return divided(attention_tiles_sm70(h, row));
  return divided(attention_tiles(h, row, 0, h.position + row + 1, h.position + h.rows));
}
inline Row decode_row(const AttentionHead& h, std::int64_t row) {
  constexpr std::int64_t kSplit = num::kAttentionSplit;
  const std::int64_t end = h.position + row + 1;
  Sums all = attention_tiles(h, row, 0, kSplit, end);
  for (std::int64_t begin = kSplit; begin < end; begin += kSplit) {
    const Sums later = attention_tiles(h, row, begin, begin + kSplit, end);
    const float m = num::max(all.m, later.m);
    const float f = num::exp(num::sub(all.m, m)), g = num::exp(num::sub(later.m, m));
    all.m = m;
    all.l = num::fma(later.l, g, num::mul(all.l, f));
    for (std::int64_t d = 0; d < h.dim; ++d) {
      all.o[at(d)] = num::fma(later.o[at(d)], g, num::mul(all.o[at(d)], f));
    }
  }
  return divided(all);
}

}  // namespace units

// [rows, dim]
inline Row reference_units(const AttentionHead& h, Section section = Section::prefill) {
  Row y;
  for (std::int64_t row = 0; row < h.rows; ++row) {
    append(y, section == Section::prefill ? units::prefill_row(h, row) : units::decode_row(h, row));
  }
  return y;
}

inline std::vector<double> attention_in_float64(const AttentionHead& h) {
  std::vector<double> y;
  for (std::int64_t row = 0; row < h.rows; ++row) {
    std::vector<double> x, o(at(h.dim), 0.0);
    double sum = 0;
    for (std::int64_t j = 0; j <= h.position + row; ++j) {
      double dot = 0;
      for (std::int64_t d = 0; d < h.dim; ++d) {
        dot += static_cast<double>(h.q[at(row * h.dim + d)]) * static_cast<double>(h.k[at(j * h.dim + d)]);
      }
      x.push_back(dot * static_cast<double>(h.scale));
    }
    const double most = *std::max_element(x.begin(), x.end());
    for (std::size_t j = 0; j < x.size(); ++j) {
      const double w = std::exp(x[j] - most);
      sum += w;
      for (std::size_t d = 0; d < o.size(); ++d) o[d] += w * static_cast<double>(h.v[j * o.size() + d]);
    }
    for (const double d : o) y.push_back(d / sum);
  }
  return y;
}

}  // namespace nibble::test
