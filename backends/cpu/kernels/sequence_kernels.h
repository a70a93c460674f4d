// sequence_kernels.h: inner loops of the ops that touch a sequence, one table for each instruction
// set. The formulas are those of core/ops/ops.h; the drivers in ops/ cut the work up.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble::cpu {

constexpr int kPanel = 16;  // columns that lie together in states, pages and workspaces
constexpr int kTile =
    64;  // keys of an attention tile = positions of a page = rows of a delta chunk

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

// One head of q or k, or one value head, of one row.
struct ConvTask {
  const float* const*
      raw;            // [kernel] rows oldest first, at the head's first channel; nullptr: zeros
  const float* taps;  // [kernel, taps_stride], at the head's first channel
  std::int64_t taps_stride;
  int kernel, width;
  bool normalise;  // q and k
  float scale;     // after the norm; 1 for k
  float* y;        // [width]
};

struct GatesTask {
  const float *a, *b;                // [rows, heads]
  const float *neg_exp_a, *dt_bias;  // [heads]
  float *g, *beta;                   // [rows, heads]
  std::int64_t a_stride, b_stride, g_stride, beta_stride;
  std::int64_t rows, heads;
};

// Records of one value head, oldest first.
struct RecordView {
  const float* key;    // [count, key_stride]
  const float* u;      // [count, u_stride], at the task's first panel
  const float* decay;  // [count, decay_stride]
  std::int64_t key_stride, u_stride, decay_stride;
  int count;
};

// S of some panels of one value head takes the records: to[k, v] = fma(key[k], u[v], decay *
// from[k, v]).
struct FoldTask {
  const float* from;  // [panels, key_dim, 16]
  float* to;
  int panels, key_dim;
  RecordView records;
};

// Rows of one sequence, some panels of one value head.
struct DeltaTask {
  float* s;  // [panels, key_dim, 16]
  int panels, key_dim;
  int columns;  // values in those panels; what pads the last one is +0
  RecordView records;
  int rows;
  std::int64_t position;   // of the first row
  const float *q, *k, *v;  // [rows, qkv_stride]
  const float *g, *beta;   // [rows, g_stride], [rows, beta_stride]
  std::int64_t qkv_stride, g_stride, beta_stride;
  float* y;  // [rows, y_stride]
  std::int64_t y_stride;
  // decode and verify: the rows' own records; key and decay nullptr where another task keeps them
  float *new_key, *new_u, *new_decay;
  float* work;  // delta_work_floats(key_dim), or delta_units_work_floats(key_dim)
};

constexpr std::int64_t delta_work_floats(std::int64_t key_dim) {
  return 2 * key_dim * kTile   // keys, and keys times the decay to the chunk's end
         + 2 * kTile * kTile   // L, attention
         + 4 * kPanel * kTile  // u
         + 3 * kTile;          // running sums, their exponentials
}
// A left operand has 32-bit exponents beside it, a right one 16-bit ones.
constexpr std::int64_t delta_units_work_floats(std::int64_t key_dim) {
  return 3 * 2 * key_dim * kTile                        // keys, queries, keys transposed
         + key_dim * (kTile + kPanel) * 3 / 2           // keys in panels, a panel of S
         + 2 * 2 * kTile * kTile + 2 * kTile * kTile    // A, M; L, X
         + 3 * kTile * kPanel * 3 / 2 + 2 * kTile * kPanel  // R, U, U decayed; P, Q
         + 4 * kTile;                                   // running sums, their exponentials, beta
}

// A head of one row: norm (weight may be nullptr), rotation of the first rotary_dim columns.
// Element d of the result lies at y + d * y_stride.
struct RopeTask {
  const float* x;       // [head_dim]
  const float* weight;  // [head_dim] or nullptr
  const float* rope;    // [rotary_dim]: cos of all pairs, then sin, at the row's position
  float eps;
  int head_dim, rotary_dim;
  float* y;
  std::int64_t y_stride;
};

// Of a page and kv head: keys [4, head_dim, 16], then values [head_dim / 16 rounded up, 64, 16].
constexpr std::int64_t kv_page_elements(std::int64_t head_dim) { return (head_dim + round_up(head_dim, kPanel)) * kTile; }

// Tiles [first_tile, end_tile) of one split, for queries that read the same keys and values.
struct AttendTask {
  const float* q;            // [queries, head_dim]
  const std::int64_t* last;  // [queries] ascending: position of the query's own row
  int queries, head_dim;
  float scale;
  const float* kv;           // page p's keys and values at kv + p * page_stride
  std::int64_t page_stride;
  const std::int32_t* pages;  // by tile
  std::int64_t first_tile, end_tile;
  float *m, *l;   // [queries]
  float* o;       // [queries, head_dim rounded up to 16]
  float* scores;  // [queries, 64]
  float* factor;  // [queries]
  int* count;     // [queries]
  float* wide = nullptr;  // [kv_page_elements()], where pages hold codes of fp8 and behind them scales
};

// Up to 16 rows on matrix units (core/numerics/attention_order.h), which read the same keys and end in the same tile.
struct AttendUnitsTask {
  const float* q;  // [rows, q_stride], at the head
  std::int64_t q_stride;
  int rows, head_dim;
  std::int64_t position;  // of the first row
  int step;               // positions from a row to the next: 1, of one head, none across a multiple of 16; 0, of as many heads
  std::int64_t end;       // positions whose values count
  float scale;
  const float* kv;  // as AttendTask has it
  std::int64_t page_stride;
  const std::int32_t* pages;
  std::int64_t first_tile, end_tile;
  float *m, *l;  // [rows]: left there, and O in y. Null: y is the result
  float* y;      // [rows, y_stride], at the head
  std::int64_t y_stride;
  float* work;  // attend_units_work_floats(head_dim)
  float* wide = nullptr;  // as AttendTask has it
};
constexpr std::int64_t attend_units_work_floats(std::int64_t head_dim) {
  const std::int64_t longer = head_dim < kTile ? kTile : head_dim;
  return 2 * kPanel * (head_dim + kTile)        // queries, weights
         + kPanel * (kTile + head_dim)          // scores, O
         + longer * kPanel * 3 / 2;             // a panel of keys or values
}

// b is the later split: a takes it, for `queries` queries.
struct CombineTask {
  float *m, *l, *o;
  const float *m_later, *l_later, *o_later;
  int queries, head_dim;
};

struct SequenceKernels {
  const char* isa;
  void (*conv)(const ConvTask&);
  void (*gates)(const GatesTask&);
  void (*fold)(const FoldTask&);
  void (*delta_step)(const DeltaTask&);    // decode, verify
  void (*delta_chunks)(const DeltaTask&);  // prefill; folds first
  // The same as core/numerics/delta_order.h has it.
  void (*delta_units_sm90)(const DeltaTask&);
  void (*delta_units_sm70)(const DeltaTask&);
  void (*rope)(const RopeTask&);
  void (*attend)(const AttendTask&);
  void (*attend_units)(const AttendUnitsTask&);
  void (*attend_units_sm70)(const AttendUnitsTask&);
  void (*combine)(const CombineTask&);
  void (*finish)(const float* o, float l, int columns, float* y);
};

// "avx512", "avx2", "neon", "portable"; throws Error(unsupported) for one that this build or this
// processor has not.
const SequenceKernels& sequence_kernels(std::string_view isa);

}  // namespace nibble::cpu
