// sequence_reference.h: the contracts of core/ops/ops.h for one sequence alone, as plain scalar
// loops in the order of the text. No records, no pages, no panels: rows that are taken back are
// forgotten by going back to the state after the last row that was kept.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/numerics/reduce.h"
#include "core/numerics/scalar.h"
#include "core/ops/ops.h"
#include "core/schedule/batch.h"

namespace nibble::test {

using Row = std::vector<float>;
inline std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// raw: all raw rows of the sequence up to and with this one. weight [C, kernel].
inline Row reference_conv(const DeltaShape& s, const std::vector<Row>& raw, const Row& weight) {
  Row y(at(s.channels()));
  const std::int64_t t = static_cast<std::int64_t>(raw.size()) - 1;
  for (std::int64_t c = 0; c < s.channels(); ++c) {
    float acc = 0.0f;
    for (std::int64_t j = 0; j < s.conv_kernel; ++j) {
      const std::int64_t p = t - s.conv_kernel + 1 + j;
      acc = num::fma(weight[at(c * s.conv_kernel + j)], p < 0 ? 0.0f : raw[at(p)][at(c)], acc);
    }
    y[at(c)] = num::silu(acc);
  }
  for (std::int64_t h = 0; h < 2 * s.key_heads; ++h) {
    float* head = y.data() + h * s.key_dim;
    const float r = num::rsqrt(num::add(num::tree_sum_squares(head, s.key_dim), 1e-6f));
    for (std::int64_t d = 0; d < s.key_dim; ++d) {
      head[d] = num::mul(head[d], r);
      if (h < s.key_heads)
        head[d] = num::mul(head[d], static_cast<float>(1.0 / std::sqrt(s.key_dim)));
    }
  }
  return y;
}

// One row of one value head. S [key_dim, value_dim].
inline void reference_step(std::int64_t K, std::int64_t V, float* S, const float* q, const float* k,
                           const float* v, float g, float beta, float* o) {
  const float d = num::exp(g);
  for (std::int64_t i = 0; i < K * V; ++i) S[i] = num::mul(d, S[i]);
  for (std::int64_t c = 0; c < V; ++c) {
    float p = 0.0f, out = 0.0f;
    for (std::int64_t i = 0; i < K; ++i) p = num::fma(S[i * V + c], k[i], p);
    const float u = num::mul(beta, num::sub(v[c], p));
    for (std::int64_t i = 0; i < K; ++i) {
      S[i * V + c] = num::fma(k[i], u, S[i * V + c]);
      out = num::fma(S[i * V + c], q[i], out);
    }
    o[c] = out;
  }
}

// One chunk of one value head: q, k [C][K], v, o [C][V].
inline void reference_chunk(std::int64_t K, std::int64_t V, float* S,
                            const std::vector<const float*>& q, const std::vector<const float*>& k,
                            const std::vector<const float*>& v, const Row& g, const Row& beta,
                            const std::vector<float*>& o) {
  const std::int64_t C = static_cast<std::int64_t>(g.size());
  Row G(at(C)), L(at(C * C)), A(at(C * C)), u(at(C * V));
  float sum = 0.0f;
  for (std::int64_t i = 0; i < C; ++i) G[at(i)] = sum = num::add(sum, g[at(i)]);
  const auto dot = [&](const float* a, const float* b) {
    float r = 0.0f;
    for (std::int64_t i = 0; i < K; ++i) r = num::fma(a[i], b[i], r);
    return r;
  };
  const auto state = [&](const float* x, std::int64_t c) {
    float r = 0.0f;
    for (std::int64_t i = 0; i < K; ++i) r = num::fma(S[i * V + c], x[i], r);
    return r;
  };
  for (std::int64_t i = 0; i < C; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      const float decay = num::exp(num::sub(G[at(i)], G[at(j)]));
      L[at(i * C + j)] = num::mul(num::mul(beta[at(i)], dot(k[at(i)], k[at(j)])), decay);
      A[at(i * C + j)] = num::mul(dot(q[at(i)], k[at(j)]), decay);
    }
  }
  for (std::int64_t c = 0; c < V; ++c) {
    for (std::int64_t i = 0; i < C; ++i) {
      const float R = num::mul(
          beta[at(i)], num::sub(v[at(i)][c], num::mul(num::exp(G[at(i)]), state(k[at(i)], c))));
      float t = 0.0f;
      for (std::int64_t j = 0; j < i; ++j) t = num::fma(L[at(i * C + j)], u[at(j * V + c)], t);
      u[at(i * V + c)] = num::sub(R, t);
    }
    for (std::int64_t i = 0; i < C; ++i) {
      float t = 0.0f;
      for (std::int64_t j = 0; j <= i; ++j) t = num::fma(A[at(i * C + j)], u[at(j * V + c)], t);
      o[at(i)][c] = num::add(num::mul(num::exp(G[at(i)]), state(q[at(i)], c)), t);
    }
  }
  const float last = G[at(C - 1)];
  for (std::int64_t i = 0; i < K; ++i) {
    for (std::int64_t c = 0; c < V; ++c) {
      float t = 0.0f;
      for (std::int64_t j = 0; j < C; ++j) {
        t = num::fma(num::mul(num::exp(num::sub(last, G[at(j)])), k[at(j)][i]), u[at(j * V + c)],
                     t);
      }
      S[i * V + c] = num::add(num::mul(num::exp(last), S[i * V + c]), t);
    }
  }
}

// A head: norm (weight may be nullptr) and rotation.
inline Row reference_rope(const float* x, const float* weight, float eps, std::int64_t dim,
                          std::int64_t rotary, const float* table) {
  Row y(x, x + dim);
  if (weight) {
    const float mean =
        num::mul(num::tree_sum_squares(x, dim), static_cast<float>(1.0 / static_cast<double>(dim)));
    const float r = num::rsqrt(num::add(mean, eps));
    for (std::int64_t d = 0; d < dim; ++d) y[at(d)] = num::mul(num::mul(x[d], r), weight[d]);
  }
  for (std::int64_t i = 0; i < rotary / 2; ++i) {
    const float a = y[at(i)], b = y[at(i + rotary / 2)], c = table[i], s = table[rotary / 2 + i];
    y[at(i)] = num::fma(a, c, -num::mul(b, s));
    y[at(i + rotary / 2)] = num::fma(b, c, num::mul(a, s));
  }
  return y;
}

// Of keys and of values that are codes of fp8, one for each row.
struct ReferenceScales {
  const Row &k, &v;
};

// One query head against keys and values of positions 0 .. (number of rows - 1).
inline Row reference_attention(const float* q, const std::vector<Row>& k, const std::vector<Row>& v,
                               std::int64_t offset, std::int64_t dim, float scale,
                               const ReferenceScales* codes = nullptr) {
  const std::int64_t count = static_cast<std::int64_t>(k.size());
  float m_all = 0, l_all = 0;
  Row o_all;
  for (std::int64_t split = 0; split < count; split += 1024) {
    float m = -INFINITY, l = 0.0f;
    Row o(at(dim), 0.0f);
    for (std::int64_t tile = split; tile < std::min<std::int64_t>(count, split + 1024);
         tile += 64) {
      float s[64], p[64], high = m;
      const std::int64_t n = std::min<std::int64_t>(64, count - tile);
      for (std::int64_t j = 0; j < n; ++j) {
        float dot = 0.0f;
        for (std::int64_t d = 0; d < dim; ++d)
          dot = num::fma(q[d], k[at(tile + j)][at(offset + d)], dot);
        s[j] = num::mul(codes == nullptr ? dot : num::mul(dot, codes->k[at(tile + j)]), scale);
        high = num::max(high, s[j]);
      }
      const float f = tile == split ? 0.0f : num::exp(num::sub(m, high));
      for (std::int64_t j = 0; j < 64; ++j) p[j] = j < n ? num::exp(num::sub(s[j], high)) : 0.0f;
      l = num::fma(l, f, num::tree_sum(p, 64));
      m = high;
      for (std::int64_t j = 0; codes != nullptr && j < n; ++j) p[j] = num::mul(p[j], codes->v[at(tile + j)]);
      for (std::int64_t d = 0; d < dim; ++d) {
        o[at(d)] = num::mul(o[at(d)], f);
        for (std::int64_t j = 0; j < n; ++j)
          o[at(d)] = num::fma(p[j], v[at(tile + j)][at(offset + d)], o[at(d)]);
      }
    }
    if (split == 0) {
      m_all = m, l_all = l, o_all = o;
      continue;
    }
    const float high = num::max(m_all, m), f = num::exp(num::sub(m_all, high)),
                h = num::exp(num::sub(m, high));
    l_all = num::fma(l, h, num::mul(l_all, f));
    for (std::int64_t d = 0; d < dim; ++d)
      o_all[at(d)] = num::fma(o[at(d)], h, num::mul(o_all[at(d)], f));
    m_all = high;
  }
  const float r = num::div(1.0f, l_all);
  for (float& x : o_all) x = num::mul(x, r);
  return o_all;
}

}  // namespace nibble::test
