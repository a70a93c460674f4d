// sequence_worlds.h: one delta-net layer, and one attention layer, run side by side by the CPU's ops on
// their float32 arena and by the CUDA ops; every output is compared by bytes. For bf16 (E = uint16_t)
// inputs are representable and what the CPU gives is rounded once, in outputs and in KV pages.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backends/cpu/cpu_info.h"
#include "backends/cpu/ops/sequence_ops.h"
#include "backends/cuda/ops/sequence.h"
#include "core/numerics/codecs.h"
#include "tests/cpu/sequence_alone.h"
#include "tests/cuda/step_on_device.h"
#include "tests/support/buffers.h"

namespace nibble::test {

template <class E>
E encode(float v) {
  if constexpr (std::is_same_v<E, float>) return v;
  else return num::float_to_bf16(v);
}
inline float decode(float v) { return v; }
inline float decode(std::uint16_t v) { return num::bf16_to_float(v); }

template <class E>
std::vector<E> encoded(const Row& x) {
  std::vector<E> y;
  for (const float v : x) y.push_back(encode<E>(v));
  return y;
}
template <class E>
void round_to(Row& x) {
  for (float& v : x) v = decode(encode<E>(v));
}

// Inputs are such that every expected value is a number: NaN everywhere would prove nothing.
template <class E>
void expect_bytes(const std::vector<E>& got, const Row& want, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float g = decode(got[i]), w = decode(encode<E>(want[i]));
    ASSERT_FALSE(std::isnan(w)) << where << ": the CPU has no number at " << i;
    ASSERT_TRUE(same_bits(g, w)) << where << ": element " << i << ": got " << g << ", expected " << w;
  }
}

struct Part {  // a range, but for what the state knows
  Section section;
  std::int32_t slot, rows, keep = 0;
};

// One sequence's noise: row p of a sequence is the same whatever the batch.
inline Row noise_rows(const std::vector<Range>& ranges, std::uint64_t what, std::int64_t cols) {
  Row x;
  for (const Range& r : ranges) {
    for (std::int32_t i = 0; i < r.rows; ++i) {
      const Row row = noise_row(what * 64 + static_cast<std::uint64_t>(r.slot), r.position + i, cols);
      x.insert(x.end(), row.begin(), row.end());
    }
  }
  return x;
}

inline std::span<const Range> of_section(const std::vector<Range>& ranges, Section s) {
  std::size_t begin = 0, end = 0;
  while (begin < ranges.size() && ranges[begin].section < s) ++begin;
  for (end = begin; end < ranges.size() && ranges[end].section == s;) ++end;
  return std::span(ranges).subspan(begin, end - begin);
}
constexpr Section kSections[] = {Section::decode, Section::verify, Section::prefill};

inline Batch batch_of(const std::vector<Range>& ranges, std::vector<std::int32_t> pages = {}) {
  Batch b;
  b.ranges = ranges;
  b.pages = std::move(pages);
  for (const Range& r : ranges) b.tokens.resize(b.tokens.size() + at(r.rows));
  return b;
}

class CpuSide {
 public:
  explicit CpuSide(std::uint64_t work_bytes) : work_(work_bytes), work_bytes_(work_bytes) {}
  cpu::SequenceContext context() {
    return {parallel_, cpu::sequence_kernels(cpu::has_isa("avx2") ? "avx2" : "portable"),
            {work_.data, work_bytes_}};
  }

 private:
  cpu::Parallel parallel_{1};
  Aligned work_;
  std::uint64_t work_bytes_;
};

inline cuda::Launch launch_of(const StepOnDevice& step, std::int64_t rows, std::int32_t ranges) {
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = rows + 70;  // a class is larger than its step
  to.max_ranges = ranges + 2;
  return to;
}

template <class E>
class DeltaWorld {
 public:
  DeltaWorld(const DeltaShape& shape, std::int32_t slots, std::int32_t records)
      : d_(shape),
        sizes_{slots, 0, records, 0},
        layout_{{}, {shape}},
        memory_(cpu::DeltaArena::bytes(layout_, sizes_)),
        arena({memory_.data, cpu::DeltaArena::bytes(layout_, sizes_)}, layout_, sizes_),
        cpu_(cpu::delta_rule_workspace(shape, 1)),
        taps_(noise_row(900, 0, shape.channels() * shape.conv_kernel)),
        neg_exp_a_(noise_row(901, 0, shape.value_heads)),
        dt_bias_(noise_row(902, 0, shape.value_heads)),
        s_(at(slots * shape.value_channels() * shape.key_dim)),
        conv_(at(slots * (shape.conv_kernel - 1 + records) * shape.channels())),
        key_(at(slots * 2 * records * shape.key_channels())),
        u_(at(slots * 2 * records * shape.value_channels())),
        decay_(at(slots * 2 * records * shape.value_heads)),
        dev_taps_(taps_),
        dev_dt_(dt_bias_) {
    for (float& v : neg_exp_a_) v = -0.02f - 0.2f * std::fabs(v);
    packed_.resize(taps_.size());
    cpu::pack_conv_taps(taps_.data(), d_.channels(), d_.conv_kernel, packed_.data());
    for (std::int32_t i = 0; i < slots; ++i) reset(i);
  }
  cuda::DeltaLayerView view() {
    cuda::DeltaLayerView v{};
    v.shape = d_;
    v.operand = element_dtype<E>();
    v.slots = sizes_.slots;
    v.records = sizes_.records;
    v.conv_rows = d_.conv_kernel - 1 + sizes_.records;
    v.s = s_.data();
    v.conv = conv_.raw();
    v.key = key_.data();
    v.u = u_.data();
    v.decay = decay_.data();
    return v;
  }
  void reset(std::int32_t slot) {
    arena.reset(slot);
    cuda::delta_reset(nullptr, view(), slot);
  }

  // Parts in section order.
  void step(const std::vector<Part>& parts, const std::string& where) {
    std::vector<Range> ranges;
    std::int32_t rows = 0;
    for (const Part& p : parts) {
      Range r;
      r.section = p.section;
      r.slot = p.slot;
      r.first_row = rows;
      r.rows = p.rows;
      r.position = arena.cursors().position(p.slot, p.keep);
      r.keep = p.keep;
      rows += p.rows;
      ranges.push_back(r);
    }
    const std::int64_t heads = d_.value_heads, channels = d_.channels();
    Row x = noise_rows(ranges, 1, channels);
    round_to<E>(x);
    const Row a = noise_rows(ranges, 2, heads), b = noise_rows(ranges, 3, heads);
    Row y(x.size()), g(a.size()), beta(a.size()), o(at(rows * d_.value_channels()));

    const StepOnDevice on(batch_of(ranges), &arena.cursors());
    const cuda::Launch to = launch_of(on, rows, static_cast<std::int32_t>(ranges.size()));
    DeviceMatrix<E> dx(encoded<E>(x), rows, channels, 3), dy(rows, channels, 5),
        dout(rows, d_.value_channels(), 1);
    DeviceMatrix<float> da(a, rows, heads, 2), db(b, rows, heads), dg(rows, heads, 3),
        dbeta(rows, heads, 1);
    DeviceArray<float> neg(neg_exp_a_);

    cpu::SequenceContext context = cpu_.context();
    for (const Section s : kSections) {
      cpu::delta_conv(context, arena, {{x.data(), channels}, packed_.data(), 0, of_section(ranges, s),
                                       {y.data(), channels}});
      cuda::delta_conv(to, {dx.view(), dev_taps_.data(), view(), s, dy.view()});
    }
    cpu::delta_gates(context, {{a.data(), heads}, {b.data(), heads}, neg_exp_a_.data(),
                               dt_bias_.data(), rows, heads, {g.data(), heads},
                               {beta.data(), heads}});
    cuda::delta_gates(to, {da.view(), db.view(), neg.data(), dev_dt_.data(), dg.view(),
                           dbeta.view()});
    finish_device();
    expect_bytes(dy.download(), y, where + ", delta_conv");
    expect_bytes(dg.download(), g, where + ", g");
    expect_bytes(dbeta.download(), beta, where + ", beta");
    round_to<E>(y);
    for (const Section s : kSections) {
      cpu::delta_rule(context, arena, {{y.data(), channels}, {g.data(), heads},
                                       {beta.data(), heads}, 0, of_section(ranges, s),
                                       {o.data(), d_.value_channels()}});
      cuda::delta_rule(to, {dy.view(), dg.view(), dbeta.view(), view(), s, dout.view()});
    }
    finish_device();
    expect_bytes(dout.download(), o, where + ", delta_rule");
    for (const std::string& hurt : {dy.damage(), dg.damage(), dbeta.damage(), dout.damage(),
                                    s_.damage(), conv_.damage(), key_.damage(), u_.damage(),
                                    decay_.damage(), dx.damage()}) {
      EXPECT_EQ(hurt, "") << where;
    }
    arena.end_step(ranges);
  }

  // S and the convolution's rows of a slot with its first `keep` records taken.
  Row saved(std::int32_t slot, std::int32_t keep) {
    DeviceArray<float> to(at(cuda::delta_floats(d_)));
    cuda::delta_save(nullptr, view(), slot, arena.cursors().half(slot), keep,
                     arena.cursors().position(slot, keep), to.data());
    finish_device();
    EXPECT_EQ(to.damage(), "");
    return to.download();
  }
  void expect_state(std::int32_t slot, std::int32_t keep, const std::string& where) {
    const HostState::DeltaLayer want = arena.to_host(slot, keep, cpu_.context().kernels).at(0);
    Row all = want.s;
    const std::int64_t history = d_.conv_kernel - 1;
    for (std::int64_t i = 0; i < history; ++i) {
      for (std::int64_t c = 0; c < d_.channels(); ++c) all.push_back(want.conv[at(c * history + i)]);
    }
    expect_bytes(saved(slot, keep), all, where + ", state of slot " + std::to_string(slot));
  }
  // Slot `to` becomes slot `from` with `keep` of its records.
  void copy(std::int32_t from, std::int32_t keep, std::int32_t to) {
    std::vector<std::byte> bytes(arena.snapshot_bytes());
    const std::int64_t position = arena.cursors().position(from, keep);
    arena.save(from, keep, cpu_.context().kernels, bytes);
    const DeviceArray<float> saved_floats(saved(from, keep));
    arena.load(to, bytes);
    cuda::delta_load(nullptr, view(), to, position, saved_floats.data());
    finish_device();
  }

 private:
  DeltaShape d_;
  StateSizes sizes_;
  StateLayout layout_;
  Aligned memory_;

 public:
  cpu::DeltaArena arena;

 private:
  CpuSide cpu_;
  Row taps_, packed_, neg_exp_a_, dt_bias_;
  DeviceArray<float> s_;
  DeviceArray<E> conv_;
  DeviceArray<float> key_, u_, decay_, dev_taps_, dev_dt_;
};

struct AttentionCase {
  AttentionShape shape;
  std::int32_t rotary;
  bool norms;
};

template <class E>
class AttentionWorld {
 public:
  static constexpr std::int32_t kRows = 9;  // of a verify range at most

  AttentionWorld(const AttentionCase& c, std::int32_t slots, std::int64_t positions)
      : c_(c),
        pages_each_((positions + 63) / 64),
        positions_(positions),
        sizes_{slots, slots * pages_each_ + 1, kRows, 0},
        layout_{{c.shape}, {}},
        bytes_(cpu::KvArena::bytes(layout_, sizes_)),
        memory_(bytes_),
        arena_({memory_.data, bytes_}, layout_, sizes_),
        cpu_(cpu::attention_workspace(c.shape, kRows, 1)),
        q_norm_(noise_row(903, 0, c.shape.head_dim)),
        k_norm_(noise_row(904, 0, c.shape.head_dim)),
        keys_(at(sizes_.pages * 64 * c.shape.kv_heads * c.shape.head_dim)),
        values_(keys_.size()),
        next_(at(slots), 0) {
    std::memset(memory_.data, 0xFF, bytes_);
    for (std::int64_t i = slots * pages_each_; i > 0; --i) pages_.push_back(static_cast<std::int32_t>(i));
    std::swap(pages_.front(), pages_[pages_.size() / 2]);
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int32_t i = 0; i < c.rotary; ++i) {
        const double angle = static_cast<double>(p) / (1 + i % (c.rotary / 2));
        rope_.push_back(static_cast<float>(i < c.rotary / 2 ? std::cos(angle) : std::sin(angle)));
      }
    }
  }
  void set_position(std::int32_t slot, std::int64_t position) { next_[at(slot)] = position; }

  void step(const std::vector<Part>& parts, const std::string& where) {
    const AttentionShape& s = c_.shape;
    std::vector<Range> ranges;
    std::int32_t rows = 0;
    for (const Part& p : parts) {
      Range r;
      r.section = p.section;
      r.slot = p.slot;
      r.first_row = rows;
      r.rows = p.rows;
      r.position = next_[at(p.slot)];
      r.first_page = static_cast<std::int32_t>(p.slot * pages_each_);
      next_[at(p.slot)] += p.rows;
      rows += p.rows;
      ranges.push_back(r);
    }
    const std::int64_t dim = s.head_dim, cols = s.heads * dim, kv_cols = s.kv_heads * dim;
    Row q = noise_rows(ranges, 5, 2 * cols), k = noise_rows(ranges, 6, kv_cols),
        v = noise_rows(ranges, 7, kv_cols);
    for (Row* x : {&q, &k, &v}) round_to<E>(*x);
    Row rotated(at(rows * cols)), y(rotated.size());

    const StepOnDevice on(batch_of(ranges, pages_));
    const cuda::Launch to = launch_of(on, rows, static_cast<std::int32_t>(ranges.size()));
    DeviceMatrix<E> dq(encoded<E>(q), rows, 2 * cols, 1), dk(encoded<E>(k), rows, kv_cols, 2),
        dv(encoded<E>(v), rows, kv_cols, 3), drotated(rows, cols, 5), dy(rows, cols, 7);
    const DeviceArray<float> q_norm(q_norm_), k_norm(k_norm_), rope(rope_);
    const cuda::KvLayerView kv{s, element_dtype<E>(), sizes_.pages, keys_.raw(), values_.raw()};
    const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));

    cpu::SequenceContext context = cpu_.context();
    cpu::qk_norm_rope(context, arena_,
                      {{q.data(), 2 * cols}, 2 * dim, {k.data(), kv_cols}, {v.data(), kv_cols},
                       c_.norms ? q_norm_.data() : nullptr, c_.norms ? k_norm_.data() : nullptr,
                       1e-6f, rope_.data(), positions_, c_.rotary, 0, ranges, pages_,
                       {rotated.data(), cols}});
    cuda::qk_norm_rope(to, {dq.view(), dk.view(), dv.view(), 2 * dim,
                            c_.norms ? q_norm.data() : nullptr, c_.norms ? k_norm.data() : nullptr,
                            1e-6f, rope.data(), c_.rotary, kv, drotated.view()});
    finish_device();
    expect_bytes(drotated.download(), rotated, where + ", qk_norm_rope");
    round_to<E>(rotated);
    float* const stored = reinterpret_cast<float*>(memory_.data);
    for (std::uint64_t i = 0; i < bytes_ / sizeof(float); ++i) stored[i] = decode(encode<E>(stored[i]));
    for (const Range& r : ranges) expect_pages(r, where);

    for (const Section part : kSections) {
      cpu::attention(context, arena_, {{rotated.data(), cols}, scale, 0, of_section(ranges, part),
                                       pages_, {y.data(), cols}});
      cuda::attention(to, {drotated.view(), scale, kv, part, dy.view()});
    }
    finish_device();
    expect_bytes(dy.download(), y, where + ", attention");
    for (const std::string& hurt :
         {drotated.damage(), dy.damage(), keys_.damage(), values_.damage(), dq.damage()}) {
      EXPECT_EQ(hurt, "") << where;
    }
  }

 private:
  void expect_pages(const Range& r, const std::string& where) {
    const AttentionShape& s = c_.shape;
    const std::int64_t end = r.position + r.rows, dim = s.head_dim;
    if (end == 0) return;
    const HostState::KvLayer want =
        arena_.to_host(std::span(pages_).subspan(at(r.first_page), at((end + 63) / 64)), end).at(0);
    const std::vector<E> keys = keys_.download(), values = values_.download();
    std::vector<E> k, v;
    for (std::int64_t h = 0; h < s.kv_heads; ++h) {
      for (std::int64_t p = 0; p < end; ++p) {
        const std::int64_t page = pages_[at(r.first_page + p / 64)];
        const std::int64_t from = ((page * s.kv_heads + h) * 64 + p % 64) * dim;
        k.insert(k.end(), keys.begin() + from, keys.begin() + from + dim);
        v.insert(v.end(), values.begin() + from, values.begin() + from + dim);
      }
    }
    expect_bytes(k, want.k, where + ", keys of slot " + std::to_string(r.slot));
    expect_bytes(v, want.v, where + ", values of slot " + std::to_string(r.slot));
  }

  AttentionCase c_;
  std::int64_t pages_each_, positions_;
  StateSizes sizes_;
  StateLayout layout_;
  std::uint64_t bytes_;
  Aligned memory_;
  cpu::KvArena arena_;
  CpuSide cpu_;
  Row q_norm_, k_norm_, rope_;
  DeviceArray<E> keys_, values_;
  std::vector<std::int64_t> next_;
  std::vector<std::int32_t> pages_;
};

}  // namespace nibble::test
