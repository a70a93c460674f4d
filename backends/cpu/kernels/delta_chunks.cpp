// delta_chunks.cpp: the delta rule for prefill rows, in chunks on the absolute 64-grid.
//   map   a chunk's L and attention once, then 16 or 64 columns of S at a time, which stay in L1
//   cost  about 8 * 64 * key_dim multiply-adds a row and 16 columns -> arithmetic bound
#include "backends/cpu/kernels/sequence_table.h"
#include "backends/cpu/kernels/tile.h"

namespace nibble::cpu::NIBBLE_ISA {
namespace {

struct Chunk {
  const DeltaTask& t;
  int row, rows;     // of the task
  float* keys;       // [4, key_dim, 16]: column j is key j
  float* decayed;    // [key_dim, 64]: exp(G_last - G_j) * k_j[k]
  float* lower;      // [64, 64]: L, below the diagonal
  float* attention;  // [64, 64]: q_i k_j exp(G_i - G_j), on and below it
  float* u;          // [panels of a group, 64, 16]
  float* sums;       // [64]: G
  float* grown;      // [64]: exp(G)
  float* rest;       // [64]: exp(G_last - G)
  float last;        // exp(G_last)

  Chunk(const DeltaTask& task, int first, int count) : t(task), row(first), rows(count) {
    const std::int64_t key_floats = std::int64_t{t.key_dim} * kTile;
    keys = t.work;
    decayed = keys + key_floats;
    lower = decayed + key_floats;
    attention = lower + kTile * kTile;
    u = attention + kTile * kTile;
    sums = u + 4 * kPanel * kTile;
    grown = sums + kTile;
    rest = grown + kTile;
  }

  const float* q(int i) const { return t.q + (row + i) * t.qkv_stride; }
  const float* k(int i) const { return t.k + (row + i) * t.qkv_stride; }
  const float* v(int i) const { return t.v + (row + i) * t.qkv_stride; }
  float beta(int i) const { return t.beta[(row + i) * t.beta_stride]; }
};
static_assert(kTilePanels <= 4);

void prepare_gates(Chunk& c) {
  float sum = 0.0f;
  for (int i = 0; i < c.rows; ++i) {
    sum = num::add(sum, c.t.g[(c.row + i) * c.t.g_stride]);
    c.sums[i] = sum;
  }
  for (int i = c.rows; i < kTile; ++i) c.sums[i] = sum;
  for (int i = 0; i < kTile; i += kLanes) {
    const F32x16 g = load(c.sums + i);
    store(c.grown + i, exp(g));
    store(c.rest + i, exp(sub(set1(sum), g)));
  }
  c.last = num::exp(sum);
}

// 16 keys and 16 of their elements at a time: the misses of 16 rows are on their way at once.
void prepare_keys(Chunk& c) {
  for (int j0 = 0; j0 < c.rows; j0 += kPanel) {
    float* panel = c.keys + std::int64_t{j0} * c.t.key_dim;
    const F32x16 rest = load(c.rest + j0);
    for (int k0 = 0; k0 < c.t.key_dim; k0 += kLanes) {
      const int count = c.t.key_dim - k0 < kLanes ? c.t.key_dim - k0 : kLanes;
      F32x16 x[kLanes];
      NIBBLE_UNROLL
      for (int j = 0; j < kLanes; ++j) {
        x[j] = j0 + j < c.rows ? load_part(c.k(j0 + j) + k0, count) : zero();
      }
      transpose(x);
      for (int k = 0; k < count; ++k) {
        store(panel + (k0 + k) * kPanel, x[k]);
        store(c.decayed + std::int64_t{k0 + k} * kTile + j0, mul(rest, x[k]));
      }
    }
  }
}
static_assert(kPanel == kLanes);

// Products of keys (or queries) with keys, on and below the diagonal.
void products(const Chunk& c, const float* left, float* to) {
  const Panels right = {c.keys, kPanel, std::int64_t{c.t.key_dim} * kPanel};
  for_panel_groups((c.rows + kPanel - 1) / kPanel, [&]<int P>(int p0) {
    for_row_blocks(c.rows, [&]<int M>(int i0) {
      if (i0 + M <= p0 * kPanel) return;
      Tile<M, P> sum;
      clear(sum);
      Panels b = right;
      b.data += p0 * b.panel_stride;
      extend(sum, left + i0 * c.t.qkv_stride, c.t.qkv_stride, b, 0, c.t.key_dim);
      NIBBLE_UNROLL
      for (int m = 0; m < M; ++m) {
        NIBBLE_UNROLL
        for (int p = 0; p < P; ++p) store(to + (i0 + m) * kTile + (p0 + p) * kPanel, sum.at[m][p]);
      }
    });
  });
}

void prepare_products(const Chunk& c) {
  products(c, c.k(0), c.lower);
  products(c, c.q(0), c.attention);
  for (int i = 0; i < c.rows; ++i) {
    const F32x16 g = set1(c.sums[i]), beta = set1(c.beta(i));
    for (int j = 0; j <= i; j += kLanes) {  // what lies above the diagonal is never read
      float *l = c.lower + i * kTile + j, *a = c.attention + i * kTile + j;
      const F32x16 decay = exp(sub(g, load(c.sums + j)));
      store(l, mul(mul(beta, load(l)), decay));
      store(a, mul(load(a), decay));
    }
  }
}

// Rows of the next chunk lie a whole activation row apart, where no prefetcher of a processor looks.
NIBBLE_INLINE void prefetch_next(const Chunk& c, int i0, int rows) {
  constexpr int kLine = 64 / sizeof(float);
  for (int i = c.rows + i0; i < c.rows + i0 + rows && c.row + i < c.t.rows; ++i) {
    for (int k = 0; k < c.t.key_dim; k += kLine) {
      __builtin_prefetch(c.k(i) + k, 0, 2);
      __builtin_prefetch(c.q(i) + k, 0, 2);
    }
    for (int v = 0; v < c.t.columns; v += kLine) {
      __builtin_prefetch(c.v(i) + v, 0, 2);
      __builtin_prefetch(c.t.y + (c.row + i) * c.t.y_stride + v, 1, 2);
    }
  }
}

// u by forward substitution, rows ascending.
template <int P>
void solve(const Chunk& c, const Panels& s, int p0) {
  const Panels u = {c.u, kPanel, kTile * kPanel};
  for_row_blocks(c.rows, [&]<int M>(int i0) {
    if (p0 == 0) prefetch_next(c, i0, M);
    Tile<M, P> t;
    clear(t);
    extend(t, c.k(i0), c.t.qkv_stride, s, 0, c.t.key_dim);
    NIBBLE_UNROLL
    for (int m = 0; m < M; ++m) {
      const F32x16 beta = set1(c.beta(i0 + m)), grown = set1(c.grown[i0 + m]);
      const float* value = c.v(i0 + m);
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) {
        const int at = (p0 + p) * kPanel;
        const F32x16 v = load_part(value + at, c.t.columns - at);
        store(c.u + (p * kTile + i0 + m) * kPanel, mul(beta, sub(v, mul(grown, t.at[m][p]))));
      }
    }
    clear(t);
    extend(t, c.lower + i0 * kTile, kTile, u, 0, i0);
    NIBBLE_UNROLL
    for (int m = 0; m < M; ++m) {
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) {
        float* at = c.u + (p * kTile + i0 + m) * kPanel;
        const F32x16 x = sub(load(at), t.at[m][p]);
        store(at, x);
        NIBBLE_UNROLL
        for (int n = m + 1; n < M; ++n) {
          t.at[n][p] = fma(set1(c.lower[(i0 + n) * kTile + i0 + m]), x, t.at[n][p]);
        }
      }
    }
  });
}

template <int P>
void output(const Chunk& c, const Panels& s, int p0) {
  const Panels u = {c.u, kPanel, kTile * kPanel};
  for_row_blocks(c.rows, [&]<int M>(int i0) {
    Tile<M, P> t;
    clear(t);
    extend(t, c.q(i0), c.t.qkv_stride, s, 0, c.t.key_dim);
    F32x16 past[M][P];
    NIBBLE_UNROLL
    for (int m = 0; m < M; ++m) {
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) past[m][p] = mul(set1(c.grown[i0 + m]), t.at[m][p]);
    }
    clear(t);
    extend(t, c.attention + i0 * kTile, kTile, u, 0, i0);
    NIBBLE_UNROLL
    for (int m = 0; m < M; ++m) {
      float* y = c.t.y + (c.row + i0 + m) * c.t.y_stride;
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) {
        F32x16 x = t.at[m][p];
        for (int j = i0; j <= i0 + m; ++j) {
          x = fma(set1(c.attention[(i0 + m) * kTile + j]), load(c.u + (p * kTile + j) * kPanel), x);
        }
        const int at = (p0 + p) * kPanel;
        store_part(y + at, add(past[m][p], x), c.t.columns - at);
      }
    }
  });
}

template <int P>
void advance(const Chunk& c, float* s, std::int64_t panel) {
  const Panels u = {c.u, kPanel, kTile * kPanel};
  const F32x16 last = set1(c.last);
  for_row_blocks(c.t.key_dim, [&]<int M>(int k0) {
    Tile<M, P> t;
    clear(t);
    extend(t, c.decayed + std::int64_t{k0} * kTile, kTile, u, 0, c.rows);
    NIBBLE_UNROLL
    for (int m = 0; m < M; ++m) {
      NIBBLE_UNROLL
      for (int p = 0; p < P; ++p) {
        float* at = s + p * panel + (k0 + m) * kPanel;
        store(at, add(mul(last, load(at)), t.at[m][p]));
      }
    }
  });
}

}  // namespace

void delta_chunks(const DeltaTask& t) {
  if (t.records.count > 0) fold({t.s, t.s, t.panels, t.key_dim, t.records});
  const std::int64_t panel = std::int64_t{t.key_dim} * kPanel;
  for (int row = 0; row < t.rows;) {
    const int room = kTile - static_cast<int>((t.position + row) % kTile);
    Chunk c(t, row, room < t.rows - row ? room : t.rows - row);
    prepare_gates(c);
    prepare_keys(c);
    prepare_products(c);
    for_panel_groups(t.panels, [&]<int P>(int p0) {
      float* s = t.s + p0 * panel;
      const Panels state = {s, kPanel, panel};
      solve<P>(c, state, p0);
      output<P>(c, state, p0);
      advance<P>(c, s, panel);
    });
    row += c.rows;
  }
}

}  // namespace nibble::cpu::NIBBLE_ISA
