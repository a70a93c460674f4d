// Keys and values in fp8 (core/numerics/kv_codes.h): what the pages hold and what attention makes of it, bytes against the
// plain text of the contracts, and how far that is from keys and values that were not rounded.
#include <cstdio>
#include <limits>

#include "core/numerics/kv_codes.h"
#include "tests/cases/sequence_cases.h"
#include "tests/cpu/attention_units_world.h"

namespace nibble::test {
namespace {

// A row of a head as the state keeps it.
struct Kept {
  Row codes;
  float scale;
  explicit Kept(const Row& x) {
    float most = 0.0f;
    for (const float v : x) most = std::fabs(v) > most ? std::fabs(v) : most;
    scale = most == 0.0f ? 1.0f : num::div(most, 448.0f);
    for (const float v : x) codes.push_back(num::e4m3_to_float(num::float_to_e4m3(num::div(v, scale))));
  }
};

// The CPU's ops beside the plain text, step by step.
template <class E>
class KvCodesWorld {
 public:
  static constexpr std::int32_t kRows = AttentionOnCpu<E>::kRows;
  KvCodesWorld(const AttentionCase& c, std::int32_t slots, std::int64_t positions, bool units)
      : cpu_(c, slots, positions, units, KvFormat::fp8), units_(units), sequences_(at(slots)) {
    for (auto& heads : sequences_) heads.resize(at(c.shape.kv_heads));
  }
  void set_position(std::int32_t slot, std::int64_t position) { cpu_.set_position(slot, position); }

  void step(const std::vector<Part>& parts, const std::string& where) {
    typename AttentionOnCpu<E>::Step s = cpu_.begin(parts);
    cpu_.rotate(s);
    cpu_.store(s);
    cpu_.attend(s);
    for (const Range& r : s.ranges) keep(s, r, where);
    for (const Range& r : s.ranges) {
      for (std::int32_t i = 0; i < r.rows; ++i) {
        if (r.section == Section::prefill && i % 16 != 15 && i + 1 < r.rows) continue;  // the plain text takes its time
        for (std::int32_t h = 0; h < cpu_.of.shape.heads; ++h) row(s, r, i, h, where);
      }
    }
  }

 private:
  struct Head {  // rows of a kv head
    std::vector<Row> k, v;
    Row k_scales, v_scales;
  };
  void keep(const typename AttentionOnCpu<E>::Step& s, const Range& r, const std::string& where) {
    const AttentionCase& c = cpu_.of;
    const std::int64_t dim = c.shape.head_dim, end = r.position + r.rows;
    const HostState::KvLayer stored = cpu_.stored(r);
    for (std::int32_t h = 0; h < c.shape.kv_heads; ++h) {
      Head& head = sequences_[at(r.slot)][at(h)];
      for (Row* scales : {&head.k_scales, &head.v_scales}) scales->resize(at(r.position));
      for (auto* rows : {&head.k, &head.v}) rows->resize(at(r.position));
      for (std::int32_t i = 0; i < r.rows; ++i) {
        const std::int64_t from = (r.first_row + i) * cpu_.kv_cols() + h * dim;
        const Kept key(as_stored<E>(reference_rope(s.k.data() + from, c.norms ? cpu_.k_norm.data() : nullptr, 1e-6f, dim,
                                                   c.rotary, cpu_.rope.data() + (r.position + i) * c.rotary)));
        const Kept value(Row(s.v.begin() + from, s.v.begin() + from + dim));
        head.k.push_back(key.codes), head.k_scales.push_back(key.scale);
        head.v.push_back(value.codes), head.v_scales.push_back(value.scale);
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::size_t place = at((h * end + r.position + i) * dim + d);
          ASSERT_EQ(stored.k[place], num::mul(key.codes[at(d)], key.scale)) << where << ", key " << d;
          ASSERT_EQ(stored.v[place], num::mul(value.codes[at(d)], value.scale)) << where << ", value " << d;
        }
      }
    }
  }
  void row(const typename AttentionOnCpu<E>::Step& s, const Range& r, std::int32_t i, std::int32_t h, const std::string& where) {
    const AttentionShape& shape = cpu_.of.shape;
    const std::int64_t dim = shape.head_dim, at_q = (r.first_row + i) * cpu_.cols() + h * dim;
    const Head& all = sequences_[at(r.slot)][at(h / (shape.heads / shape.kv_heads))];
    const std::int64_t seen = r.position + i + 1;
    const Row got(s.y.begin() + at_q, s.y.begin() + at_q + dim);
    Row want;
    if (units_) {
      const std::int64_t end = r.section == Section::prefill ? r.position + r.rows : seen;
      AttentionHead head{dim, seen - 1, end - seen + 1, Row(s.rotated.begin() + at_q, s.rotated.begin() + at_q + dim), {}, {},
                         cpu_.scale, false, all.k_scales, all.v_scales};
      for (std::int64_t j = 0; j < end; ++j) append(head.k, all.k[at(j)]), append(head.v, all.v[at(j)]);
      want = r.section == Section::prefill ? units::prefill_row(head, 0) : units::decode_row(head, 0);
    } else {
      const std::vector<Row> k(all.k.begin(), all.k.begin() + seen), v(all.v.begin(), all.v.begin() + seen);
      const ReferenceScales scales{all.k_scales, all.v_scales};
      want = reference_attention(s.rotated.data() + at_q, k, v, 0, dim, cpu_.scale, &scales);
    }
    expect_bytes(got, want, where + ", slot " + std::to_string(r.slot) + ", row " + std::to_string(i) + ", head " + std::to_string(h));
  }

  AttentionOnCpu<E> cpu_;
  const bool units_;
  std::vector<std::vector<Head>> sequences_;
};

TEST(KvCodes, AttentionIsTheContractWithoutUnits) {
  for (const AttentionRow& of : kAttention) {
    KvCodesWorld<float> f32(of.c, 2, 257, false);
    attention_sequence(f32, 65);
    KvCodesWorld<std::uint16_t> bf16(of.c, 5, 320, false);
    attention_ragged(bf16);
  }
  KvCodesWorld<float> far(kAcrossSplits, 2, 2300, false);
  attention_across_splits(far);
}

TEST(KvCodes, AttentionIsTheContractOnUnits) {
  for (const AttentionRow& of : kAttentionUnits) {
    KvCodesWorld<std::uint16_t> one(of.c, 2, 257, true);
    attention_sequence(one, 65);
    KvCodesWorld<std::uint16_t> many(of.c, 5, 320, true);
    attention_ragged(many);
  }
}

TEST(KvCodes, SplitsOnUnits) {
  KvCodesWorld<std::uint16_t> w({{2, 1, 64}, 16, true}, 1, 600, true);
  w.step({{Section::prefill, 0, 507}}, "prompt");
  w.step({{Section::verify, 0, 9}}, "over the border");
  w.step({{Section::decode, 0, 1}}, "behind it");
}

// Rows of all sorts of values; keys are as they come where there is no norm and no rotation.
TEST(KvCodes, ARowIsQuantizesFp8Token) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<Row> rows = {Row(37, 0.0f), Row(37, -0.0f), Row(37, kNan), noise_row(1, 0, 37), noise_row(2, 0, 37)};
  for (const float x : {0.0f, kNan, kInfinity, -kInfinity, 1e-45f, 1e-40f, 3e38f, 448.0f, 1e-6f}) {
    for (const Row& base : rows) {
      Row row = base;
      row[5] = x;
      AttentionOnCpu<float> w({{1, 1, 37}, 0, false}, 1, 64, false, KvFormat::fp8);
      w.alter = [&](auto& s) { s.k = s.v = row; };
      auto s = w.begin({{Section::decode, 0, 1}});
      w.rotate(s);
      const Kept want(row);
      float* const page = w.arena().head(0, 0) + w.pages.front() * w.arena().page_stride(0);
      EXPECT_EQ(w.arena().key_scales(w.of.shape, page)[0], want.scale);
      EXPECT_EQ(w.arena().value_scales(w.of.shape, page)[0], want.scale);
      for (std::int64_t d = 0; d < 37; ++d) {
        const float key = num::e4m3_to_float(cpu::KvArena::codes(page)[cpu::KvArena::key_at(w.of.shape, 0, d)]);
        const float value = num::e4m3_to_float(cpu::KvArena::codes(page)[cpu::KvArena::value_at(w.of.shape, 0, d)]);
        EXPECT_TRUE(same_bits(key, want.codes[at(d)]) && same_bits(value, want.codes[at(d)])) << x << ", " << d;
      }
    }
  }
}

// A number v of a row lies within |v| / 16 of its code's, or within 2^-10 of the scale where the code is subnormal. So scores
// are off by d at most, weights by a factor of exp(2 d), and what they sum by no more than the largest value.
TEST(KvCodes, LiesAsNearAsTheFormatSays) {
  for (const int dim : {64, 128, 256}) {
    const AttentionRows rows = like_a_model({1, 1, dim}, 511, 1, 41);
    const AttentionHead exact = rows.head(0);
    AttentionHead coded = exact;
    const auto code = [dim](Row& x, Row& scales) {
      std::vector<double> off;
      for (std::size_t j = 0; j < x.size() / at(dim); ++j) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(j * at(dim));
        const Kept kept(Row(begin, begin + dim));
        for (std::int64_t d = 0; d < dim; ++d) {
          const double v = begin[d], got = static_cast<double>(kept.codes[at(d)]) * static_cast<double>(kept.scale);
          off.push_back(std::fabs(v - got));
          EXPECT_LE(off.back(), std::max(std::fabs(v) / 16, static_cast<double>(kept.scale) * 0x1p-10) * (1 + 1e-6));
          begin[d] = kept.codes[at(d)];
        }
        scales.push_back(kept.scale);
      }
      return off;
    };
    const std::vector<double> k_off = code(coded.k, coded.k_scales), v_off = code(coded.v, coded.v_scales);
    double off_score = 0, most = 0, off_value = 0;
    for (std::size_t j = 0; j < k_off.size() / at(dim); ++j) {
      double d = 0;
      for (std::int64_t i = 0; i < dim; ++i) d += std::fabs(static_cast<double>(exact.q[at(i)])) * k_off[j * at(dim) + at(i)];
      off_score = std::max(off_score, d * static_cast<double>(exact.scale));
    }
    for (const float v : exact.v) most = std::max(most, static_cast<double>(std::fabs(v)));
    for (const double v : v_off) off_value = std::max(off_value, v);
    const std::vector<double> want = attention_in_float64(exact);
    const Row got = units::decode_row(coded, 0);
    double worst = 0;
    for (std::size_t d = 0; d < want.size(); ++d) worst = std::max(worst, std::fabs(static_cast<double>(got[d]) - want[d]));
    const double bound = (std::exp(2 * off_score) - 1) * most + off_value;
    std::printf("head_dim %d, 512 keys: %.3g relative L2 from float64 of what was not rounded, %.3g at most (%.3g by the format)\n",
                dim, off_by(got, want), worst, bound);
    EXPECT_LE(worst, bound * (1 + 1e-2));  // rounding of weights to bf16
  }
}

}  // namespace
}  // namespace nibble::test
