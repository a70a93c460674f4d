// reference_sequence.cpp: the ops that know what came before a row.
#include <algorithm>
#include <cmath>

#include "core/parity/reference.h"

namespace nibble {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

void Reference::eval(const DeltaConv& a, Result& out) {
  const DeltaShape& d = a.shape;
  const View x = view(a.x);
  const std::vector<float>& w = constant(a.weight);
  const std::int64_t channels = d.channels(), taps = d.conv_kernel, past = taps - 1;
  std::vector<double>& conv = state_.delta[at(a.layer)].conv;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    double* const y = out.values.data() + t * channels;
    for (std::int64_t c = 0; c < channels; ++c) {
      double* const history = conv.data() + c * past;
      double sum = w[at(c * taps + past)] * x.row(t)[c];
      for (std::int64_t j = 0; j < past; ++j) sum += w[at(c * taps + j)] * history[j];
      if (past > 0) {
        std::copy(history + 1, history + past, history);
        history[past - 1] = x.row(t)[c];
      }
      y[c] = sum / (1 + std::exp(-sum));
    }
    for (std::int64_t h = 0; h < 2 * d.key_heads; ++h) {
      double* const head = y + h * d.key_dim;
      double sum = 0;
      for (std::int64_t i = 0; i < d.key_dim; ++i) sum += head[i] * head[i];
      double r = 1 / std::sqrt(sum + 1e-6);
      if (h < d.key_heads) r /= std::sqrt(static_cast<double>(d.key_dim));
      for (std::int64_t i = 0; i < d.key_dim; ++i) head[i] *= r;
    }
  }
}

void Reference::eval(const DeltaRule& a, Result& out) {
  const DeltaShape& d = a.shape;
  const View x = view(a.qkv), g = view(a.g), beta = view(a.beta);
  const std::int64_t K = d.key_dim, V = d.value_dim;
  std::vector<double> predicted(at(V)), u(at(V));
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t h = 0; h < d.value_heads; ++h) {
      const std::int64_t key_head = h / (d.value_heads / d.key_heads);
      const double* const q = x.row(t) + key_head * K;
      const double* const k = q + d.key_channels();
      const double* const v = x.row(t) + 2 * d.key_channels() + h * V;
      double* const S = state_.delta[at(a.layer)].s.data() + h * K * V;
      double* const o = out.values.data() + t * d.value_channels() + h * V;
      const double decay = std::exp(g.row(t)[h]);
      std::fill(predicted.begin(), predicted.end(), 0.0);
      for (std::int64_t i = 0; i < K; ++i) {
        for (std::int64_t c = 0; c < V; ++c) {
          S[i * V + c] *= decay;
          predicted[at(c)] += S[i * V + c] * k[i];
        }
      }
      for (std::int64_t c = 0; c < V; ++c) u[at(c)] = beta.row(t)[h] * (v[c] - predicted[at(c)]);
      for (std::int64_t i = 0; i < K; ++i) {
        for (std::int64_t c = 0; c < V; ++c) {
          S[i * V + c] += k[i] * u[at(c)];
          o[c] += S[i * V + c] * q[i];
        }
      }
    }
  }
}

void Reference::eval(const QkNormRope& a, Result& out) {
  const View q = view(a.q), k = view(a.k), v = view(a.v);
  const std::int64_t dim = a.shape.head_dim, pairs = a.rotary_dim / 2;
  State::Kv& kv = state_.kv[at(a.layer)];
  const auto head = [&](const double* x, ConstantId norm, std::int64_t position, double* y) {
    std::copy_n(x, dim, y);
    if (norm >= 0) {
      double sum = 0;
      for (std::int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
      const double r = 1 / std::sqrt(sum / static_cast<double>(dim) + a.eps);
      for (std::int64_t i = 0; i < dim; ++i) y[i] = x[i] * r * constant(norm)[at(i)];
    }
    const float* const table = constant(a.rope).data() + position * a.rotary_dim;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double first = y[i], second = y[i + pairs], cos = table[i], sin = table[pairs + i];
      y[i] = first * cos - second * sin;
      y[i + pairs] = second * cos + first * sin;
    }
  };
  std::vector<double> one(at(dim));
  for (std::int64_t t = 0; t < q.rows; ++t) {
    const std::int64_t position = batch_->ranges.front().position + t;
    for (std::int64_t h = 0; h < a.shape.heads; ++h) {
      head(q.row(t) + h * a.q_head_stride, a.q_norm, position,
           out.values.data() + (t * a.shape.heads + h) * dim);
    }
    for (std::int64_t h = 0; h < a.shape.kv_heads; ++h) {
      head(k.row(t) + h * dim, a.k_norm, position, one.data());
      kv.k.insert(kv.k.end(), one.begin(), one.end());
      kv.v.insert(kv.v.end(), v.row(t) + h * dim, v.row(t) + (h + 1) * dim);
    }
  }
}

void Reference::eval(const Attention& a, Result& out) {
  const View q = view(a.q);
  const State::Kv& kv = state_.kv[at(a.layer)];
  const std::int64_t dim = a.shape.head_dim, width = a.shape.kv_heads * dim;
  std::vector<double> p;
  for (std::int64_t t = 0; t < q.rows; ++t) {
    const std::int64_t keys = batch_->ranges.front().position + t + 1;
    p.resize(at(keys));
    for (std::int64_t h = 0; h < a.shape.heads; ++h) {
      const std::int64_t shared = h / (a.shape.heads / a.shape.kv_heads) * dim;
      const double* const query = q.row(t) + h * dim;
      double most = -INFINITY, sum = 0;
      for (std::int64_t j = 0; j < keys; ++j) {
        const double* const key = kv.k.data() + j * width + shared;
        double s = 0;
        for (std::int64_t i = 0; i < dim; ++i) s += query[i] * key[i];
        p[at(j)] = s * a.scale;
        most = std::max(most, p[at(j)]);
      }
      double* const o = out.values.data() + (t * a.shape.heads + h) * dim;
      for (std::int64_t j = 0; j < keys; ++j) {
        const double weight = std::exp(p[at(j)] - most);
        sum += weight;
        const double* const value = kv.v.data() + j * width + shared;
        for (std::int64_t i = 0; i < dim; ++i) o[i] += weight * value[i];
      }
      for (std::int64_t i = 0; i < dim; ++i) o[i] /= sum;
    }
  }
}

}  // namespace nibble
