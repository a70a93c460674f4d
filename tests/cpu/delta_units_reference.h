// delta_units_reference.h: core/numerics/delta_order.h as plain scalar loops in the order of its text, and the gated
// delta rule in float64, for one value head.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/numerics/codecs.h"
#include "core/numerics/delta_order.h"
#include "core/numerics/fused_dot.h"
#include "tests/cpu/sequence_reference.h"

namespace nibble::test {

struct DeltaHead {  // rows of one value head, and the state before them
  std::int64_t key_dim, value_dim, rows;
  std::int64_t position = 0;  // of the first row
  Row q, k, v, g, beta;       // [rows, ..]; q, k and v hold bf16 values
  Row s;                      // [key_dim, value_dim]
};

inline float bf16(float x) { return num::bf16_to_float(num::float_to_bf16(x)); }

namespace units {

constexpr int kRows = 64;

template <int Group>
float mma(float c, const Row& a, const Row& b) {
  for (std::size_t x = 0; x < a.size(); x += Group) {
    c = num::fused_dot<Group, 25>(a.data() + x, b.data() + x, c);
  }
  return c;
}
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

// Rows first .. first + count of h; y [count, value_dim].
inline void chunk(DeltaHead& h, std::int64_t first, std::int64_t count, float* y) {
  constexpr int n = kRows;
  const std::int64_t dim = h.key_dim, width = h.value_dim;
  Row sums(n), beta(n, 0.0f);
  std::vector<Row> k(n, Row(at(dim), 0.0f)), q = k;
  float last = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i < count) {
      last = num::add(last, h.g[at(first + i)]);
      beta[at(i)] = h.beta[at(first + i)];
      k[at(i)] = slice(h.k, (first + i) * dim, dim);
      q[at(i)] = slice(h.q, (first + i) * dim, dim);
    }
    sums[at(i)] = last;
  }
  const auto d = [](float x) { return num::exp(x); };

  Row l(n * n, 0.0f), a(n * n, 0.0f), m(n * n, 0.0f);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const float decay = d(num::sub(sums[i], sums[j]));
      m[i * n + j] = bf16(num::mul(mma<16>(0.0f, q[i], k[j]), decay));
      if (j < i) l[i * n + j] = num::mul(num::mul(beta[i], mma<16>(0.0f, k[i], k[j])), decay);
    }
  }
  const Row x = inverse(l);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) a[i * n + j] = num::delta_tf32(num::mul(x[i * n + j], beta[j]));
  }
  for (std::int64_t v = 0; v < width; ++v) {
    Row s = slice(h.s, v, dim, width), r(n, 0.0f), u(n), near_u(n), later_u(n), s16 = s;
    for (float& e : s16) e = bf16(e);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(n); ++i) {
      const float value = i < count ? h.v[at((first + i) * width + v)] : 0.0f;
      r[at(i)] = num::delta_tf32(num::fma(-d(sums[at(i)]), mma<16>(0.0f, k[at(i)], s16), value));
    }
    for (std::size_t i = 0; i < n; ++i) {
      u[i] = mma<8>(0.0f, slice(a, static_cast<std::int64_t>(i) * n, n), r);
      near_u[i] = bf16(u[i]);
      later_u[i] = bf16(num::mul(d(num::sub(last, sums[i])), u[i]));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float before = num::mul(d(sums[at(i)]), mma<16>(0.0f, q[at(i)], s16));
      y[i * width + v] = mma<16>(before, slice(m, i * n, n), near_u);
    }
    for (std::int64_t e = 0; e < dim; ++e) {
      Row keys(n);
      for (std::size_t j = 0; j < n; ++j) keys[j] = k[j][at(e)];
      h.s[at(e * width + v)] = mma<16>(num::mul(d(last), s[at(e)]), keys, later_u);
    }
  }
}

}  // namespace units

// y [rows, value_dim]; h.s becomes the state behind them.
inline Row reference_units(DeltaHead& h) {
  Row y(at(h.rows * h.value_dim));
  for (std::int64_t row = 0; row < h.rows;) {
    const std::int64_t count = std::min(h.rows - row, 64 - (h.position + row) % 64);
    units::chunk(h, row, count, y.data() + row * h.value_dim);
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
