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
};

namespace units {

inline float larger(float a, float b) {  // of two numbers, or the one that is a number
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a > b ? a : b;
}

inline Row attention_row(const AttentionHead& h, std::int64_t row) {
  constexpr std::int64_t kTile = num::kAttentionTile;
  const std::int64_t p = h.position + row, end = h.position + h.rows;
  const Row q(h.q.begin() + row * h.dim, h.q.begin() + (row + 1) * h.dim);
  float m = -INFINITY, l = 0.0f;
  Row o(at(h.dim), 0.0f);
  for (std::int64_t start = 0; start <= p; start += kTile) {
    Row x(kTile, -INFINITY), w(kTile, 0.0f), operand(kTile);
    float next = m;
    for (std::int64_t j = 0; j < kTile && start + j <= p; ++j) {
      const auto key = h.k.begin() + (start + j) * h.dim;
      x[at(j)] = num::mul(mma_bf16(0.0f, q, Row(key, key + h.dim)), h.scale);
      next = larger(next, x[at(j)]);
    }
    const float f = next == m ? 1.0f : num::exp(num::sub(m, next));
    float chain[4] = {};
    for (std::int64_t j = 0; j < kTile; ++j) {
      if (start + j <= p) w[at(j)] = x[at(j)] == next ? 1.0f : num::exp(num::sub(x[at(j)], next));
      chain[j / 2 % 4] = num::add(chain[j / 2 % 4], w[at(j)]);
      operand[at(j)] = bf16(w[at(j)]);
    }
    l = num::fma(l, f, num::add(num::add(chain[0], chain[1]), num::add(chain[2], chain[3])));
    m = next;
    for (std::int64_t d = 0; d < h.dim; ++d) {
      Row column(kTile, 0.0f);
      for (std::int64_t j = 0; j < kTile && start + j < end; ++j) column[at(j)] = h.v[at((start + j) * h.dim + d)];
      o[at(d)] = mma_bf16(num::mul(f, o[at(d)]), operand, column);
    }
  }
  for (float& y : o) y = num::mul(y, num::div(1.0f, l));
  return o;
}

}  // namespace units

inline Row reference_units(const AttentionHead& h) {  // [rows, dim]
  Row y;
  for (std::int64_t row = 0; row < h.rows; ++row) append(y, units::attention_row(h, row));
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
