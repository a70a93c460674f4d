// sequence_alone.h: random inputs that depend on a sequence and a position only, and the plain
// reference run over one sequence at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/state/state_layout.h"
#include "tests/cpu/sequence_reference.h"

namespace nibble::test {

// In [-1, 1), by one mixing step (splitmix64) of the three numbers.
inline float noise(std::uint64_t seed, std::int64_t position, std::int64_t i) {
  std::uint64_t z = (seed * 0x100000001B3u + static_cast<std::uint64_t>(position)) * 0x10001u +
                    static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<float>(static_cast<std::int64_t>(z ^ (z >> 31)) >> 40) * 0x1p-23f;
}
inline Row noise_row(std::uint64_t seed, std::int64_t position, std::int64_t count) {
  Row r(at(count));
  for (std::int64_t i = 0; i < count; ++i) r[at(i)] = noise(seed, position, i);
  return r;
}

struct Shapes {
  std::vector<DeltaShape> delta;
  std::vector<AttentionShape> attention;
  std::int32_t rotary = 8;
  std::int64_t positions = 320;
  std::int32_t records = 4;
  StateLayout layout() const { return {attention, delta}; }
};

// Weights of the two stacks, from their layer numbers alone.
struct Constants {
  explicit Constants(const Shapes& s) {
    for (std::size_t i = 0; i < s.delta.size(); ++i) {
      const DeltaShape& d = s.delta[i];
      conv.push_back(noise_row(900 + i, 0, d.channels() * d.conv_kernel));
      neg_exp_a.push_back(noise_row(901 + i, 1, d.value_heads));
      for (float& x : neg_exp_a.back()) x = -0.05f - 0.2f * std::fabs(x);
      dt_bias.push_back(noise_row(902 + i, 2, d.value_heads));
    }
    for (std::size_t i = 0; i < s.attention.size(); ++i) {
      q_norm.push_back(noise_row(903 + i, 3, s.attention[i].head_dim));
      k_norm.push_back(noise_row(904 + i, 4, s.attention[i].head_dim));
    }
    for (std::int64_t p = 0; p < s.positions; ++p) {
      for (std::int64_t i = 0; i < s.rotary; ++i) {
        const double angle =
            static_cast<double>(p) *
            std::pow(1e4, -2.0 * static_cast<double>(i % (s.rotary / 2)) / s.rotary);
        rope.push_back(static_cast<float>(i < s.rotary / 2 ? std::cos(angle) : std::sin(angle)));
      }
    }
  }
  std::vector<Row> conv, neg_exp_a, dt_bias, q_norm, k_norm;
  Row rope;
};

// A row's inputs: of its sequence's seed and its position only.
struct Inputs {
  Inputs(const Shapes& s, std::uint64_t seed, std::int64_t position) {
    for (std::size_t i = 0; i < s.delta.size(); ++i) {
      raw.push_back(noise_row(seed * 64 + i, position, s.delta[i].channels()));
      ab.push_back(noise_row(seed * 64 + 16 + i, position, 2 * s.delta[i].value_heads));
    }
    for (std::size_t i = 0; i < s.attention.size(); ++i) {
      const AttentionShape& a = s.attention[i];
      q.push_back(noise_row(seed * 64 + 32 + i, position, 2 * a.heads * a.head_dim));  // with gates
      kv.push_back(noise_row(seed * 64 + 48 + i, position, 2 * a.kv_heads * a.head_dim));
    }
  }
  std::vector<Row> raw, ab, q, kv;
};

struct Out {  // of one row, by layer
  std::vector<Row> conv, delta, q, attention;
};

struct Move {  // a range and what its rows are made of
  Range range;
  std::uint64_t seed = 0;
};

class Alone {
 public:
  Alone(const Shapes& s, const Constants& c) : s_(s), c_(c) {
    State zero;
    for (const DeltaShape& d : s.delta) {
      zero.S.emplace_back(at(std::int64_t{d.value_heads} * d.key_dim * d.value_dim), 0.0f);
    }
    states_ = {zero};
    raw_.resize(s.delta.size());
    k_.resize(s.attention.size());
    v_.resize(s.attention.size());
  }

  std::vector<Out> step(const Move& m) {
    const Range& r = m.range;
    states_.resize(at(r.keep + 1));
    states_.front() = states_.back();
    states_.resize(1);
    for (auto& rows : raw_) rows.resize(at(r.position));
    for (auto& rows : k_) rows.resize(at(r.position));
    for (auto& rows : v_) rows.resize(at(r.position));

    std::vector<Out> out(at(r.rows));
    std::vector<Inputs> in;
    for (std::int64_t i = 0; i < r.rows; ++i) in.emplace_back(s_, m.seed, r.position + i);
    if (r.section == Section::prefill) {
      State state = states_.front();
      for (std::size_t layer = 0; layer < s_.delta.size(); ++layer)
        prefill(layer, r, in, out, state);
      states_ = {state};
    } else {
      for (std::int64_t i = 0; i < r.rows; ++i) {
        State state = states_.back();
        for (std::size_t layer = 0; layer < s_.delta.size(); ++layer)
          recur(layer, in[at(i)], out[at(i)], state);
        states_.push_back(state);
      }
    }
    for (std::size_t layer = 0; layer < s_.attention.size(); ++layer) {
      for (std::int64_t i = 0; i < r.rows; ++i)
        attend(layer, r.position + i, in[at(i)], out[at(i)]);
    }
    return out;
  }
  // Keys and values up to a position without their queries: for attention layers alone.
  void skip_to(std::int64_t position, std::uint64_t seed) {
    for (std::int64_t p = 0; p < position; ++p) {
      const Inputs in(s_, seed, p);
      for (std::size_t layer = 0; layer < s_.attention.size(); ++layer) remember(layer, p, in);
    }
  }
  std::int32_t pending() const { return static_cast<std::int32_t>(states_.size()) - 1; }
  const Row& S(std::size_t layer, std::int32_t keep) const { return states_[at(keep)].S[layer]; }
  const std::vector<Row>& raw(std::size_t layer) const { return raw_[layer]; }

 private:
  struct State {
    std::vector<Row> S;
  };
  float gate(std::size_t layer, const Inputs& in, std::int64_t h) const {
    return num::mul(c_.neg_exp_a[layer][at(h)],
                    num::softplus(num::add(in.ab[layer][at(h)], c_.dt_bias[layer][at(h)])));
  }
  float beta(std::size_t layer, const Inputs& in, std::int64_t h) const {
    return num::sigmoid(in.ab[layer][at(s_.delta[layer].value_heads + h)]);
  }
  void recur(std::size_t layer, const Inputs& in, Out& out, State& state) {
    const DeltaShape& d = s_.delta[layer];
    raw_[layer].push_back(in.raw[layer]);
    out.conv.push_back(reference_conv(d, raw_[layer], c_.conv[layer]));
    const float* x = out.conv.back().data();
    out.delta.emplace_back(at(d.value_channels()));
    for (std::int64_t h = 0; h < d.value_heads; ++h) {
      const std::int64_t kh = h / (d.value_heads / d.key_heads);
      reference_step(d.key_dim, d.value_dim, state.S[layer].data() + h * d.key_dim * d.value_dim,
                     x + kh * d.key_dim, x + d.key_channels() + kh * d.key_dim,
                     x + 2 * d.key_channels() + h * d.value_dim, gate(layer, in, h),
                     beta(layer, in, h), out.delta.back().data() + h * d.value_dim);
    }
  }
  void prefill(std::size_t layer, const Range& r, const std::vector<Inputs>& in,
               std::vector<Out>& out, State& state) {
    const DeltaShape& d = s_.delta[layer];
    for (std::int64_t i = 0; i < r.rows; ++i) {
      raw_[layer].push_back(in[at(i)].raw[layer]);
      out[at(i)].conv.push_back(reference_conv(d, raw_[layer], c_.conv[layer]));
      out[at(i)].delta.emplace_back(at(d.value_channels()));
    }
    for (std::int64_t h = 0; h < d.value_heads; ++h) {
      const std::int64_t kh = h / (d.value_heads / d.key_heads);
      for (std::int64_t row = 0; row < r.rows;) {
        const std::int64_t end = std::min<std::int64_t>(r.rows, row + 64 - (r.position + row) % 64);
        std::vector<const float*> q, k, v;
        std::vector<float*> o;
        Row g, b;
        for (; row < end; ++row) {
          const float* x = out[at(row)].conv[layer].data();
          q.push_back(x + kh * d.key_dim);
          k.push_back(x + d.key_channels() + kh * d.key_dim);
          v.push_back(x + 2 * d.key_channels() + h * d.value_dim);
          g.push_back(gate(layer, in[at(row)], h));
          b.push_back(beta(layer, in[at(row)], h));
          o.push_back(out[at(row)].delta[layer].data() + h * d.value_dim);
        }
        reference_chunk(d.key_dim, d.value_dim, state.S[layer].data() + h * d.key_dim * d.value_dim,
                        q, k, v, g, b, o);
      }
    }
  }
  void remember(std::size_t layer, std::int64_t position, const Inputs& in) {
    const AttentionShape& a = s_.attention[layer];
    Row k;
    for (std::int64_t h = 0; h < a.kv_heads; ++h) {
      const Row head =
          reference_rope(in.kv[layer].data() + h * a.head_dim, c_.k_norm[layer].data(), 1e-6f,
                         a.head_dim, s_.rotary, c_.rope.data() + position * s_.rotary);
      k.insert(k.end(), head.begin(), head.end());
    }
    k_[layer].push_back(k);
    v_[layer].emplace_back(in.kv[layer].begin() + a.kv_heads * a.head_dim, in.kv[layer].end());
  }
  void attend(std::size_t layer, std::int64_t position, const Inputs& in, Out& out) {
    const AttentionShape& a = s_.attention[layer];
    remember(layer, position, in);
    Row q, y;
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const Row head =
          reference_rope(in.q[layer].data() + 2 * h * a.head_dim, c_.q_norm[layer].data(), 1e-6f,
                         a.head_dim, s_.rotary, c_.rope.data() + position * s_.rotary);
      q.insert(q.end(), head.begin(), head.end());
      const Row part = reference_attention(head.data(), k_[layer], v_[layer],
                                           h / (a.heads / a.kv_heads) * a.head_dim, a.head_dim,
                                           static_cast<float>(1.0 / std::sqrt(a.head_dim)));
      y.insert(y.end(), part.begin(), part.end());
    }
    out.q.push_back(q);
    out.attention.push_back(y);
  }

  const Shapes& s_;
  const Constants& c_;
  std::vector<State> states_;  // after 0, 1, ... pending rows
  std::vector<std::vector<Row>> raw_, k_, v_;
};

}  // namespace nibble::test
