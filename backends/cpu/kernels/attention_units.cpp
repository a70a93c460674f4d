// attention_units.cpp: attention as the matrix units of profiles sm90 and sm70 compute it. Contract and names:
// core/numerics/attention_order.h; q and the pages hold bf16 values for sm90, any for sm70.
//   map   up to 16 rows of one head, or heads of one row, against one page at a time; in it 16 keys, then 16 columns of the values
//   cost  2 * head_dim products a row and key, each a tenth of the speed of a chain's
#include <algorithm>
#include <cassert>

#include "backends/cpu/kernels/attention_pages.h"
#include "backends/cpu/kernels/rounding.h"
#include "backends/cpu/kernels/sequence_table.h"
#include "backends/cpu/kernels/unit_product.h"
#include "core/numerics/attention_order.h"
#include "core/numerics/row_scale.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

struct Sm90 {
  static constexpr int kMin = num::kBf16MinExponent;
  static constexpr num::MatrixOrder kOrder = num::kSm90Order;
  static constexpr bool kF16 = false;
  static constexpr int chain_of(int key) { return key / 2 % 4; }
};
struct Sm70 {
  static constexpr int kMin = num::kF16MinExponent;
  static constexpr num::MatrixOrder kOrder = num::kSm70Order;
  static constexpr bool kF16 = true;
  static constexpr int chain_of(int key) { return key / 2 % 2 + 2 * (key / 8 % 2); }
};

constexpr int kPanels = kTile / kPanel;  // of keys
static_assert(kPanel == kLanes && kTile == num::kAttentionTile && kTile % num::kSm90Order.group == 0);

// Whole panels of 16 to f16(x; e), with one e, and back.
void to_f16(float* values, std::int64_t panels, int e) {
  alignas(64) float down[kPanel];
  std::fill_n(down, kPanel, num::power_of_two(-e));
  rounding_kernels().f16_columns(values, panels, down);
}
// The largest finite magnitude of `count` values, and of what was seen before.
std::uint32_t largest_of(const float* values, std::int64_t count, std::uint32_t most) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t m = num::finite_magnitude(values[i]);
    most = m > most ? m : most;
  }
  return most;
}

template <class Unit>
class Block {
  static constexpr int kMin = Unit::kMin;
  static constexpr auto mma = unit_mma<Unit::kOrder.group, Unit::kOrder.fraction_bits, kMin>;

 public:
  explicit Block(const AttendUnitsTask& task) : t(task), free_(task.work) {
    assert(t.rows >= 1 && t.rows <= kPanel && t.position / kPanel == last() / kPanel);
    queries_ = left(t.head_dim);
    weights_ = left(kTile);
    scores_ = take(kPanels * kPanel * kPanel);
    o_ = take(t.head_dim * kPanel);
    panel_.values = take((t.head_dim < kTile ? kTile : t.head_dim) * kPanel);
    panel_.exponents = reinterpret_cast<std::int16_t*>(take((t.head_dim < kTile ? kTile : t.head_dim) * kPanel / 2));
    assert(free_ - t.work == attend_units_work_floats(t.head_dim));
    for (int i = 0; i < t.rows; ++i) {
      std::memcpy(queries_.values + i * t.head_dim, t.q + i * t.q_stride,
                  static_cast<std::size_t>(t.head_dim) * sizeof(float));
      m_[i] = -__builtin_inff();
      l_[i] = 0.0f;
      if constexpr (Unit::kF16) {
        float* const q = queries_.values + i * t.head_dim;
        const int e = num::activation_exponent(largest_of(q, t.head_dim, 0));
        to_f16(q, t.head_dim / kPanel, e);
        up_queries_[i] = num::power_of_two(e);
      }
    }
    queries_.finish();
    std::memset(o_, 0, static_cast<std::size_t>(t.head_dim) * kPanel * sizeof(float));
  }

  void tile(std::int64_t index) {
    const std::int64_t start = index * kTile;
    const int seen = within(last() - start + 1);
    page_ = attend_page(t.kv + t.pages[index] * t.page_stride, t.head_dim, t.wide);
    present_ = within(t.end - start);
    multiply_keys(page_.keys, seen);
    for (int i = 0; i < t.rows; ++i) weigh(i, within(t.position + i * t.step - start + 1));
    if constexpr (Unit::kF16) {
      to_f16(weights_.values, t.rows * kTile / kPanel, 0);
    } else {
      rounding_kernels().bf16(weights_.values, t.rows * kTile);
    }
    weights_.finish();
    multiply_values(page_.values, seen);
  }
  void finish() const {
    for (int i = 0; i < t.rows; ++i) {
      if (t.m != nullptr) {
        t.m[i] = m_[i];
        t.l[i] = l_[i];
        for (int d = 0; d < t.head_dim; d += kPanel) store(t.y + i * t.y_stride + d, load(o_ + (d + i) * kPanel));
        continue;
      }
      const F32x16 r = set1(num::div(1.0f, l_[i]));
      for (int d = 0; d < t.head_dim; d += kPanel) {
        store(t.y + i * t.y_stride + d, mul(load(o_ + (d + i) * kPanel), r));
      }
    }
  }

 private:
  float* take(int floats) {
    float* const at = free_;
    free_ += floats;
    return at;
  }
  Left<kMin> left(int stride) {
    float* const values = take(kPanel * stride);
    return {values, reinterpret_cast<std::int32_t*>(take(kPanel * stride)), t.rows, stride, true};
  }
  std::int64_t last() const { return t.position + (t.rows - 1) * t.step; }
  static int within(std::int64_t keys) { return keys < kTile ? static_cast<int>(keys) : kTile; }

  // Sums of q and k up to key `seen`, the last one that any row of the block sees.
  void multiply_keys(const float* keys, int seen) {
    std::memset(scores_, 0, kPanels * kPanel * kPanel * sizeof(float));
    panel_.rows = t.head_dim;
    int e = 0;
    if constexpr (Unit::kF16) {
      std::uint32_t most = 0;
      for (int j0 = 0; j0 < present_; j0 += kPanel) {
        const int count = present_ - j0 < kPanel ? present_ - j0 : kPanel;
        for (int d = 0; d < t.head_dim; ++d) most = largest_of(keys + j0 * t.head_dim + d * kPanel, count, most);
      }
      e = num::activation_exponent(most);
      up_keys_ = num::power_of_two(e);
    }
    for (int j0 = 0; j0 < seen; j0 += kPanel) {
      const float* const from = keys + j0 * t.head_dim;
      for (int d = 0; d < t.head_dim; ++d) {
        store(panel_.values + d * kPanel, first_of(load(from + d * kPanel), present_ - j0, zero()));
      }
      if constexpr (Unit::kF16) to_f16(panel_.values, t.head_dim, e);
      panel_.finish();
      mma(queries_, panel_, 0, t.rows, scores_ + j0 * kPanel);
    }
  }

  // Row i sees `count` keys of the tile: their w, and m, l and f.
  void weigh(int i, int count) {
    const F32x16 none = set1(-__builtin_inff());
    F32x16 x[kPanels], top = none;
    NIBBLE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      x[p] = load(scores_ + (p * kPanel + i) * kPanel);
      if constexpr (Unit::kF16) x[p] = mul(mul(x[p], set1(up_queries_[i])), set1(up_keys_));
      if (page_.key_scales != nullptr) x[p] = mul(x[p], load(page_.key_scales + p * kPanel));
      x[p] = mul(x[p], set1(t.scale));
      x[p] = first_of(x[p], count - p * kPanel, none);
      top = max(x[p], top);  // NaN is not greater
    }
    const float m = num::max(largest(top), m_[i]);
    float* const w = weights_.values + i * kTile;
    NIBBLE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const F32x16 highest = where_nan(x[p], x[p], set1(1.0f));
      const F32x16 all = where_less(x[p], set1(m), exp(sub(x[p], set1(m))), highest);
      store(w + p * kPanel, first_of(all, count - p * kPanel, zero()));
    }
    float sum[4] = {};
    for (int j = 0; j < kTile; ++j) sum[Unit::chain_of(j)] = num::add(sum[Unit::chain_of(j)], w[j]);
    f_[i] = m == m_[i] ? 1.0f : num::exp(num::sub(m_[i], m));
    l_[i] = num::fma(l_[i], f_[i], num::add(num::add(sum[0], sum[1]), num::add(sum[2], sum[3])));
    m_[i] = m;
    if (page_.value_scales == nullptr) return;
    NIBBLE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const F32x16 scaled = mul(load(w + p * kPanel), load(page_.value_scales + p * kPanel));
      store(w + p * kPanel, first_of(scaled, count - p * kPanel, zero()));
    }
  }

  // Numbers times weights of 0 leave O as it is, so groups of keys that no row sees are left out.
  void multiply_values(const float* values, int seen) {
    int e = 0;
    if constexpr (Unit::kF16) {
      std::uint32_t most = 0;
      for (int d = 0; d < t.head_dim; d += kPanel) most = largest_of(values + d * kTile, present_ * kPanel, most);
      e = num::activation_exponent(most);
    }
    for (int d = 0; d < t.head_dim; d += kPanel) {
      float* const o = o_ + d * kPanel;
      for (int i = 0; i < t.rows; ++i) store(o + i * kPanel, mul(load(o + i * kPanel), set1(f_[i])));
      const std::size_t bytes = static_cast<std::size_t>(present_) * kPanel * sizeof(float);
      std::memcpy(panel_.values, values + d * kTile, bytes);
      std::memset(panel_.values + present_ * kPanel, 0, kTile * kPanel * sizeof(float) - bytes);
      panel_.rows = kTile;
      if constexpr (Unit::kF16) to_f16(panel_.values, kTile, e);
      panel_.finish();
      if (panel_.ordinary) panel_.rows = (seen + kPanel - 1) / kPanel * kPanel;
      if constexpr (Unit::kF16) {
        alignas(64) float sums[kPanel * kPanel] = {};
        mma(weights_, panel_, 0, t.rows, sums);
        const F32x16 up = set1(num::power_of_two(e));
        for (int i = 0; i < t.rows * kPanel; i += kPanel) store(o + i, fma(up, load(sums + i), load(o + i)));
      } else {
        mma(weights_, panel_, 0, t.rows, o);
      }
    }
  }

  const AttendUnitsTask& t;
  AttendPage page_{};
  Left<kMin> queries_, weights_;  // [16, head_dim]; w: [16, 64]
  Right<kMin> panel_;             // of keys or values, +0 where the sequence has none
  float* scores_;                 // in panels of 16 keys: [4, 16, 16]
  float* o_;                      // O: [head_dim / 16, 16, 16]
  float m_[kPanel], l_[kPanel], f_[kPanel];
  float up_queries_[kPanel], up_keys_ = 1.0f;  // of f16: 2^e
  int present_ = 0;  // keys of the tile that the sequence has
  float* free_;
};

template <class Unit>
void attend_on(const AttendUnitsTask& t) {
  Block<Unit> block(t);
  for (std::int64_t tile = t.first_tile; tile < t.end_tile; ++tile) block.tile(tile);
  block.finish();
}

}  // namespace

void attend_units(const AttendUnitsTask& t) { attend_on<Sm90>(t); }
void attend_units_sm70(const AttendUnitsTask& t) { attend_on<Sm70>(t); }

}  // namespace nibble::cpu::NIBBLE_ISA
