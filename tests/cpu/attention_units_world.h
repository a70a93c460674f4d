// attention_units_world.h: rows of one sequence, all heads, for the CPU's attention on matrix units. The pages hold
// what is given and, where the sequence has nothing, NaN.
#pragma once

#include <memory>

#include "tests/cpu/attention_units_reference.h"
#include "tests/cpu/sequence_world.h"

namespace nibble::test {

struct AttentionRows {
  AttentionShape shape;
  std::int64_t position, rows;  // position of the first row
  Row q;                        // [rows, heads * head_dim], bf16 values
  Row k, v;                     // [position + rows or more, kv_heads * head_dim], bf16 values; more lie in the pages
  float scale;
  bool sm70 = false;            // of that profile, with any values

  std::int64_t cols() const { return std::int64_t{shape.heads} * shape.head_dim; }
  std::int64_t kv_cols() const { return std::int64_t{shape.kv_heads} * shape.head_dim; }
  AttentionHead head(std::int32_t h) const {
    AttentionHead r{shape.head_dim, position, rows, {}, {}, {}, scale, sm70};
    const std::int64_t kv = h / (shape.heads / shape.kv_heads);
    const auto take = [&](Row& to, const Row& from, std::int64_t count, std::int64_t width, std::int64_t of) {
      for (std::int64_t i = 0; i < count; ++i) {
        const auto begin = from.begin() + i * width + of * r.dim;
        to.insert(to.end(), begin, begin + r.dim);
      }
    };
    take(r.q, q, rows, cols(), h);
    take(r.k, k, position + rows, kv_cols(), kv);
    take(r.v, v, position + rows, kv_cols(), kv);
    return r;
  }
  // Rows first .. first + count of these.
  AttentionRows part(std::int64_t first, std::int64_t count) const {
    AttentionRows r = *this;
    r.position = position + first;
    r.rows = count;
    r.q.assign(q.begin() + first * cols(), q.begin() + (first + count) * cols());
    return r;
  }
};

// Sequences' pages and one call of the op for ranges of all of them.
class AttentionPages {
 public:
  AttentionPages(const AttentionShape& shape, std::span<const AttentionRows> sequences) : shape_(shape) {
    std::int64_t count = 3;  // some are nobody's
    for (const AttentionRows& s : sequences) {
      const std::int64_t keys = static_cast<std::int64_t>(s.k.size()) / s.kv_cols();
      for (std::int64_t i = 0; i < (keys + 63) / 64; ++i) {
        pages_.push_back(static_cast<std::int32_t>(count += 1 + i % 2));
      }
      starts_.push_back(static_cast<std::int32_t>(pages_.size()));
    }
    if (pages_.size() > 2) std::swap(pages_.front(), pages_[pages_.size() / 2]);
    const StateLayout layout{{shape}, {}};
    const StateSizes sizes{1, static_cast<std::int32_t>(count + 1), 1, 0};
    memory_ = std::make_unique<Floats>(static_cast<std::int64_t>(cpu::KvArena::bytes(layout, sizes) / sizeof(float)));
    arena_ = std::make_unique<cpu::KvArena>(memory_->bytes(), layout, sizes);
    for (std::size_t s = 0; s < sequences.size(); ++s) fill(sequences[s], first_page(s));
  }

  Row run(const std::string& isa, std::span<const AttentionRows> sequences, bool units = true,
          Section section = Section::prefill, int threads = 2) {
    std::vector<Range> ranges;
    std::int32_t rows = 0, most = 1;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      Range r;
      r.section = section;
      r.slot = static_cast<std::int32_t>(s);
      r.first_row = rows;
      r.rows = static_cast<std::int32_t>(sequences[s].rows);
      r.position = sequences[s].position;
      r.first_page = first_page(s);
      rows += r.rows;
      most = std::max(most, r.rows);
      ranges.push_back(r);
    }
    const std::int64_t cols = std::int64_t{shape_.heads} * shape_.head_dim;
    Matrix q(rows, cols, 3), y(rows, cols, 5);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::int64_t i = 0; i < sequences[s].rows; ++i) {
        const auto begin = sequences[s].q.begin() + i * cols;
        q.put(ranges[s].first_row + i, Row(begin, begin + cols));
      }
    }
    cpu::Parallel parallel(threads);
    Floats work(static_cast<std::int64_t>(cpu::attention_workspace(shape_, most, threads) / sizeof(float)));
    cpu::SequenceContext context{parallel, cpu::sequence_kernels(isa), work.bytes()};
    cpu::attention(context, *arena_, {q, sequences.front().scale, 0, ranges, pages_, y, units, sequences.front().sm70});
    y.expect_gaps();
    Row all;
    for (std::int64_t i = 0; i < rows; ++i) append(all, y.row(i));
    return all;
  }

 private:
  std::int32_t first_page(std::size_t s) const { return s == 0 ? 0 : starts_[s - 1]; }
  void fill(const AttentionRows& s, std::int32_t first_page) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(s.k.size()); ++i) {
      const std::int64_t p = i / s.kv_cols(), head = i % s.kv_cols() / shape_.head_dim, d = i % shape_.head_dim;
      float* const page = arena_->head(0, static_cast<std::int32_t>(head)) +
                          pages_[at(first_page + p / 64)] * arena_->page_stride(0);
      page[cpu::KvArena::key_at(shape_, p % 64, d)] = s.k[at(i)];
      page[cpu::KvArena::value_at(shape_, p % 64, d)] = s.v[at(i)];
    }
  }

  AttentionShape shape_;
  std::vector<std::int32_t> pages_, starts_;
  std::unique_ptr<Floats> memory_;
  std::unique_ptr<cpu::KvArena> arena_;
};

inline Row run(const std::string& isa, const AttentionRows& rows, Section section = Section::prefill) {
  return AttentionPages(rows.shape, {&rows, 1}).run(isa, {&rows, 1}, true, section);
}

// As a model has them behind norm and rotation: elements of about 1, scores of about 1.
inline AttentionRows like_a_model(const AttentionShape& shape, std::int64_t position, std::int64_t rows,
                                  std::uint64_t seed, bool sm70 = false) {
  Normal normal(seed, sm70 ? +[](float x) { return x; } : bf16);
  AttentionRows r{shape, position, rows, {}, {}, {}, static_cast<float>(1.0 / std::sqrt(shape.head_dim)), sm70};
  r.q = normal.row(rows * r.cols());
  r.k = normal.row((position + rows) * r.kv_cols());
  r.v = normal.row((position + rows) * r.kv_cols());
  return r;
}

// y [rows, heads * head_dim]. What multiplies the last time is no matrix unit: any NaN.
inline Row one_nan(Row y) {
  for (float& x : y) x = std::isnan(x) ? std::bit_cast<float>(0x7FFFFFFFu) : x;
  return y;
}
inline Row reference_units(const AttentionRows& rows, Section section = Section::prefill) {
  Row y(at(rows.rows * rows.cols()));
  for (std::int32_t h = 0; h < rows.shape.heads; ++h) {
    const Row head = reference_units(rows.head(h), section);
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      std::copy_n(head.begin() + i * rows.shape.head_dim, rows.shape.head_dim,
                  y.begin() + i * rows.cols() + h * rows.shape.head_dim);
    }
  }
  return one_nan(y);
}
inline void expect_contract(const AttentionRows& rows, const std::string& where, Section section = Section::prefill) {
  const Row want = reference_units(rows, section);
  for (const std::string& isa : isas_here()) expect_bytes(one_nan(run(isa, rows, section)), want, isa + ", " + where);
}

}  // namespace nibble::test
