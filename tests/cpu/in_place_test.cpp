// Weights read where they lie (Layout::rows) against their packed images, by bytes: formats x shapes x alignments x
// instruction sets x threads, in profile f32 and in the mirrors. The bytes end where memory ends: what reads behind a
// weight dies.
#include <sys/mman.h>
#include <unistd.h>

#include "backends/cpu/ops/rowwise.h"
#include "nibble/error.h"
#include "tests/cpu/linear_fused_reference.h"
#include "tests/support/complaint.h"

namespace nibble {
namespace {

using namespace test;
using cpu::Layout;
using cpu::WeightOperand;

// A copy of `bytes`, `gap` bytes before a page that cannot be read; another one lies before it.
class Fenced {
 public:
  explicit Fenced(Bytes bytes, std::size_t gap) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t body = (bytes.size() + gap + page - 1) / page * page;
    size_ = body + 2 * page;
    base_ = static_cast<std::byte*>(::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    std::byte* const to = base_ + page + body - gap - bytes.size();
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    bytes_ = {to, bytes.size()};
    ::mprotect(base_, page, PROT_NONE);
    ::mprotect(base_ + page + body, page, PROT_NONE);
  }
  ~Fenced() { ::munmap(base_, size_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  Bytes bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  Bytes bytes_;
};

// Both layouts of one weight.
class Pair {
 public:
  Pair(const Weight& w, Parallel& parallel, Isa isa, std::size_t gap, WeightOperand operand = WeightOperand::stored)
      : codes_(w.codes, gap),
        scales_(w.block_scales, gap),
        image_(cpu::packed_bytes(w, operand)),
        beside_(cpu::packed_bytes(w, operand, Layout::rows)),
        packed(cpu::pack(w, image_.data, parallel, cpu::nibble_order(isa), operand)) {
    Weight there = w;
    there.codes = codes_.bytes();
    there.block_scales = scales_.bytes();
    in_place = cpu::pack(there, beside_.data, parallel, cpu::nibble_order(isa), operand, Layout::rows);
  }

 private:
  Fenced codes_, scales_;
  Aligned image_, beside_;

 public:
  cpu::PackedWeight packed, in_place;
};

struct Format {
  WeightFormat format;
  ScaleLayout layout;
};
constexpr Format kFormats[] = {
    {WeightFormat::f32, ScaleLayout::none},     {WeightFormat::f16, ScaleLayout::none},
    {WeightFormat::bf16, ScaleLayout::none},    {WeightFormat::fp8_e4m3, ScaleLayout::row},
    {WeightFormat::fp8_e4m3, ScaleLayout::block128}, {WeightFormat::nvfp4, ScaleLayout::tensor},
    {WeightFormat::nvfp4, ScaleLayout::row},
};
struct Shape {
  std::int64_t n, k;
};
// N: less than a panel, whole ones, a last one of any height, across 128; K: less than a segment, whole ones, tails of
// chunks, groups, segments and pairs of segments.
constexpr Shape kShapes[] = {{1, 16}, {16, 128}, {31, 256}, {33, 272}, {130, 400}, {48, 640}, {7, 1}, {17, 131}, {40, 259}};
constexpr std::size_t kGaps[] = {0, 1, 3};  // with an odd one the first byte of a row of whole words lies odd

bool fits(const Format& f, const Shape& s) { return f.format != WeightFormat::nvfp4 || s.k % 16 == 0; }

std::string format_name(const testing::TestParamInfo<Format>& tested) {
  return std::string(weight_format_name(tested.param.format)) + "_" + scale_layout_name(tested.param.layout);
}

class InPlace : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(All, InPlace, testing::ValuesIn(kFormats), format_name);

TEST_P(InPlace, LinearGivesTheBitsOfTheImage) {
  Parallel one(1), two(2);
  int compared = 0;
  for (const Shape& s : kShapes) {
    if (!fits(GetParam(), s)) continue;
    const RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 3);
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<std::size_t>(31 * s.k));
    for (float& v : x) v = normal(random);
    for (const Isa isa : cpu::available_isas()) {
      for (const std::size_t gap : kGaps) {
        const Pair pair(w.weight, one, isa, gap);
        const auto run = [&](Parallel& parallel, const cpu::PackedWeight& weight, std::int64_t rows) {
          Guarded y(rows, s.n);
          cpu::LinearArgs a;
          a.weight = &weight;
          a.rows = rows;
          a.x = x.data();
          a.x_stride = s.k;
          a.y = y.data();
          a.y_stride = y.stride();
          cpu::linear(isa, parallel, a);
          EXPECT_EQ(y.damage(), "");
          return y;
        };
        for (const std::int64_t rows : {1, 2, 3, 4, 5, 31}) {
          const Guarded want = run(one, pair.packed, rows);
          for (Parallel* const parallel : {&one, &two}) {
            const Guarded got = run(*parallel, pair.in_place, rows);
            for (std::int64_t t = 0; t < rows; ++t) {
              for (std::int64_t n = 0; n < s.n; ++n) {
                ASSERT_TRUE(same_bits(got.at(t, n), want.at(t, n)))
                    << cpu::isa_name(isa) << " N " << s.n << " K " << s.k << " gap " << gap << " T " << rows << " y["
                    << t << ", " << n << "] " << got.at(t, n) << " != " << want.at(t, n);
              }
            }
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GE(compared, 200);
}

TEST_P(InPlace, SixteenBitProfilesGiveTheBitsOfTheImage) {
  Parallel one(1), two(2);
  for (const Profile profile : {Profile::bf16, Profile::sm70, Profile::sm90, Profile::sm120}) {
    const WeightOperand operand = cpu::weight_operand(profile);
    for (const Shape& s : {Shape{33, 272}, Shape{17, 131}, Shape{5, 2208}}) {
      if (!fits(GetParam(), s)) continue;
      const RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 3);
      if (!cpu::usable_in_place(w.weight, operand)) continue;
      for (const Kind kind : {Kind::none, Kind::nvfp4_static, Kind::fp8_token}) {
        if (kind == Kind::nvfp4_static && s.k % 16 != 0) continue;
        Input in(profile, kind, s.k, 5);
        for (const Kernels& kernels : cpu::available_kernels(profile == Profile::bf16)) {
          const Pair pair(w.weight, one, kernels.isa, 1, operand);
          Guarded all(kMost, s.n);
          run(kernels, one, pair.packed, in, 0, kMost, all);
          std::vector<float> want;
          for (std::int64_t t = 0; t < kMost; ++t) {
            for (std::int64_t n = 0; n < s.n; ++n) want.push_back(all.at(t, n));
          }
          expect_every_cut(kernels, {&one, &two}, pair.in_place, in, want, " K " + std::to_string(s.k));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(InPlace, EmbedGivesTheBitsOfTheImage) {
  Parallel two(2);
  const std::int32_t tokens[] = {0, 129, 16, 15, 129, 77};
  for (const Shape& s : {Shape{130, 400}, Shape{130, 259}}) {
    if (!fits(GetParam(), s)) continue;
    const RandomWeight w(GetParam().format, GetParam().layout, s.n, s.k, 6);
    for (const Isa isa : cpu::available_isas()) {
      const Pair pair(w.weight, two, isa, 1);
      Guarded want(6, s.k), got(6, s.k);
      cpu::embed(two, pair.packed, tokens, 6, {want.data(), want.stride()});
      cpu::embed(two, pair.in_place, tokens, 6, {got.data(), got.stride()});
      EXPECT_EQ(got.damage(), "");
      for (std::int64_t t = 0; t < 6; ++t) {
        for (std::int64_t k = 0; k < s.k; ++k) ASSERT_TRUE(same_bits(got.at(t, k), want.at(t, k))) << t << " " << k;
      }
    }
  }
}

TEST_P(InPlace, TheArenaHoldsScalesOnly) {
  const RandomWeight w(GetParam().format, GetParam().layout, 130, 400, 6);
  const std::uint64_t scales = (144 * 4 + 63) / 64 * 64, blocks = GetParam().layout == ScaleLayout::block128 ? 64 : 0;
  EXPECT_EQ(cpu::packed_bytes(w.weight, WeightOperand::stored, Layout::rows), scales + blocks);
}

TEST(InPlaceWeights, AreThoseThatAProfileReadsAsTheyLie) {
  const auto usable = [](WeightFormat format, WeightOperand operand) {
    const RandomWeight w(format, format == WeightFormat::nvfp4 ? ScaleLayout::tensor : ScaleLayout::none, 16, 16, 1);
    return cpu::usable_in_place(w.weight, operand);
  };
  using F = WeightFormat;
  for (const F f : {F::f32, F::f16, F::bf16, F::fp8_e4m3, F::nvfp4}) {
    const bool quantised = f == F::fp8_e4m3 || f == F::nvfp4;
    EXPECT_TRUE(usable(f, WeightOperand::stored)) << weight_format_name(f);
    EXPECT_EQ(usable(f, WeightOperand::bf16), quantised || f == F::bf16) << weight_format_name(f);
    EXPECT_EQ(usable(f, WeightOperand::f16), quantised) << weight_format_name(f);
  }
  RandomWeight made(F::bf16, ScaleLayout::none, 16, 16, 1);
  made.weight.materialize = [](Weight&) {};
  EXPECT_FALSE(cpu::usable_in_place(made.weight));
  Parallel one(1);
  const Aligned arena(4096);
  EXPECT_NE(complaint([&] {
              cpu::pack(made.weight, arena.data, one, cpu::NibbleOrder::bytes, WeightOperand::stored, Layout::rows);
            }).find("in place"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble
