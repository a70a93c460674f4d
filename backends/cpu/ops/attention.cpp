#include "backends/cpu/ops/sequence_ops.h"
#include "backends/cpu/ops/work.h"
#include "core/numerics/attention_order.h"
#include "core/numerics/kv_codes.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kRopeRows = 16;
constexpr std::int64_t kRopeGrain = 4 * 1024;  // elements worth a task
constexpr std::int64_t kQueries = 48;          // of a prefill block
constexpr std::int64_t kPartsPerThread = 4;    // decode: items of a wave

std::int64_t group_of(const AttentionShape& s) {
  return s.heads / s.kv_heads;
}

// Partial results of `queries` queries over a split.
struct Partial {
  float *m, *l, *o;
};
std::int64_t partial_floats(const AttentionShape& s, std::int64_t queries) {
  return 2 * round_up(queries, kPanel) + queries * round_up(s.head_dim, kPanel);
}
Partial partial_at(float* at, std::int64_t queries) {
  const std::int64_t padded = round_up(queries, kPanel);
  return {at, at + padded, at + 2 * padded};
}

// What a worker needs beside partial results.
struct Scratch {
  float *q, *scores, *factor;
  std::int64_t* last;
  int* count;
};
std::int64_t scratch_floats(const AttentionShape& s, std::int64_t queries) {
  return round_up(queries * s.head_dim, kPanel) + queries * kTile + 4 * round_up(queries, kPanel);
}
Scratch scratch_at(float* at, const AttentionShape& s, std::int64_t queries) {
  const std::int64_t padded = round_up(queries, kPanel);
  Scratch x{};
  x.q = at;
  x.scores = x.q + round_up(queries * s.head_dim, kPanel);
  x.factor = x.scores + queries * kTile;
  x.count = reinterpret_cast<int*>(x.factor + padded);
  x.last = reinterpret_cast<std::int64_t*>(x.factor + 2 * padded);
  return x;
}

std::int64_t unit_floats(const AttentionShape& s) {
  return num::attention_on_units(s) ? attend_units_work_floats(s.head_dim) : 0;
}

// Of a worker, where pages are widened or a row becomes codes.
std::int64_t wide_floats(const AttentionShape& s, KvFormat kv) {
  return kv == KvFormat::fp8 ? kv_page_elements(s.head_dim) : 0;
}

std::int64_t prefill_rows(const AttentionShape& s) {
  return std::max<std::int64_t>(1, kQueries / group_of(s));
}

struct Sizes {
  std::int64_t queries, worker_floats;  // prefill: scratch and two partials a worker
  std::int64_t parts, part_floats;      // decode: partials of a wave, after the workers' scratch
};
Sizes prefill_sizes(const AttentionShape& s) {
  const std::int64_t queries = prefill_rows(s) * group_of(s);
  return {queries, scratch_floats(s, queries) + 2 * partial_floats(s, queries), 0, 0};
}
Sizes decode_sizes(const AttentionShape& s, std::int64_t rows, int threads) {
  const std::int64_t queries = rows * group_of(s);
  return {queries, std::max(scratch_floats(s, queries), unit_floats(s)), kPartsPerThread * threads,
          partial_floats(s, queries)};
}

struct Call {
  SequenceContext& context;
  const AttentionArgs& a;
  const AttentionShape& shape;
  const KvArena& arena;

  float* work() const { return reinterpret_cast<float*>(context.workspace.data()); }
  // The worker's room for a page in floats, behind what all have else; null where pages are that.
  float* wide(std::int64_t worker) const {
    const std::int64_t each = wide_floats(shape, arena.fp8() ? KvFormat::fp8 : KvFormat::operand);
    if (each == 0) return nullptr;
    const auto all = static_cast<std::int64_t>(context.workspace.size() / (16 * sizeof(float))) * 16;
    return work() + all - (worker + 1) * each;
  }

  // Of decode and verify rows.
  std::int64_t split_tokens() const { return a.units ? num::kAttentionSplit : kSplitTokens; }
  std::int64_t splits_of(const Range& r) const { return (r.position + r.rows - 1) / split_tokens() + 1; }
  // First row of the range that sees something of a split.
  std::int64_t first_row_of(const Range& r, std::int64_t split) const {
    return std::max<std::int64_t>(0, split * split_tokens() - r.position);
  }

  // Rows [row, row + rows) of a range, one kv head: their queries side by side.
  void gather(const Range& r, std::int64_t row, std::int64_t rows, std::int64_t kv_head,
              const Scratch& to) const {
    const std::int64_t group = group_of(shape);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::copy_n(
          a.q.data + (r.first_row + row + i) * a.q.stride + kv_head * group * shape.head_dim,
          group * shape.head_dim, to.q + i * group * shape.head_dim);
      std::fill_n(to.last + i * group, group, r.position + row + i);
    }
  }
  void attend(const Range& r, std::int64_t kv_head, std::int64_t first, std::int64_t queries,
              std::int64_t split, const Scratch& scratch, const Partial& to, std::int64_t worker) const {
    const std::int64_t tiles = kSplitTokens / kTile;
    const std::int64_t end = scratch.last[first + queries - 1] / kTile + 1;
    context.kernels.attend({scratch.q + first * shape.head_dim, scratch.last + first,
                            static_cast<int>(queries), shape.head_dim, a.scale,
                            arena.head(a.layer, static_cast<std::int32_t>(kv_head)),
                            arena.page_stride(a.layer), a.pages.data() + r.first_page,
                            split * tiles, std::min(end, (split + 1) * tiles), to.m, to.l, to.o,
                            scratch.scores, scratch.factor, scratch.count, wide(worker)});
  }
  // The same of a split on matrix units, for rows of a range from `first` on: a row's heads together.
  void attend_units(const Range& r, std::int64_t kv_head, std::int64_t first, std::int64_t split, float* own,
                    const Partial& to, std::int64_t worker) const {
    const std::int64_t tiles = split_tokens() / kTile, group = group_of(shape);
    for (std::int64_t i = first; i < r.rows; ++i) {
      const std::int64_t position = r.position + i;
      for (std::int64_t h = 0; h < group; h += kPanel) {
        const std::int64_t query = (i - first) * group + h;
        context.kernels.attend_units(
            {a.q.data + (r.first_row + i) * a.q.stride + (kv_head * group + h) * shape.head_dim, shape.head_dim,
             static_cast<int>(std::min<std::int64_t>(kPanel, group - h)), shape.head_dim, position, 0, position + 1,
             a.scale, arena.head(a.layer, static_cast<std::int32_t>(kv_head)), arena.page_stride(a.layer),
             a.pages.data() + r.first_page, split * tiles, std::min(position / kTile + 1, (split + 1) * tiles),
             to.m + query, to.l + query, to.o + query * shape.head_dim, shape.head_dim, own, wide(worker)});
      }
    }
  }
  // Queries from `first` on take the later split; its partial starts with query `first`.
  void combine(const Partial& into, std::int64_t first, std::int64_t queries,
               const Partial& later) const {
    context.kernels.combine({into.m + first, into.l + first,
                             into.o + first * round_up(shape.head_dim, kPanel), later.m, later.l,
                             later.o, static_cast<int>(queries), shape.head_dim});
  }
  void finish(const Range& r, std::int64_t row, std::int64_t rows, std::int64_t kv_head,
              const Partial& from) const {
    const std::int64_t group = group_of(shape);
    for (std::int64_t i = 0; i < rows * group; ++i) {
      const std::int64_t head = kv_head * group + i % group;
      context.kernels.finish(
          from.o + i * round_up(shape.head_dim, kPanel), from.l[i], shape.head_dim,
          a.y.data + (r.first_row + row + i / group) * a.y.stride + head * shape.head_dim);
    }
  }
};

void prefill(const Call& call) {
  const AttentionShape& s = call.shape;
  const std::int64_t block = prefill_rows(s), group = group_of(s);
  const Sizes sizes = prefill_sizes(s);
  float* work = call.work();
  std::int64_t blocks = 0;
  for (const Range& r : call.a.ranges) blocks += (r.rows + block - 1) / block;

  for_each_item(
      call.context.parallel, blocks * s.kv_heads, call.context.parallel.threads(),
      [&](std::int64_t item, std::int64_t worker) {
        std::int64_t index = blocks - 1 - item / s.kv_heads;  // the longest contexts first
        const std::int64_t kv_head = item % s.kv_heads;
        const Range* r = call.a.ranges.data();
        for (; index >= (r->rows + block - 1) / block; ++r) index -= (r->rows + block - 1) / block;
        const std::int64_t row = index * block, rows = std::min<std::int64_t>(block, r->rows - row);

        const Scratch scratch = scratch_at(work + worker * sizes.worker_floats, s, sizes.queries);
        float* partials = work + worker * sizes.worker_floats + scratch_floats(s, sizes.queries);
        const Partial total = partial_at(partials, sizes.queries);
        const Partial later =
            partial_at(partials + partial_floats(s, sizes.queries), sizes.queries);
        call.gather(*r, row, rows, kv_head, scratch);
        const std::int64_t last = (r->position + row + rows - 1) / kSplitTokens;
        call.attend(*r, kv_head, 0, rows * group, 0, scratch, total, worker);
        for (std::int64_t split = 1; split <= last; ++split) {
          const std::int64_t skip = std::max<std::int64_t>(0, split * kSplitTokens - r->position - row) * group;
          call.attend(*r, kv_head, skip, rows * group - skip, split, scratch, later, worker);
          call.combine(total, skip, rows * group - skip, later);
        }
        call.finish(*r, row, rows, kv_head, total);
      });
}

// Blocks of 16 rows on the absolute grid: those of a block end in one tile.
std::int64_t unit_blocks(const Range& r) {
  return r.rows <= 0 ? 0 : (r.position + r.rows - 1) / kPanel - r.position / kPanel + 1;
}

void prefill_on_units(const Call& call) {
  const AttentionShape& s = call.shape;
  const AttentionArgs& a = call.a;
  float* work = call.work();
  std::int64_t blocks = 0;
  for (const Range& r : a.ranges) blocks += unit_blocks(r);

  for_each_item(
      call.context.parallel, blocks * s.heads, call.context.parallel.threads(),
      [&](std::int64_t item, std::int64_t worker) {
        std::int64_t index = blocks - 1 - item / s.heads;  // the longest contexts first
        const std::int64_t head = item % s.heads, kv_head = head / group_of(s);
        const Range* r = a.ranges.data();
        for (; index >= unit_blocks(*r); ++r) index -= unit_blocks(*r);
        const std::int64_t begin = (r->position / kPanel + index) * kPanel, end = r->position + r->rows;
        const std::int64_t first = std::max(begin, r->position), row = r->first_row + first - r->position;
        (a.sm70 ? call.context.kernels.attend_units_sm70 : call.context.kernels.attend_units)(
            {a.q.data + row * a.q.stride + head * s.head_dim, a.q.stride,
             static_cast<int>(std::min(begin + kPanel, end) - first), s.head_dim, first, 1, end, a.scale,
             call.arena.head(a.layer, static_cast<std::int32_t>(kv_head)), call.arena.page_stride(a.layer),
             a.pages.data() + r->first_page, 0, first / kTile + 1, nullptr, nullptr,
             a.y.data + row * a.y.stride + head * s.head_dim, a.y.stride,
             work + worker * unit_floats(s), call.wide(worker)});
      });
}

// Items are (range, kv head, split), splits fastest, in waves of as many partials as there is room
// for. Only the last group of a wave can be unfinished: it goes on in the next one from `carry`.
void decode(const Call& call, std::int64_t max_rows) {
  const AttentionShape& s = call.shape;
  const std::int64_t group = group_of(s);
  const int threads = call.context.parallel.threads();
  const Sizes sizes = decode_sizes(s, max_rows, threads);
  float* work = call.work();
  float* carries = work + threads * sizes.worker_floats;
  float* parts = carries + 2 * sizes.part_floats;

  struct Place {
    const Range* r;
    std::int64_t kv_head, split;
  };
  const auto place = [&](std::int64_t item) {
    const Range* r = call.a.ranges.data();
    for (; r->rows <= 0 || item >= call.splits_of(*r) * s.kv_heads; ++r) {
      if (r->rows > 0) item -= call.splits_of(*r) * s.kv_heads;
    }
    return Place{r, item / call.splits_of(*r), item % call.splits_of(*r)};
  };
  std::int64_t items = 0;
  for (const Range& r : call.a.ranges) items += r.rows > 0 ? call.splits_of(r) * s.kv_heads : 0;

  for (std::int64_t begin = 0, wave = 0; begin < items; begin += sizes.parts, ++wave) {
    const std::int64_t count = std::min(sizes.parts, items - begin);
    const auto part = [&](std::int64_t i) {
      return partial_at(parts + (i - begin) * sizes.part_floats, sizes.queries);
    };
    for_each_item(call.context.parallel, count, threads, [&](std::int64_t i, std::int64_t worker) {
      const Place p = place(begin + i);
      float* const own = work + worker * sizes.worker_floats;
      if (call.a.units) {
        return call.attend_units(*p.r, p.kv_head, call.first_row_of(*p.r, p.split), p.split, own, part(begin + i), worker);
      }
      const Scratch scratch = scratch_at(own, s, sizes.queries);
      call.gather(*p.r, 0, p.r->rows, p.kv_head, scratch);
      const std::int64_t skip = call.first_row_of(*p.r, p.split) * group;
      call.attend(*p.r, p.kv_head, skip, p.r->rows * group - skip, p.split, scratch,
                  part(begin + i), worker);
    });

    // One call for each group of the wave: the item that begins it here.
    call.context.parallel(count, kPartsPerThread, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = begin + from; i < begin + to; ++i) {
        const Place p = place(i);
        if (p.split > 0 && i > begin) continue;
        const std::int64_t queries = p.r->rows * group, splits = call.splits_of(*p.r);
        const std::int64_t end = std::min(begin + count - i, splits - p.split);
        Partial total = part(i);
        std::int64_t next = 1;
        if (p.split > 0) {
          total = partial_at(carries + wave % 2 * sizes.part_floats, sizes.queries);
          next = 0;
        }
        for (; next < end; ++next) {
          const std::int64_t skip = call.first_row_of(*p.r, p.split + next) * group;
          call.combine(total, skip, queries - skip, part(i + next));
        }
        if (p.split + end == splits) {
          call.finish(*p.r, 0, p.r->rows, p.kv_head, total);
        } else {
          std::copy_n(total.m, sizes.part_floats, carries + (wave + 1) % 2 * sizes.part_floats);
        }
      }
    });
  }
}

// A position's key and value of a kv head, to a page in fp8.
void keep_codes(const AttentionShape& s, float* page, std::int64_t place, const float* key, const float* value) {
  const auto keep = [&](const float* x, float& scale, auto at) {
    float most = 0.0f;
    for (std::int64_t d = 0; d < s.head_dim; ++d) most = num::max(num::abs(x[d]), most);  // NaN is not greater
    scale = num::kv_scale(most);
    for (std::int64_t d = 0; d < s.head_dim; ++d) KvArena::codes(page)[at(d)] = num::kv_code(x[d], scale);
  };
  keep(key, KvArena::key_scales(s, page)[place], [&](std::int64_t d) { return KvArena::key_at(s, place, d); });
  keep(value, KvArena::value_scales(s, page)[place], [&](std::int64_t d) { return KvArena::value_at(s, place, d); });
  for (std::int64_t d = s.head_dim; d % kPanel != 0; ++d) KvArena::codes(page)[KvArena::value_at(s, place, d)] = 0;
}

}  // namespace

void qk_norm_rope(SequenceContext& context, const KvArena& arena, const QkNormRopeArgs& a) {
  if (a.ranges.empty()) return;
  arena.check(a.ranges, a.pages);
  const AttentionShape& s = arena.shape(a.layer);
  for (const Range& r : a.ranges) {
    if (a.rotary_dim > 0 && r.position + r.rows > a.rope_positions) {
      throw Error(ErrorCode::invalid_argument,
                  "[qk_norm_rope] rows up to position " + std::to_string(r.position + r.rows) +
                      ", the rotary table has " + std::to_string(a.rope_positions));
    }
  }
  const std::int64_t first = a.ranges.front().first_row, rows = row_count(a.ranges);
  const std::int64_t heads = s.heads + s.kv_heads, blocks = (rows + kRopeRows - 1) / kRopeRows;

  // `own`: room for a row that becomes codes.
  const auto rotate = [&](std::int64_t row, std::int64_t head, float* own) {
    const Range& r = range_of(a.ranges, row);
    const std::int64_t position = r.position + (row - r.first_row);
    const float* rope = a.rope + position * a.rotary_dim;
    if (head < s.heads) {
      context.kernels.rope({a.q.data + row * a.q.stride + head * a.q_head_stride, a.q_norm, rope,
                            a.eps, s.head_dim, a.rotary_dim,
                            a.q_out.data + row * a.q_out.stride + head * s.head_dim, 1});
      return;
    }
    const std::int64_t kv_head = head - s.heads, place = position % kTile;
    const std::int32_t page = a.pages[static_cast<std::size_t>(r.first_page + position / kTile)];
    float* to =
        arena.head(a.layer, static_cast<std::int32_t>(kv_head)) + page * arena.page_stride(a.layer);
    float* const key = arena.fp8() ? own : to + KvArena::key_at(s, place, 0);
    const std::int64_t stride = arena.fp8() ? 1 : kPanel;
    context.kernels.rope({a.k.data + row * a.k.stride + kv_head * s.head_dim, a.k_norm, rope, a.eps,
                          s.head_dim, a.rotary_dim, key, stride});
    if (a.round_keys) {
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        key[d * stride] = num::bf16_to_float(num::float_to_bf16(key[d * stride]));
      }
    }
    const float* v = a.v.data + row * a.v.stride + kv_head * s.head_dim;
    if (arena.fp8()) return keep_codes(s, to, place, key, v);
    for (std::int64_t d = 0; d < s.head_dim; d += kPanel) {
      float* panel = to + KvArena::value_at(s, place, d);
      const std::int64_t count = std::min<std::int64_t>(kPanel, s.head_dim - d);
      std::copy_n(v + d, count, panel);
      std::fill(panel + count, panel + kPanel, 0.0f);
    }
  };
  if (arena.fp8()) {
    const int threads = context.parallel.threads();
    const std::int64_t each = wide_floats(s, KvFormat::fp8);
    check_workspace(context.workspace, static_cast<std::uint64_t>(threads * each) * sizeof(float), "qk_norm_rope");
    float* const work = reinterpret_cast<float*>(context.workspace.data());
    for_each_item(context.parallel, blocks * heads, threads, [&](std::int64_t i, std::int64_t worker) {
      const std::int64_t from = i / heads * kRopeRows;
      for (std::int64_t row = from; row < std::min(from + kRopeRows, rows); ++row) {
        rotate(first + row, i % heads, work + worker * each);
      }
    });
    return;
  }
  const std::int64_t item = std::min(rows, kRopeRows) * s.head_dim;
  context.parallel(blocks * heads, std::max<std::int64_t>(1, kRopeGrain / item),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const std::int64_t from = i / heads * kRopeRows;
                       for (std::int64_t row = from; row < std::min(from + kRopeRows, rows);
                            ++row) {
                         rotate(first + row, i % heads, nullptr);
                       }
                     }
                   });
}

std::uint64_t attention_workspace(const AttentionShape& shape, std::int32_t rows, int threads, KvFormat kv) {
  const Sizes p = prefill_sizes(shape), d = decode_sizes(shape, rows, threads);
  const std::int64_t floats = std::max(threads * std::max(p.worker_floats, unit_floats(shape)),
                                       threads * d.worker_floats + (d.parts + 2) * d.part_floats);
  return static_cast<std::uint64_t>(floats + threads * wide_floats(shape, kv)) * sizeof(float);
}

void attention(SequenceContext& context, const KvArena& arena, const AttentionArgs& a) {
  if (a.ranges.empty()) return;
  arena.check(a.ranges, a.pages);
  const AttentionShape& s = arena.shape(a.layer);
  if (a.units && a.sm70 && a.ranges.front().section != Section::prefill) {
    throw Error(ErrorCode::invalid_argument, std::string("[attention] expected prefill rows for sm70's matrix units, got ") +
                                                 section_name(a.ranges.front().section) + " rows");
  }
  if (a.units && !num::attention_on_units(s)) {
    throw Error(ErrorCode::invalid_argument, "[attention] head_dim: expected 64, 128 or 256 for matrix units, got " +
                                                 std::to_string(s.head_dim));
  }
  const Call call = {context, a, s, arena};
  const bool is_prefill = a.ranges.front().section == Section::prefill;
  std::int32_t max_rows = 1;
  if (!is_prefill) {
    for (const Range& r : a.ranges) max_rows = std::max(max_rows, r.rows);
  }
  check_workspace(context.workspace,
                  attention_workspace(s, max_rows, context.parallel.threads(), arena.fp8() ? KvFormat::fp8 : KvFormat::operand),
                  "attention");
  if (!is_prefill) {
    decode(call, max_rows);
  } else if (a.units) {
    prefill_on_units(call);
  } else {
    prefill(call);
  }
}

}  // namespace nibble::cpu
