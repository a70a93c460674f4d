// delta_units_reference.h: core/numerics/delta_order.h as plain scalar loops in the order of its text, for both of its
// profiles, and the gated delta rule in float64, for one value head.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/cpu/ops/sequence_ops.h"
#include "core/numerics/codecs.h"
#include "core/numerics/delta_order.h"
#include "tests/cpu/units_support.h"

namespace nibble::test {

using cpu::PrefillUnits;

struct DeltaHead {  // rows of one value head, and the state before them
  std::int64_t key_dim, value_dim, rows;
  std::int64_t position = 0;  // of the first row
  Row q, k, v, g, beta;       // [rows, ..]; for sm90 q, k and v hold bf16 values
  Row s;                      // [key_dim, value_dim]
  PrefillUnits units = PrefillUnits::sm90;
};

namespace units {

constexpr int kRows = 64;

constexpr auto mma_tf32 = mma<8, 25, num::kBf16MinExponent>;
inline Row slice(const Row& from, std::int64_t begin, std::int64_t count, std::int64_t step = 1) {
  Row r(at(count));
  for (std::int64_t i = 0; i < count; ++i) r[at(i)] = from[at(begin + i * step)];
  return r;
}

// X = (I + L)^-1, both [64, 64].
inline Row inverse(const Row& l) {
  constexpr int n = kRows, kBlock = num::kDeltaBlock;
  Row x(at(n * n), 0.0f);
  for (int b = 0; b < n; b += kBlock) {
    for (int i = b; i < b + kBlock; ++i) {
      for (int j = b; j < i; ++j) {
        float sum = 0.0f;
        for (int m = b; m < i; ++m) sum = num::fma(l[at(i * n + m)], x[at(m * n + j)], sum);
        x[at(i * n + j)] = -sum;
      }
      x[at(i * n + i)] = 1.0f;
    }
  }
  for (int below = kBlock; below < n; below += kBlock) {
    for (int r = below; r < n; r += kBlock) {
      const int c = r - below;
      for (int j = c; j < c + kBlock; ++j) {
        Row y;
        for (int i = r; i < r + kBlock; ++i) {
          float sum = 0.0f;
          for (int m = c; m < r; ++m) sum = num::fma(l[at(i * n + m)], x[at(m * n + j)], sum);
          y.push_back(sum);
        }
        for (int i = r; i < r + kBlock; ++i) {
          float sum = 0.0f;
          for (int m = 0; m < kBlock; ++m) sum = num::fma(x[at(i * n + r + m)], y[at(m)], sum);
          x[at(i * n + j)] = -sum;
        }
      }
    }
  }
  return x;
}

inline float d(float x) { return num::exp(x); }

// What both profiles have of rows first .. first + count of h: zeros behind them.
struct Chunk {
  std::vector<Row> k, q;    // as operands
  Row sums, beta, x, decayed;  // G; beta; X; W[i, j] * d(G_i - G_j), not yet rounded
  float last = 0.0f;        // G_last
};
inline Chunk chunk_of(const DeltaHead& h, std::int64_t first, std::int64_t count, float (*operand)(float),
                      float (*mma)(float, const Row&, const Row&)) {
  constexpr int n = kRows;
  const std::int64_t dim = h.key_dim;
  Chunk c;
  c.sums.resize(n);
  c.beta.resize(n);
  c.k.assign(n, Row(at(dim), 0.0f));
  c.q = c.k;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i < count) {
      c.last = num::add(c.last, h.g[at(first + i)]);
      c.beta[at(i)] = h.beta[at(first + i)];
      c.k[at(i)] = slice(h.k, (first + i) * dim, dim);
      c.q[at(i)] = slice(h.q, (first + i) * dim, dim);
      for (float& e : c.k[at(i)]) e = operand(e);
      for (float& e : c.q[at(i)]) e = operand(e);
    }
    c.sums[at(i)] = c.last;
  }
  Row l(n * n, 0.0f);
  c.decayed.assign(n * n, 0.0f);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const float decay = d(num::sub(c.sums[i], c.sums[j]));
      c.decayed[i * n + j] = num::mul(mma(0.0f, c.q[i], c.k[j]), decay);
      if (j < i) l[i * n + j] = num::mul(num::mul(c.beta[i], mma(0.0f, c.k[i], c.k[j])), decay);
    }
  }
  c.x = inverse(l);
  return c;
}
inline Row column_of(const Chunk& c, std::int64_t e) {  // of the keys
  Row keys;
  for (const Row& k : c.k) keys.push_back(k[at(e)]);
  return keys;
}
inline float value_of(const DeltaHead& h, std::int64_t first, std::int64_t count, std::int64_t i, std::int64_t v) {
  return i < count ? h.v[at((first + i) * h.value_dim + v)] : 0.0f;
}

// Rows first .. first + count of h; y [count, value_dim].
inline void chunk_sm90(DeltaHead& h, std::int64_t first, std::int64_t count, float* y) {
  constexpr int n = kRows;
  const std::int64_t dim = h.key_dim, width = h.value_dim;
  const Chunk c = chunk_of(h, first, count, [](float x) { return x; }, mma_bf16);
  Row a(n * n, 0.0f), m(n * n, 0.0f);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      a[i * n + j] = num::delta_tf32(num::mul(c.x[i * n + j], c.beta[j]));
      m[i * n + j] = bf16(c.decayed[i * n + j]);
    }
  }
  for (std::int64_t v = 0; v < width; ++v) {
    Row s = slice(h.s, v, dim, width), r(n, 0.0f), u(n), near_u(n), later_u(n), s16 = s;
    for (float& e : s16) e = bf16(e);
    for (std::int64_t i = 0; i < n; ++i) {
      const float p = mma_bf16(0.0f, c.k[at(i)], s16);
      r[at(i)] = num::delta_tf32(num::fma(-d(c.sums[at(i)]), p, value_of(h, first, count, i, v)));
    }
    for (std::size_t i = 0; i < n; ++i) {
      u[i] = mma_tf32(0.0f, slice(a, static_cast<std::int64_t>(i) * n, n), r);
      near_u[i] = bf16(u[i]);
      later_u[i] = bf16(num::mul(d(num::sub(c.last, c.sums[i])), u[i]));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float before = num::mul(d(c.sums[at(i)]), mma_bf16(0.0f, c.q[at(i)], s16));
      y[i * width + v] = mma_bf16(before, slice(m, i * n, n), near_u);
    }
    for (std::int64_t e = 0; e < dim; ++e) {
      h.s[at(e * width + v)] = mma_bf16(num::mul(d(c.last), s[at(e)]), column_of(c, e), later_u);
    }
  }
}

// e_Y of a column.
inline int column_exponent(const Row& column) {
  std::uint32_t most = 0;
  for (const float x : column) most = std::max(most, num::finite_magnitude(x));
  return num::weight_exponent(most);
}
inline Row scaled(Row column, int e) {
  for (float& x : column) x = f16(x, e);
  return column;
}

inline void chunk_sm70(DeltaHead& h, std::int64_t first, std::int64_t count, float* y) {
  constexpr int n = kRows;
  const std::int64_t dim = h.key_dim, width = h.value_dim;
  const Chunk c = chunk_of(h, first, count, [](float x) { return f16(x); }, mma_f16);
  Row a(n * n, 0.0f), m(n * n, 0.0f);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      a[i * n + j] = f16(c.x[i * n + j]);
      m[i * n + j] = f16(c.decayed[i * n + j]);
    }
  }
  for (std::int64_t v = 0; v < width; ++v) {
    const Row s = slice(h.s, v, dim, width);
    const int e_s = column_exponent(s);
    const Row s16 = scaled(s, e_s);
    Row r(n), u(n), later_u(n);
    for (std::int64_t i = 0; i < n; ++i) {
      const float p = num::mul(mma_f16(0.0f, c.k[at(i)], s16), num::power_of_two(e_s));
      const float rest = num::fma(-d(c.sums[at(i)]), p, value_of(h, first, count, i, v));
      r[at(i)] = num::mul(c.beta[at(i)], rest);
    }
    const int e_r = column_exponent(r);
    const Row r16 = scaled(r, e_r);
    for (std::int64_t i = 0; i < n; ++i) {
      u[at(i)] = num::mul(mma_f16(0.0f, slice(a, i * n, n), r16), num::power_of_two(e_r));
      later_u[at(i)] = num::mul(d(num::sub(c.last, c.sums[at(i)])), u[at(i)]);
    }
    const int e_u = column_exponent(u);
    const Row near_u16 = scaled(u, e_u), later_u16 = scaled(later_u, e_u);
    for (std::int64_t i = 0; i < count; ++i) {
      const float q = num::mul(mma_f16(0.0f, c.q[at(i)], s16), num::power_of_two(e_s));
      y[i * width + v] = num::fma(num::power_of_two(e_u), mma_f16(0.0f, slice(m, i * n, n), near_u16),
                                  num::mul(d(c.sums[at(i)]), q));
    }
    for (std::int64_t e = 0; e < dim; ++e) {
      h.s[at(e * width + v)] = num::fma(num::power_of_two(e_u), mma_f16(0.0f, column_of(c, e), later_u16),
                                        num::mul(d(c.last), s[at(e)]));
    }
  }
}

}  // namespace units

// y [rows, value_dim]; h.s becomes the state behind them.
inline Row reference_units(DeltaHead& h) {
  Row y(at(h.rows * h.value_dim));
  for (std::int64_t row = 0; row < h.rows;) {
    const std::int64_t count = std::min(h.rows - row, 64 - (h.position + row) % 64);
    (h.units == PrefillUnits::sm70 ? units::chunk_sm70 : units::chunk_sm90)(h, row, count, y.data() + row * h.value_dim);
    row += count;
  }
  return y;
}

inline std::vector<double> delta_in_float64(const DeltaHead& h) {
  const std::int64_t dim = h.key_dim, width = h.value_dim;
  std::vector<double> s(h.s.begin(), h.s.end()), y, p(at(width));
  for (std::int64_t i = 0; i < h.rows; ++i) {
    const double decay = std::exp(static_cast<double>(h.g[at(i)]));
    std::fill(p.begin(), p.end(), 0.0);
    for (std::int64_t e = 0; e < dim; ++e) {
      for (std::int64_t v = 0; v < width; ++v) {
        p[at(v)] += (s[at(e * width + v)] *= decay) * static_cast<double>(h.k[at(i * dim + e)]);
      }
    }
    std::vector<double> o(at(width));
    for (std::int64_t e = 0; e < dim; ++e) {
      const double key = h.k[at(i * dim + e)], query = h.q[at(i * dim + e)];
      for (std::int64_t v = 0; v < width; ++v) {
        const double u = static_cast<double>(h.beta[at(i)]) * (static_cast<double>(h.v[at(i * width + v)]) - p[at(v)]);
        o[at(v)] += (s[at(e * width + v)] += key * u) * query;
      }
    }
    y.insert(y.end(), o.begin(), o.end());
  }
  return y;
}

}  // namespace nibble::test
