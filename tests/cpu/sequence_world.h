// sequence_world.h: delta-net and attention layers over the inputs of sequence_alone.h, run by the
// ops of the CPU backend in ragged batches.
#pragma once

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>

#include <bit>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/isa.h"
#include "backends/cpu/ops/sequence_ops.h"
#include "tests/cpu/sequence_alone.h"

namespace nibble::test {

// Floats aligned to 64 bytes, all NaN, between two canaries.
class Floats {
 public:
  explicit Floats(std::int64_t count)
      : count_(count), store_(at(count + 48), std::bit_cast<float>(kNan)) {
    begin_ = store_.data() + 16;
    while (reinterpret_cast<std::uintptr_t>(begin_) % 64 != 0) ++begin_;
    for (int i = 1; i <= 16; ++i)
      begin_[-i] = begin_[count - 1 + i] = std::bit_cast<float>(kCanary);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() {
    for (int i = 1; i <= 16; ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(begin_[-i]), kCanary) << "before the buffer";
      EXPECT_EQ(std::bit_cast<std::uint32_t>(begin_[count_ - 1 + i]), kCanary)
          << "after the buffer";
    }
  }
  float* data() { return begin_; }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(begin_, at(count_))); }

 private:
  static constexpr std::uint32_t kNan = 0x7FC12345u, kCanary = 0x7FC0CAFEu;
  std::int64_t count_;
  std::vector<float> store_;
  float* begin_;
};

// Rows with a gap behind each that must stay as it was.
struct Matrix {
  Matrix(std::int64_t r, std::int64_t c, std::int64_t gap)
      : rows(r), cols(c), stride(c + gap), data(r * (c + gap)) {}
  void put(std::int64_t r, const Row& x) {
    std::copy(x.begin(), x.end(), data.data() + r * stride);
  }
  Row row(std::int64_t r) { return Row(data.data() + r * stride, data.data() + r * stride + cols); }
  operator cpu::ConstRows() { return {data.data(), stride}; }
  operator cpu::MutableRows() { return {data.data(), stride}; }
  void expect_gaps() {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = cols; c < stride; ++c) {
        ASSERT_TRUE(std::isnan(data.data()[r * stride + c]))
            << "row " << r << " written beyond its end";
      }
    }
  }
  std::int64_t rows, cols, stride;
  Floats data;
};

inline void expect_bits(const Row& got, const Row& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(want[i])) << where << ": the reference has no number at " << i;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(want[i]))
        << where << ": element " << i << ": got " << got[i] << ", expected " << want[i];
  }
}

class World {
 public:
  World(const Shapes& s, const Constants& c, std::int32_t slots, const std::string& isa,
        int threads)
      : s_(s),
        c_(c),
        sizes_{slots, slots * pages_each(), s.records, 0},
        parallel_(threads),
        kernels_(cpu::sequence_kernels(isa)),
        delta_memory_(static_cast<std::int64_t>(cpu::DeltaArena::bytes(s.layout(), sizes_) / 4)),
        kv_memory_(static_cast<std::int64_t>(cpu::KvArena::bytes(s.layout(), sizes_) / 4)),
        delta(delta_memory_.bytes(), s.layout(), sizes_),
        kv(kv_memory_.bytes(), s.layout(), sizes_) {
    for (std::int32_t i = 0; i < slots; ++i) delta.reset(i);
    for (std::int64_t i = slots * pages_each() - 1; i >= 0; --i) {  // scattered tables
      pages_.push_back(static_cast<std::int32_t>(i));
    }
    std::swap(pages_.front(), pages_[pages_.size() / 2]);
  }

  std::int64_t pages_each() const { return (s_.positions + 63) / 64; }
  std::span<const std::int32_t> pages(std::int32_t slot) const {
    return std::span(pages_).subspan(at(slot * pages_each()), at(pages_each()));
  }

  // Ranges in section order; fills in first_row and first_page.
  std::vector<Out> step(std::vector<Move> moves) {
    std::vector<Range> ranges;
    std::int32_t rows = 0;
    for (Move& m : moves) {
      m.range.first_row = rows;
      m.range.first_page = static_cast<std::int32_t>(m.range.slot * pages_each());
      rows += m.range.rows;
      ranges.push_back(m.range);
    }
    std::vector<Out> out(at(rows));
    for (std::size_t layer = 0; layer < s_.delta.size(); ++layer)
      run_delta(layer, moves, ranges, rows, out);
    for (std::size_t layer = 0; layer < s_.attention.size(); ++layer)
      run_attention(layer, moves, ranges, rows, out);
    delta.end_step(ranges);
    return out;
  }

  const cpu::SequenceKernels& kernels() const { return kernels_; }

 private:
  static std::span<const Range> section(const std::vector<Range>& ranges, Section s) {
    std::size_t begin = 0, end = 0;
    while (begin < ranges.size() && ranges[begin].section < s) ++begin;
    for (end = begin; end < ranges.size() && ranges[end].section == s;) ++end;
    return std::span(ranges).subspan(begin, end - begin);
  }
  void run_delta(std::size_t layer, const std::vector<Move>& moves,
                 const std::vector<Range>& ranges, std::int64_t rows, std::vector<Out>& out) {
    const DeltaShape& d = s_.delta[layer];
    const std::int32_t id = static_cast<std::int32_t>(layer);
    Matrix x(rows, d.channels(), 3), a(rows, d.value_heads, 1), b(rows, d.value_heads, 2),
        y(rows, d.channels(), 5), g(rows, d.value_heads, 1), beta(rows, d.value_heads, 3),
        o(rows, d.value_channels(), 7);
    for (const Move& m : moves) {
      for (std::int32_t i = 0; i < m.range.rows; ++i) {
        const Inputs in(s_, m.seed, m.range.position + i);
        x.put(m.range.first_row + i, in.raw[layer]);
        a.put(m.range.first_row + i,
              Row(in.ab[layer].begin(), in.ab[layer].begin() + d.value_heads));
        b.put(m.range.first_row + i, Row(in.ab[layer].begin() + d.value_heads, in.ab[layer].end()));
      }
    }
    Row taps(c_.conv[layer].size());
    cpu::pack_conv_taps(c_.conv[layer].data(), d.channels(), d.conv_kernel, taps.data());
    Floats work(static_cast<std::int64_t>(cpu::delta_rule_workspace(d, parallel_.threads()) / 4));
    cpu::SequenceContext context{parallel_, kernels_, work.bytes()};
    for (const Section part : {Section::decode, Section::verify, Section::prefill}) {
      cpu::delta_conv(context, delta, {x, taps.data(), id, section(ranges, part), y});
    }
    cpu::delta_gates(context, {a, b, c_.neg_exp_a[layer].data(), c_.dt_bias[layer].data(), rows,
                               d.value_heads, g, beta});
    for (const Section part : {Section::decode, Section::verify, Section::prefill}) {
      cpu::delta_rule(context, delta, {y, g, beta, id, section(ranges, part), o});
    }
    for (Matrix* m : {&y, &g, &beta, &o}) m->expect_gaps();
    for (std::int64_t r = 0; r < rows; ++r) {
      out[at(r)].conv.push_back(y.row(r));
      out[at(r)].delta.push_back(o.row(r));
    }
  }
  void run_attention(std::size_t layer, const std::vector<Move>& moves,
                     const std::vector<Range>& ranges, std::int64_t rows, std::vector<Out>& out) {
    const AttentionShape& s = s_.attention[layer];
    const std::int32_t id = static_cast<std::int32_t>(layer);
    const std::int64_t kv_cols = std::int64_t{s.kv_heads} * s.head_dim,
                       cols = std::int64_t{s.heads} * s.head_dim;
    Matrix q(rows, 2 * cols, 1), k(rows, kv_cols, 2), v(rows, kv_cols, 3), rotated(rows, cols, 5),
        y(rows, cols, 1);
    for (const Move& m : moves) {
      for (std::int32_t i = 0; i < m.range.rows; ++i) {
        const Inputs in(s_, m.seed, m.range.position + i);
        q.put(m.range.first_row + i, in.q[layer]);
        k.put(m.range.first_row + i, Row(in.kv[layer].begin(), in.kv[layer].begin() + kv_cols));
        v.put(m.range.first_row + i, Row(in.kv[layer].begin() + kv_cols, in.kv[layer].end()));
      }
    }
    Floats work(static_cast<std::int64_t>(
        cpu::attention_workspace(s, s_.records, parallel_.threads()) / 4));
    cpu::SequenceContext context{parallel_, kernels_, work.bytes()};
    cpu::qk_norm_rope(
        context, kv,
        {q, 2 * s.head_dim, k, v, c_.q_norm[layer].data(), c_.k_norm[layer].data(), 1e-6f,
         c_.rope.data(), s_.positions, s_.rotary, id, ranges, pages_, rotated});
    for (const Section part : {Section::decode, Section::verify, Section::prefill}) {
      cpu::attention(context, kv,
                     {rotated, static_cast<float>(1.0 / std::sqrt(s.head_dim)), id,
                      section(ranges, part), pages_, y});
    }
    for (Matrix* m : {&rotated, &y}) m->expect_gaps();
    for (std::int64_t r = 0; r < rows; ++r) {
      out[at(r)].q.push_back(rotated.row(r));
      out[at(r)].attention.push_back(y.row(r));
    }
  }

  const Shapes& s_;
  const Constants& c_;
  StateSizes sizes_;
  // real threads, even where the machine has fewer processors
  oneapi::tbb::global_control allow_{oneapi::tbb::global_control::max_allowed_parallelism, 8};
  cpu::Parallel parallel_;
  const cpu::SequenceKernels& kernels_;
  Floats delta_memory_, kv_memory_;
  std::vector<std::int32_t> pages_;

 public:
  cpu::DeltaArena delta;
  cpu::KvArena kv;
};

inline Move move(Section section, std::int32_t slot, std::int64_t position, std::int32_t rows,
                 std::int32_t keep, std::uint64_t seed) {
  Move m;
  m.range.section = section;
  m.range.slot = slot;
  m.range.position = position;
  m.range.rows = rows;
  m.range.keep = keep;
  m.seed = seed;
  return m;
}

inline std::vector<std::string> isas_here() {
  std::vector<std::string> names;
  for (const cpu::Isa isa : cpu::available_isas()) names.emplace_back(cpu::isa_name(isa));
  return names;
}

inline void expect_same(const Out& got, const Out& want, const std::string& where) {
  for (std::size_t i = 0; i < want.conv.size(); ++i) {
    expect_bits(got.conv[i], want.conv[i], where + ", delta_conv " + std::to_string(i));
    expect_bits(got.delta[i], want.delta[i], where + ", delta_rule " + std::to_string(i));
  }
  for (std::size_t i = 0; i < want.q.size(); ++i) {
    expect_bits(got.q[i], want.q[i], where + ", qk_norm_rope " + std::to_string(i));
    expect_bits(got.attention[i], want.attention[i], where + ", attention " + std::to_string(i));
  }
}

}  // namespace nibble::test
