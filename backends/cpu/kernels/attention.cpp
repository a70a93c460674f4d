// attention.cpp: norm and rotation of q and k heads; softmax attention over one split of the pages.
//   map   all queries that share a kv head (rows times group) against one page at a time:
//         scores = q times the transposed keys, then p times the values, both as tiles of chains
//   cost  4 * head_dim flop a query and key, 8 * head_dim bytes a key
#include "backends/cpu/kernels/attention_pages.h"
#include "backends/cpu/kernels/sequence_table.h"
#include "backends/cpu/kernels/tile.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

NIBBLE_INLINE float normed(const RopeTask& t, float r, int d) {
  return t.weight ? num::mul(num::mul(t.x[d], r), t.weight[d]) : t.x[d];
}

template <bool Dense>
NIBBLE_INLINE void rope_head(const RopeTask& t) {
  const std::int64_t step = Dense ? 1 : t.y_stride;
  float r = 1.0f;
  if (t.weight) {
    const float mean =
        num::mul(tree<true>(t.x, t.head_dim), static_cast<float>(1.0 / t.head_dim));
    r = num::rsqrt(num::add(mean, t.eps));
  }
  const int half = t.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float c = t.rope[i], s = t.rope[half + i];
    const float a = normed(t, r, i), b = normed(t, r, half + i);
    t.y[i * step] = num::fma(a, c, -num::mul(b, s));
    t.y[(half + i) * step] = num::fma(b, c, num::mul(a, s));
  }
  for (int d = 2 * half; d < t.head_dim; ++d) t.y[d * step] = normed(t, r, d);
}

// Scores to probabilities of one query, times the values' scales; its running maximum and sum. n: keys it may see.
NIBBLE_INLINE void softmax(float* s, int n, float scale, const AttendPage& page, float& m, float& l, float& factor,
                           bool first) {
  constexpr int kVectors = kTile / kLanes;
  const F32x16 none = set1(-__builtin_inff());
  F32x16 x[kVectors];
  F32x16 top = none;
  for (int v = 0; v < kVectors; ++v) {
    x[v] = load(s + v * kLanes);
    if (page.key_scales != nullptr) x[v] = mul(x[v], load(page.key_scales + v * kLanes));
    x[v] = mul(x[v], set1(scale));
    if (n < kTile) x[v] = first_of(x[v], n - v * kLanes, none);
    top = max(top, x[v]);
  }
  // A score that is no number makes the whole result that, whether or not the maximum shows it.
  const float highest = num::max(m, largest(top));
  F32x16 lanes[2] = {zero(), zero()};  // the tree's, for 64 terms
  for (int v = 0; v < kVectors; ++v) {
    x[v] = exp(sub(x[v], set1(highest)));
    if (n < kTile) x[v] = first_of(x[v], n - v * kLanes, zero());  // highest may be infinite or no number
    lanes[v % 2] = add(lanes[v % 2], x[v]);
    if (page.value_scales != nullptr) x[v] = mul(x[v], load(page.value_scales + v * kLanes));
    store(s + v * kLanes, x[v]);  // those beyond the query's keys nobody reads
  }
  factor = first ? 0.0f : num::exp(num::sub(m, highest));
  l = num::fma(l, factor, fold(add(lanes[0], lanes[1])));
  m = highest;
}
static_assert(kTile == 2 * num::kTreeShort && num::kTreeShort == 2 * kLanes);

}  // namespace

void rope(const RopeTask& t) {
  if (t.y_stride == 1) {
    rope_head<true>(t);
  } else {
    rope_head<false>(t);
  }
}

void attend(const AttendTask& t) {
  const int panels = (t.head_dim + kPanel - 1) / kPanel;
  const std::int64_t o_stride = std::int64_t{panels} * kPanel;
  for (int i = 0; i < t.queries; ++i) {
    t.m[i] = -__builtin_inff();
    t.l[i] = 0.0f;
  }
  for (std::int64_t i = 0; i < t.queries * o_stride; ++i) t.o[i] = 0.0f;

  int first = 0;  // queries before it see nothing of the tile
  for (std::int64_t tile = t.first_tile; tile < t.end_tile; ++tile) {
    const std::int64_t start = tile * kTile;
    while (first < t.queries && t.last[first] < start) ++first;
    const int queries = t.queries - first;
    if (queries == 0) break;
    for (int i = first; i < t.queries; ++i) {
      t.count[i] = t.last[i] - start < kTile ? static_cast<int>(t.last[i] - start) + 1 : kTile;
    }
    const AttendPage page = attend_page(t.kv + t.pages[tile] * t.page_stride, t.head_dim, t.wide);
    const float *const keys = page.keys, *const values = page.values;

    const int seen = t.count[t.queries - 1];
    for_panel_groups((seen + kPanel - 1) / kPanel, [&]<int P>(int p0) {
      const std::int64_t panel = std::int64_t{t.head_dim} * kPanel;
      for_row_blocks(queries, [&]<int M>(int i0) {
        Tile<M, P> sum;
        clear(sum);
        extend(sum, t.q + std::int64_t{first + i0} * t.head_dim, t.head_dim,
               Panels{keys + p0 * panel, kPanel, panel}, 0, t.head_dim);
        NIBBLE_UNROLL
        for (int m = 0; m < M; ++m) {
          NIBBLE_UNROLL
          for (int p = 0; p < P; ++p) {
            store(t.scores + (first + i0 + m) * kTile + (p0 + p) * kPanel, sum.at[m][p]);
          }
        }
      });
    });

    for (int i = first; i < t.queries; ++i) {
      softmax(t.scores + i * kTile, t.count[i], t.scale, page, t.m[i], t.l[i], t.factor[i],
              tile == t.first_tile);
    }

    for_panel_groups(panels, [&]<int P>(int p0) {
      const Panels v = {values + p0 * kTile * kPanel, kPanel, kTile * kPanel};
      for_row_blocks(queries, [&]<int M>(int block) {
        const int i0 = first + block;
        float* o = t.o + i0 * o_stride + p0 * kPanel;
        const float* p_row = t.scores + i0 * kTile;
        Tile<M, P> sum;
        NIBBLE_UNROLL
        for (int m = 0; m < M; ++m) {
          NIBBLE_UNROLL
          for (int p = 0; p < P; ++p) {
            sum.at[m][p] = mul(load(o + m * o_stride + p * kPanel), set1(t.factor[i0 + m]));
          }
        }
        const int common = t.count[i0];  // counts ascend
        extend(sum, p_row, kTile, v, 0, common);
        NIBBLE_UNROLL
        for (int m = 0; m < M; ++m) {
          NIBBLE_UNROLL
          for (int p = 0; p < P; ++p) {
            F32x16 x = sum.at[m][p];
            for (int j = common; j < t.count[i0 + m]; ++j) {
              x = fma(set1(p_row[m * kTile + j]), load(v.data + p * v.panel_stride + j * kPanel),
                      x);
            }
            store(o + m * o_stride + p * kPanel, x);
          }
        }
      });
    });
  }
}

void combine(const CombineTask& t) {
  const std::int64_t stride = (t.head_dim + kPanel - 1) / kPanel * kPanel;
  for (int i = 0; i < t.queries; ++i) {
    const float m = num::max(t.m[i], t.m_later[i]);
    const float f = num::exp(num::sub(t.m[i], m)), h = num::exp(num::sub(t.m_later[i], m));
    t.m[i] = m;
    t.l[i] = num::fma(t.l_later[i], h, num::mul(t.l[i], f));
    float* o = t.o + i * stride;
    const float* later = t.o_later + i * stride;
    for (std::int64_t d = 0; d < stride; d += kLanes) {
      store(o + d, fma(load(later + d), set1(h), mul(load(o + d), set1(f))));
    }
  }
}

void finish(const float* o, float l, int columns, float* y) {
  const F32x16 r = set1(num::div(1.0f, l));
  for (int d = 0; d < columns; d += kLanes) {
    store_part(y + d, mul(load(o + d), r), columns - d);
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
