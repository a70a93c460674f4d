// sequence_worlds.h: the CUDA ops beside the CPU's (tests/cases/sequence_on_cpu.h), step by step; every output is
// compared by bytes, and `digest` takes what the card wrote.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backends/cuda/ops/delta_net.h"
#include "backends/cuda/ops/sequence.h"
#include "core/numerics/kv_codes.h"
#include "core/numerics/reduce.h"
#include "tests/cases/linear_cases.h"
#include "tests/cases/sequence_on_cpu.h"
#include "tests/cuda/step_on_device.h"

namespace nibble::test {

template <class E>
std::vector<E> encoded(const Row& x) {
  std::vector<E> y;
  for (const float v : x) y.push_back(encode<E>(v));
  return y;
}
template <class E>
Row decoded(const std::vector<E>& x) {
  Row y;
  for (const E v : x) y.push_back(decode(v));
  return y;
}

// Inputs are such that every expected value is a number, unless said otherwise: NaN everywhere would prove nothing.
template <class E>
void expect_bytes(const std::vector<E>& got, const Row& want, const std::string& where, bool numbers = true) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float g = decode(got[i]), w = decode(encode<E>(want[i]));
    ASSERT_FALSE(numbers && std::isnan(w)) << where << ": the CPU has no number at " << i;
    ASSERT_TRUE(same_bits(g, w)) << where << ": element " << i << ": got " << g << ", expected " << w;
  }
}

inline Batch batch_of(const std::vector<Range>& ranges, std::vector<std::int32_t> pages = {}) {
  Batch b;
  b.ranges = ranges;
  b.pages = std::move(pages);
  for (const Range& r : ranges) b.tokens.resize(b.tokens.size() + at(r.rows));
  return b;
}

inline cuda::Launch launch_of(const StepOnDevice& step, std::int64_t rows, std::int32_t ranges) {
  cuda::Launch to;
  to.step = step.device();
  to.max_rows = rows + 70;  // a class is larger than its step
  to.max_ranges = ranges + 2;
  return to;
}

// What a card's buffers hold: rows of f16 are float32 around the ops that touch a sequence.
template <class E>
using Held = std::conditional_t<std::is_same_v<E, F16>, float, E>;

template <class E>
class DeltaWorld {
 public:
  using Rule = void (*)(const cuda::Launch&, const cuda::DeltaRuleArgs&);
  // As an op of its own each; or one op for all, of a delta net with or without the norm behind it (not of F16).
  enum class Ops { single, net, normed_net };
  // `units`: prefill rows as core/numerics/delta_order.h has them, for sm70 where E is F16. `prefill` computes them.
  DeltaWorld(const DeltaShape& shape, std::int32_t slots, std::int32_t records, bool units = false,
             Rule prefill = cuda::delta_rule, Ops ops = Ops::single)
      : units_(units),
        ops_(ops),
        in_eights_(units && prefill == cuda::delta_rule),
        prefill_(prefill),
        cpu_(shape, slots, records, units),
        s_(at(slots * shape.value_channels() * shape.key_dim)),
        conv_(at(slots * (shape.conv_kernel - 1 + records) * shape.channels())),
        key_(at(slots * 2 * records * shape.key_channels())),
        u_(at(slots * 2 * records * shape.value_channels())),
        decay_(at(slots * 2 * records * shape.value_heads)),
        taps_(cpu_.taps),
        neg_exp_a_(cpu_.neg_exp_a),
        dt_bias_(cpu_.dt_bias) {
    for (std::int32_t i = 0; i < slots; ++i) reset(i);
  }
  cuda::DeltaLayerView view() {
    cuda::DeltaLayerView v{};
    v.shape = cpu_.shape;
    v.operand = element_dtype<H>();
    v.slots = cpu_.sizes.slots;
    v.records = cpu_.sizes.records;
    v.conv_rows = cpu_.shape.conv_kernel - 1 + cpu_.sizes.records;
    v.s = s_.data();
    v.conv = conv_.raw();
    v.key = key_.data();
    v.u = u_.data();
    v.decay = decay_.data();
    return v;
  }
  void reset(std::int32_t slot) {
    cpu_.reset(slot);
    cuda::delta_reset(nullptr, view(), slot);
  }

  // Parts in section order.
  void step(const std::vector<Part>& parts, const std::string& where) {
    typename DeltaOnCpu<E>::Step s = cpu_.begin(parts);
    const std::int64_t heads = cpu_.shape.value_heads, channels = cpu_.shape.channels(), rows = s.rows;
    const StepOnDevice on(batch_of(s.ranges), &cpu_.arena.cursors());
    cuda::Launch to = launch_of(on, rows, static_cast<std::int32_t>(s.ranges.size()));
    // In turn: kernels of a warpgroup for few blocks and for many, and those of a warp.
    const int turn = ++steps_ % 3;
    to.multiprocessors = turn == 0 ? 0 : 1 << 20;
    // A class has room for its rows: the copy engine takes what lies behind the step's, which are NaN.
    DeviceMatrix<H> dx(encoded<H>(s.x), rows, channels, 3), dy(units_ ? to.max_rows : rows, channels, in_eights_ ? 8 : 5),
        dout(rows, cpu_.shape.value_channels(), in_eights_ ? 8 : 1);
    DeviceMatrix<float> da(s.a, rows, heads, 2), db(s.b, rows, heads), dg(rows, heads, 3), dbeta(rows, heads, 1);
    const cuda::ArchPath units = std::is_same_v<E, F16> ? cuda::ArchPath::sm70 : turn == 2 ? cuda::ArchPath::sm120 : cuda::ArchPath::sm90;
    DeviceArray<std::byte> left(
        units_ ? at(static_cast<std::int64_t>(cuda::delta_records_bytes(units, cpu_.shape, to.max_rows, to.max_ranges))) : 0);
    const auto rule_of = [&](Section part) {
      return cuda::DeltaRuleArgs{dy.view(), dg.view(), dbeta.view(), view(), part, dout.view(), units_ ? left.data() : nullptr, units};
    };
    if (ops_ != Ops::single) {
      const cuda::DeltaConvArgs conv{dx.view(), taps_.data(), view(), Section::prefill, dy.view()};
      const cuda::DeltaGatesArgs gates{da.view(), db.view(), neg_exp_a_.data(), dt_bias_.data(), dg.view(), dbeta.view()};
      net(s, to, {conv, gates, rule_of(Section::prefill)}, dout, where);
      for (const std::string& hurt : {dy.damage(), dg.damage(), dbeta.damage(), dout.damage(), s_.damage(), conv_.damage(),
                                      key_.damage(), u_.damage(), decay_.damage(), dx.damage(), left.damage()}) {
        EXPECT_EQ(hurt, "") << where;
      }
      cpu_.end(s);
      return;
    }
    for (const Section part : kSections) {
      cuda::delta_conv(to, {dx.view(), taps_.data(), view(), part, dy.view()});
    }
    cuda::delta_gates(to, {da.view(), db.view(), neg_exp_a_.data(), dt_bias_.data(), dg.view(), dbeta.view()});
    finish_device();
    cpu_.conv_and_gates(s);
    std::vector<H> y = dy.download();
    const std::size_t behind = y.size() - s.y.size();
    y.resize(s.y.size());
    expect_rows(y, s.y, where + ", delta_conv");
    expect(dg.download(), s.g, where + ", g");
    expect(dbeta.download(), s.beta, where + ", beta");
    if constexpr (std::is_same_v<E, F16>) {  // as rows of f16 have them
      y = as_stored<E>(std::move(y));
      y.resize(y.size() + behind, std::nanf(""));
      dy.upload(y);
    }
    for (const Section part : kSections) (part == Section::prefill ? prefill_ : cuda::delta_rule)(to, rule_of(part));
    finish_device();
    cpu_.rule(s);
    expect_rows(dout.download(), s.o, where + ", delta_rule");
    for (const std::string& hurt : {dy.damage(), dg.damage(), dbeta.damage(), dout.damage(),
                                    s_.damage(), conv_.damage(), key_.damage(), u_.damage(),
                                    decay_.damage(), dx.damage(), left.damage()}) {
      EXPECT_EQ(hurt, "") << where;
    }
    cpu_.end(s);
  }

  // S and the convolution's rows of a slot with its first `keep` records taken.
  Row saved(std::int32_t slot, std::int32_t keep) {
    const SlotCursors& cursors = cpu_.arena.cursors();
    DeviceArray<float> to(at(cuda::delta_floats(cpu_.shape)));
    cuda::delta_save(nullptr, view(), slot, cursors.half(slot), keep, cursors.position(slot, keep), to.data());
    finish_device();
    EXPECT_EQ(to.damage(), "");
    return to.download();
  }
  void expect_state(std::int32_t slot, std::int32_t keep, const std::string& where) {
    expect(saved(slot, keep), cpu_.saved(slot, keep), where + ", state of slot " + std::to_string(slot));
  }
  // Slot `to` becomes slot `from` with `keep` of its records.
  void copy(std::int32_t from, std::int32_t keep, std::int32_t to) {
    const std::int64_t position = cpu_.arena.cursors().position(from, keep);
    const DeviceArray<float> saved_floats(saved(from, keep));
    cpu_.copy(from, keep, to);
    cuda::delta_load(nullptr, view(), to, position, saved_floats.data());
    finish_device();
  }

  OpDigest digest;

 private:
  using H = Held<E>;
  template <class T>
  void expect(const std::vector<T>& got, const Row& want, const std::string& where) {
    digest.add(decoded(got));
    expect_bytes(got, want, where);
  }
  void expect_rows(const std::vector<H>& got, const Row& want, const std::string& where) {
    digest.add(as_stored<E>(decoded(got)));
    expect_bytes(got, want, where);
  }

  // One launch of the net, in a class of the step's sections and of all in turn.
  void net(typename DeltaOnCpu<E>::Step& s, const cuda::Launch& to, cuda::DeltaNetArgs n, DeviceMatrix<H>& out,
           const std::string& where) {
    const std::int64_t cols = cpu_.shape.value_channels(), group = cpu_.shape.value_dim;
    for (const Range& r : s.ranges) {
      (r.section == Section::decode ? n.decode : r.section == Section::verify ? n.verify : n.prefill) = true;
    }
    if (steps_ % 2 == 0) n.decode = n.verify = n.prefill = true;
    const Row z = as_stored<E>(noise_rows(s.ranges, 4, cols)), weight = noise_row(903, 0, group);
    DeviceMatrix<H> dz(encoded<H>(z), s.rows, cols, 3), dy(s.rows, cols, 1);
    const DeviceArray<float> dweight(weight);
    n.normed = ops_ == Ops::normed_net;
    const bool in_place = steps_ % 4 < 2;
    if (n.normed) {
      n.norm = {out.view(), dz.view(), dweight.data(), static_cast<std::int32_t>(group), 1e-6f, in_place ? out.view() : dy.view()};
    }
    cuda::delta_net(to, n);
    finish_device();
    cpu_.conv_and_gates(s);
    cpu_.rule(s);
    EXPECT_EQ(dy.damage(), "") << where;
    if (!n.normed) return expect(out.download(), s.o, where + ", delta_net");
    Row want(s.o.size());
    const float inverse = static_cast<float>(1.0 / static_cast<double>(group));
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(want.size()); i += group) {
      const Row x = as_stored<E>(Row(s.o.begin() + i, s.o.begin() + i + group));
      const float f = num::rsqrt(num::add(num::mul(num::tree_sum_squares(x.data(), group), inverse), 1e-6f));
      for (std::int64_t c = 0; c < group; ++c) {
        want[at(i + c)] = num::mul(num::mul(num::mul(x[at(c)], f), weight[at(c)]), num::silu(z[at(i + c)]));
      }
    }
    expect((in_place ? out : dy).download(), want, where + ", delta_net with its norm");
  }

  const bool units_;
  const Ops ops_;
  const bool in_eights_;  // rows at multiples of 16 bytes, as the copy engine wants them
  const Rule prefill_;
  int steps_ = 0;
  DeltaOnCpu<E> cpu_;
  DeviceArray<float> s_;
  DeviceArray<H> conv_;
  DeviceArray<float> key_, u_, decay_, taps_, neg_exp_a_, dt_bias_;
};

template <class E>
class AttentionWorld {
 public:
  static constexpr std::int32_t kRows = AttentionOnCpu<E>::kRows;

  // `units`: as core/numerics/attention_order.h has it, of float32 for sm70: prefill rows only.
  AttentionWorld(const AttentionCase& c, std::int32_t slots, std::int64_t positions, bool units = false,
                 KvFormat kv = KvFormat::operand)
      : units_(units),
        fp8_(kv == KvFormat::fp8),
        cpu_(c, slots, positions, units, kv),
        keys_(at(fp8_ ? 0 : cpu_.sizes.pages * 64 * c.shape.kv_heads * c.shape.head_dim)),
        values_(keys_.size()),
        key_codes_(at(fp8_ ? cpu_.sizes.pages * 64 * c.shape.kv_heads * c.shape.head_dim : 0)),
        value_codes_(key_codes_.size()),
        key_scales_(at(fp8_ ? cpu_.sizes.pages * 64 * c.shape.kv_heads : 0)),
        value_scales_(key_scales_.size()) {}
  void set_position(std::int32_t slot, std::int64_t position) { cpu_.set_position(slot, position); }
  // Changes each step's inputs, also to values that are no numbers.
  void alter(std::function<void(typename AttentionOnCpu<E>::Step&)> how) { cpu_.alter = std::move(how); }

  void step(const std::vector<Part>& parts, const std::string& where) {
    typename AttentionOnCpu<E>::Step s = cpu_.begin(parts);
    const AttentionCase& c = cpu_.of;
    const std::int64_t dim = c.shape.head_dim, cols = cpu_.cols(), kv_cols = cpu_.kv_cols(), rows = s.rows;
    const StepOnDevice on(batch_of(s.ranges, cpu_.pages));
    cuda::Launch to = launch_of(on, rows, static_cast<std::int32_t>(s.ranges.size()));
    const int turn = ++steps_ % 3;
    to.multiprocessors = turn == 0 ? 0 : turn == 1 ? 1 : 1 << 20;  // a block for each item, one or two for all
    DeviceMatrix<E> dq(encoded<E>(s.q), rows, 2 * cols, 1), dk(encoded<E>(s.k), rows, kv_cols, 2),
        dv(encoded<E>(s.v), rows, kv_cols, 3), drotated(units_ ? to.max_rows : rows, cols, units_ ? 8 : 5), dy(rows, cols, units_ ? 2 : 7);
    const DeviceArray<float> q_norm(cpu_.q_norm), k_norm(cpu_.k_norm), rope(cpu_.rope);
    cuda::KvLayerView kv{c.shape, element_dtype<E>(), cpu_.sizes.pages, keys_.raw(), values_.raw()};
    if (fp8_) {
      kv.k = key_codes_.raw(), kv.v = value_codes_.raw();
      kv.k_scales = key_scales_.data(), kv.v_scales = value_scales_.data();
    }

    cpu_.rotate(s);
    cuda::qk_norm_rope(to, {dq.view(), dk.view(), dv.view(), 2 * dim, c.norms ? q_norm.data() : nullptr,
                            c.norms ? k_norm.data() : nullptr, 1e-6f, rope.data(), c.rotary, kv, drotated.view()});
    finish_device();
    std::vector<E> rotated = drotated.download();
    rotated.resize(s.rotated.size());
    expect(rotated, s.rotated, where + ", qk_norm_rope");
    cpu_.store(s);
    for (const Range& r : s.ranges) expect_pages(r, where);

    cpu_.attend(s);
    // Without matrix units splits one after the other in a block, and each in its own, in turn.
    constexpr bool kSm70 = AttentionOnCpu<E>::kSm70;
    const bool of_tokens = units_ && !kSm70;
    const std::int64_t splits = !of_tokens && turn == 0 ? 0 : cuda::attention_split_slots(of_tokens, cpu_.sizes.pages, cpu_.sizes.slots);
    DeviceArray<float> of_splits(at(static_cast<std::int64_t>(cuda::attention_parts_bytes(c.shape, splits, kRows) / sizeof(float))));
    // On units by mma.sync and, where the card has it, by wgmma; of float32 by m8n8k4.
    for (const cuda::ArchPath path : {kSm70 ? cuda::ArchPath::sm70 : cuda::ArchPath::sm120, cuda::ArchPath::sm90}) {
      if (path == cuda::ArchPath::sm90 && !of_tokens) continue;
      for (const Section part : kSections) {
        const bool units = units_ && (of_tokens || part == Section::prefill);
        cuda::attention(to, {drotated.view(), cpu_.scale, kv, part, dy.view(), units, splits > 0 ? of_splits.data() : nullptr, splits, kRows, path});
      }
      finish_device();
      expect(dy.download(), s.y, where + (path == cuda::ArchPath::sm90 ? ", attention, path sm90" : ", attention"));
      dy.upload(std::vector<E>(s.y.size()));
    }
    for (const cuda::ArchPath path : {cuda::ArchPath::sm120, cuda::ArchPath::sm90}) {
      if ((path == cuda::ArchPath::sm90 && !units_) || (kSm70 && units_)) continue;  // sm70 has no gate there
      gated({drotated.view(), cpu_.scale, kv, Section::prefill, {}, units_, splits > 0 ? of_splits.data() : nullptr, splits, kRows, path},
            to, s.y, where);
    }
    for (const std::string& hurt :
         {drotated.damage(), dy.damage(), keys_.damage(), values_.damage(), dq.damage(), of_splits.damage(), key_codes_.damage(),
          value_codes_.damage(), key_scales_.damage(), value_scales_.damage()}) {
      EXPECT_EQ(hurt, "") << where;
    }
  }

  OpDigest digest;

 private:
  // With a gate, each head's behind something else, as rows of queries and gates have it.
  void gated(cuda::AttentionArgs a, const cuda::Launch& to, const Row& y, const std::string& where) {
    const std::int64_t dim = cpu_.of.shape.head_dim, stride = dim + 6, heads = cpu_.of.shape.heads, cols = heads * dim,
                       rows = static_cast<std::int64_t>(y.size()) / cols;
    Hash random{static_cast<std::uint32_t>(13 + steps_)};
    Row gates, want;
    for (std::int64_t i = 0; i < rows * heads * stride; ++i) gates.push_back(decode(encode<E>(random.value(-3, 4))));
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const float gate = gates[at(i / dim * stride + i % dim)];
      want.push_back(num::mul(decode(encode<E>(y[at(i)])), num::sigmoid(gate)));
    }
    DeviceMatrix<E> of_gates(encoded<E>(gates), rows, heads * stride, 2), out(rows, cols, 2);
    a.gate = of_gates.view();
    a.gate_head_stride = stride;
    a.y = out.view();
    for (const Section part : kSections) {
      a.section = part;
      cuda::attention(to, a);
    }
    finish_device();
    expect_bytes(out.download(), want, where + ", gated attention", !cpu_.alter);
    EXPECT_EQ(of_gates.damage() + out.damage(), "") << where;
  }
  void expect(const std::vector<E>& got, const Row& want, const std::string& where) {
    digest.add(decoded(got));
    expect_bytes(got, want, where, !cpu_.alter);
  }
  void expect_pages(const Range& r, const std::string& where) {
    const AttentionShape& s = cpu_.of.shape;
    const std::int64_t end = r.position + r.rows, dim = s.head_dim;
    const HostState::KvLayer want = cpu_.stored(r);
    if (fp8_) return expect_codes(r, want, where);
    const std::vector<E> keys = keys_.download(), values = values_.download();
    std::vector<E> k, v;
    for (std::int64_t h = 0; h < s.kv_heads; ++h) {
      for (std::int64_t p = 0; p < end; ++p) {
        const std::int64_t page = cpu_.pages[at(r.first_page + p / 64)];
        const std::int64_t from = ((page * s.kv_heads + h) * 64 + p % 64) * dim;
        k.insert(k.end(), keys.begin() + from, keys.begin() + from + dim);
        v.insert(v.end(), values.begin() + from, values.begin() + from + dim);
      }
    }
    expect(k, want.k, where + ", keys of slot " + std::to_string(r.slot));
    expect(v, want.v, where + ", values of slot " + std::to_string(r.slot));
  }
  // Codes times scales, and both where a range has rows.
  void expect_codes(const Range& r, const HostState::KvLayer& want, const std::string& where) {
    const AttentionShape& s = cpu_.of.shape;
    const std::int64_t end = r.position + r.rows, dim = s.head_dim;
    const std::vector<std::uint8_t> keys = key_codes_.download(), values = value_codes_.download();
    const std::vector<float> key_scales = key_scales_.download(), value_scales = value_scales_.download();
    std::vector<float> k, v;
    for (std::int32_t h = 0; h < s.kv_heads; ++h) {
      for (std::int64_t p = 0; p < end; ++p) {
        const std::int64_t page = cpu_.pages[at(r.first_page + p / 64)], row = (page * s.kv_heads + h) * 64 + p % 64;
        float* const own = cpu_.arena().head(0, h) + page * cpu_.arena().page_stride(0);
        ASSERT_EQ(key_scales[at(row)], cpu::KvArena::key_scales(s, own)[p % 64]) << where << ", position " << p;
        ASSERT_EQ(value_scales[at(row)], cpu::KvArena::value_scales(s, own)[p % 64]) << where << ", position " << p;
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::uint8_t key = keys[at(row * dim + d)], value = values[at(row * dim + d)];
          ASSERT_EQ(key, cpu::KvArena::codes(own)[cpu::KvArena::key_at(s, p % 64, d)]) << where << ", position " << p << ", " << d;
          ASSERT_EQ(value, cpu::KvArena::codes(own)[cpu::KvArena::value_at(s, p % 64, d)]) << where << ", position " << p << ", " << d;
          k.push_back(num::kv_value(key, key_scales[at(row)]));
          v.push_back(num::kv_value(value, value_scales[at(row)]));
        }
      }
    }
    expect_bytes(k, want.k, where + ", keys of slot " + std::to_string(r.slot), !cpu_.alter);
    expect_bytes(v, want.v, where + ", values of slot " + std::to_string(r.slot), !cpu_.alter);
  }

  const bool units_, fp8_;
  int steps_ = 0;
  AttentionOnCpu<E> cpu_;
  DeviceArray<E> keys_, values_;
  DeviceArray<std::uint8_t> key_codes_, value_codes_;
  DeviceArray<float> key_scales_, value_scales_;
};

}  // namespace nibble::test
