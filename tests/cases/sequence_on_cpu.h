// sequence_on_cpu.h: one delta-net layer, and one attention layer, run by the CPU's ops on their float32 arenas over
// inputs that any backend can make again. For bf16 (E = uint16_t) and f16 (E = F16) inputs are representable and outputs
// and KV pages are rounded once. tests/cuda/sequence_worlds.h runs a card beside them; `digest` takes every output in
// the order of writing.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "backends/cpu/cpu_info.h"
#include "backends/cpu/ops/sequence_ops.h"
#include "core/numerics/row_scale.h"
#include "tests/cpu/sequence_alone.h"
#include "tests/support/buffers.h"
#include "tests/support/op_digests.h"

namespace nibble::test {

struct F16 {  // of rows below 2^15, whose exponent is 0
  std::uint16_t bits;
};

template <class E>
E encode(float v) {
  if constexpr (std::is_same_v<E, float>) return v;
  else if constexpr (std::is_same_v<E, F16>) return {num::activation_to_f16(v, 0)};
  else return num::float_to_bf16(v);
}
inline float decode(float v) { return v; }
inline float decode(std::uint16_t v) { return num::bf16_to_float(v); }
inline float decode(F16 v) { return num::row_f16_to_float(v.bits, 0); }

template <class E>
void round_to(Row& x) {
  for (float& v : x) v = decode(encode<E>(v));
}
template <class E>
Row as_stored(Row x) {
  round_to<E>(x);
  return x;
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

template <class E>
class DeltaOnCpu {
 public:
  struct Step {
    std::vector<Range> ranges;
    std::int32_t rows = 0;
    Row x, a, b, y, g, beta, o;
  };

  // `units`: prefill rows as core/numerics/delta_order.h has them: profile sm90's, or sm70's of f16.
  DeltaOnCpu(const DeltaShape& of, std::int32_t slots, std::int32_t records, bool units = false)
      : shape(of),
        sizes{slots, 0, records, 0},
        layout_{{}, {of}},
        memory_(cpu::DeltaArena::bytes(layout_, sizes)),
        arena({memory_.data, cpu::DeltaArena::bytes(layout_, sizes)}, layout_, sizes),
        taps(noise_row(900, 0, of.channels() * of.conv_kernel)),
        neg_exp_a(noise_row(901, 0, of.value_heads)),
        dt_bias(noise_row(902, 0, of.value_heads)),
        cpu_(cpu::delta_rule_workspace(of, 1)),
        packed_(taps.size()),
        units_(!units                     ? cpu::PrefillUnits::none
               : std::is_same_v<E, F16> ? cpu::PrefillUnits::sm70
                                        : cpu::PrefillUnits::sm90) {
    for (float& v : neg_exp_a) v = -0.02f - 0.2f * std::fabs(v);
    cpu::pack_conv_taps(taps.data(), of.channels(), of.conv_kernel, packed_.data());
    for (std::int32_t i = 0; i < slots; ++i) reset(i);
  }
  void reset(std::int32_t slot) { arena.reset(slot); }

  // Parts in section order.
  void step(const std::vector<Part>& parts, const std::string&) {
    Step s = begin(parts);
    conv_and_gates(s);
    for (const Row& written : {as_stored<E>(s.y), s.g, s.beta}) digest.add(written);
    rule(s);
    digest.add(as_stored<E>(s.o));
    end(s);
  }
  void expect_state(std::int32_t slot, std::int32_t keep, const std::string&) { digest.add(saved(slot, keep)); }
  // S and the convolution's rows of a slot with its first `keep` records taken.
  Row saved(std::int32_t slot, std::int32_t keep) {
    const HostState::DeltaLayer layer = arena.to_host(slot, keep, cpu_.context().kernels).at(0);
    Row all = layer.s;
    const std::int64_t history = shape.conv_kernel - 1;
    for (std::int64_t i = 0; i < history; ++i) {
      for (std::int64_t c = 0; c < shape.channels(); ++c) all.push_back(layer.conv[at(c * history + i)]);
    }
    return all;
  }
  // Slot `to` becomes slot `from` with `keep` of its records.
  void copy(std::int32_t from, std::int32_t keep, std::int32_t to) {
    std::vector<std::byte> bytes(arena.snapshot_bytes());
    arena.save(from, keep, cpu_.context().kernels, bytes);
    arena.load(to, bytes);
  }

  Step begin(const std::vector<Part>& parts) {
    Step s;
    for (const Part& p : parts) {
      Range r;
      r.section = p.section;
      r.slot = p.slot;
      r.first_row = s.rows;
      r.rows = p.rows;
      r.position = arena.cursors().position(p.slot, p.keep);
      r.keep = p.keep;
      s.rows += p.rows;
      s.ranges.push_back(r);
    }
    s.x = as_stored<E>(noise_rows(s.ranges, 1, shape.channels()));
    s.a = noise_rows(s.ranges, 2, shape.value_heads);
    s.b = noise_rows(s.ranges, 3, shape.value_heads);
    s.y.resize(s.x.size());
    s.g.resize(s.a.size());
    s.beta.resize(s.a.size());
    s.o.resize(at(s.rows * shape.value_channels()));
    return s;
  }
  void conv_and_gates(Step& s) {
    const std::int64_t heads = shape.value_heads, channels = shape.channels();
    cpu::SequenceContext context = cpu_.context();
    for (const Section part : kSections) {
      cpu::delta_conv(context, arena, {{s.x.data(), channels}, packed_.data(), 0, of_section(s.ranges, part),
                                       {s.y.data(), channels}});
    }
    cpu::delta_gates(context, {{s.a.data(), heads}, {s.b.data(), heads}, neg_exp_a.data(), dt_bias.data(), s.rows,
                               heads, {s.g.data(), heads}, {s.beta.data(), heads}});
  }
  void rule(Step& s) {
    round_to<E>(s.y);
    const std::int64_t heads = shape.value_heads;
    cpu::SequenceContext context = cpu_.context();
    for (const Section part : kSections) {
      cpu::delta_rule(context, arena, {{s.y.data(), shape.channels()}, {s.g.data(), heads}, {s.beta.data(), heads}, 0,
                                       of_section(s.ranges, part), {s.o.data(), shape.value_channels()}, units_});
    }
  }
  void end(const Step& s) { arena.end_step(s.ranges); }

  const DeltaShape shape;
  const StateSizes sizes;

 private:
  StateLayout layout_;
  Aligned memory_;

 public:
  cpu::DeltaArena arena;
  const Row taps;
  Row neg_exp_a;
  const Row dt_bias;
  OpDigest digest;

 private:
  CpuSide cpu_;
  Row packed_;
  cpu::PrefillUnits units_;
};

struct AttentionCase {
  AttentionShape shape;
  std::int32_t rotary;
  bool norms;
};

template <class E>
class AttentionOnCpu {
 public:
  static constexpr std::int32_t kRows = 9;  // of a verify range at most
  struct Step {
    std::vector<Range> ranges;
    std::int32_t rows = 0;
    Row q, k, v, rotated, y;
  };

  // `units`: as core/numerics/attention_order.h has it, of float32 for sm70: prefill rows only.
  static constexpr bool kSm70 = std::is_same_v<E, float>;
  AttentionOnCpu(const AttentionCase& c, std::int32_t slots, std::int64_t positions, bool units = false,
                 KvFormat kv = KvFormat::operand)
      : of(c),
        pages_each_((positions + 63) / 64),
        positions_(positions),
        sizes{slots, slots * pages_each_ + 1, kRows, 0},
        layout_{{c.shape}, {}, kv},
        bytes_(cpu::KvArena::bytes(layout_, sizes)),
        memory_(bytes_),
        arena_({memory_.data, bytes_}, layout_, sizes),
        cpu_(cpu::attention_workspace(c.shape, kRows, 1, kv)),
        q_norm(noise_row(903, 0, c.shape.head_dim)),
        k_norm(noise_row(904, 0, c.shape.head_dim)),
        scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.shape.head_dim)))),
        units_(units),
        next_(at(slots), 0) {
    std::memset(memory_.data, 0xFF, bytes_);
    for (std::int64_t i = slots * pages_each_; i > 0; --i) pages.push_back(static_cast<std::int32_t>(i));
    std::swap(pages.front(), pages[pages.size() / 2]);
    // Rotations by any angles, from the tangents of their halves: every machine makes the same ones.
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int32_t i = 0; i < c.rotary; ++i) {
        const double t = p == 0 ? 0 : 3 * static_cast<double>(noise(905, p, i % (c.rotary / 2)));
        rope.push_back(static_cast<float>((i < c.rotary / 2 ? 1 - t * t : 2 * t) / (1 + t * t)));
      }
    }
  }
  void set_position(std::int32_t slot, std::int64_t position) { next_[at(slot)] = position; }

  void step(const std::vector<Part>& parts, const std::string&) {
    Step s = begin(parts);
    rotate(s);
    digest.add(as_stored<E>(s.rotated));
    store(s);
    for (const Range& r : s.ranges) {
      const HostState::KvLayer layer = stored(r);
      digest.add(layer.k);
      digest.add(layer.v);
    }
    attend(s);
    digest.add(as_stored<E>(s.y));
  }

  Step begin(const std::vector<Part>& parts) {
    Step s;
    for (const Part& p : parts) {
      Range r;
      r.section = p.section;
      r.slot = p.slot;
      r.first_row = s.rows;
      r.rows = p.rows;
      r.position = next_[at(p.slot)];
      r.first_page = static_cast<std::int32_t>(p.slot * pages_each_);
      next_[at(p.slot)] += p.rows;
      s.rows += p.rows;
      s.ranges.push_back(r);
    }
    s.q = as_stored<E>(noise_rows(s.ranges, 5, 2 * cols()));
    s.k = as_stored<E>(noise_rows(s.ranges, 6, kv_cols()));
    s.v = as_stored<E>(noise_rows(s.ranges, 7, kv_cols()));
    s.rotated.resize(at(s.rows * cols()));
    s.y.resize(s.rotated.size());
    if (alter) alter(s);
    return s;
  }
  void rotate(Step& s) {
    cpu::SequenceContext context = cpu_.context();
    cpu::qk_norm_rope(context, arena_,
                      {{s.q.data(), 2 * cols()}, 2 * of.shape.head_dim, {s.k.data(), kv_cols()},
                       {s.v.data(), kv_cols()}, of.norms ? q_norm.data() : nullptr,
                       of.norms ? k_norm.data() : nullptr, 1e-6f, rope.data(), positions_, of.rotary, 0, s.ranges,
                       pages, {s.rotated.data(), cols()}, arena_.fp8() && !std::is_same_v<E, float>});
  }
  void store(Step& s) {
    round_to<E>(s.rotated);
    if (arena_.fp8()) return;
    float* const values = reinterpret_cast<float*>(memory_.data);
    for (std::uint64_t i = 0; i < bytes_ / sizeof(float); ++i) values[i] = decode(encode<E>(values[i]));
  }
  // Keys and values [head, position, dim] of a range's sequence.
  HostState::KvLayer stored(const Range& r) const {
    const std::int64_t end = r.position + r.rows;
    if (end == 0) return {};
    return arena_.to_host(std::span(pages).subspan(at(r.first_page), at((end + 63) / 64)), end).at(0);
  }
  void attend(Step& s) {
    cpu::SequenceContext context = cpu_.context();
    for (const Section part : kSections) {
      const bool units = units_ && (!kSm70 || part == Section::prefill);
      cpu::attention(context, arena_, {{s.rotated.data(), cols()}, scale, 0, of_section(s.ranges, part), pages,
                                       {s.y.data(), cols()}, units, kSm70});
    }
  }
  std::int64_t cols() const { return std::int64_t{of.shape.heads} * of.shape.head_dim; }
  std::int64_t kv_cols() const { return std::int64_t{of.shape.kv_heads} * of.shape.head_dim; }
  cpu::KvArena& arena() { return arena_; }

  const AttentionCase of;

 private:
  std::int64_t pages_each_, positions_;

 public:
  const StateSizes sizes;

 private:
  StateLayout layout_;
  std::uint64_t bytes_;
  Aligned memory_;
  cpu::KvArena arena_;
  CpuSide cpu_;

 public:
  const Row q_norm, k_norm;
  Row rope;
  const float scale;
  std::vector<std::int32_t> pages;
  OpDigest digest;
  std::function<void(Step&)> alter;  // a step's inputs

 private:
  bool units_;
  std::vector<std::int64_t> next_;
};

}  // namespace nibble::test
