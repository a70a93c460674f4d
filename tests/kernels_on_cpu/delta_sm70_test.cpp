// delta_sm70_test.cpp: sm70's kernels of the delta rule, thread by thread on the processor, against the CPU's mirror by
// bytes; and that what warps load at once lies in different banks.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "backends/cuda/ops/delta_sm70_maps.h"
#include "tests/cpu/delta_units_world.h"
#include "tests/kernels_on_cpu/delta_sm70_kernels.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
using Change = std::function<void(DeltaHead&)>;

struct Sequence {
  int rows;
  std::int64_t position = 0;
  int keep = 0;
};

// Floats from an address of whole 16 bytes on, NaN at first.
class Floats16 {
 public:
  explicit Floats16(std::int64_t count) : values_(at(count) + 4, kNan) {}
  float* data() { return values_.data() + (16 - reinterpret_cast<std::uintptr_t>(values_.data()) % 16) % 16 / 4; }

 private:
  std::vector<float> values_;
};

// A head of a sequence and its records; keys and queries are those of the group's first.
struct Head {
  DeltaHead of;
  Records records;
};

void expect_mirror(const DeltaShape& d, const std::vector<Sequence>& sequences, unsigned seed, const std::string& where,
                   const Change& change = {}) {
  const int group = d.value_heads / d.key_heads, records = 3, slots = static_cast<int>(sequences.size());
  std::int64_t rows = 0;
  for (const Sequence& s : sequences) rows += s.rows;
  const std::int64_t q_stride = d.channels() + 8, y_stride = d.value_channels() + 4, cells = d.key_dim * d.value_dim;
  Floats16 qkv(rows * q_stride), g(rows * d.value_heads), beta(rows * d.value_heads), y((rows + 2) * y_stride),
      s(slots * d.value_heads * cells), key(slots * 2 * records * d.key_channels()),
      u(slots * 2 * records * d.value_channels()), decay(slots * 2 * records * d.value_heads);
  std::vector<std::vector<Head>> heads(at(slots));
  std::vector<cuda::RangeView> ranges;
  std::int32_t row = 0;
  for (int r = 0; r < slots; ++r) {
    cuda::RangeView range{};
    range.section = static_cast<int>(Section::prefill);
    range.slot = slots - 1 - r;
    range.first_row = row;
    range.rows = sequences[at(r)].rows;
    range.position = sequences[at(r)].position;
    range.keep = sequences[at(r)].keep;
    range.half = r % 2;
    ranges.push_back(range);
    std::vector<Head>& own = heads[at(r)];
    for (int h = 0; h < d.value_heads; ++h) {
      Head head{like_a_model(d.key_dim, d.value_dim, range.rows, 0.1f, seed + 100 * static_cast<unsigned>(r) + static_cast<unsigned>(h),
                             PrefillUnits::sm70),
                {}};
      DeltaHead& x = head.of;
      x.position = range.position;
      x.s = Normal(5 + static_cast<unsigned>(h)).row(cells, 0.3f);
      for (float& v : x.s) v *= 1.001f;
      if (change) change(x);
      head.records = some_records(x, range.keep);
      const int key_head = h / group;
      if (h % group != 0) x.q = own[at(key_head * group)].of.q, x.k = own[at(key_head * group)].of.k;
      for (std::int64_t i = 0; i < x.rows; ++i) {
        float* const to = qkv.data() + (row + i) * q_stride;
        std::copy_n(x.q.data() + i * d.key_dim, d.key_dim, to + key_head * d.key_dim);
        std::copy_n(x.k.data() + i * d.key_dim, d.key_dim, to + d.key_channels() + key_head * d.key_dim);
        std::copy_n(x.v.data() + i * d.value_dim, d.value_dim, to + 2 * d.key_channels() + h * d.value_dim);
        g.data()[(row + i) * d.value_heads + h] = x.g[at(i)];
        beta.data()[(row + i) * d.value_heads + h] = x.beta[at(i)];
      }
      std::copy(x.s.begin(), x.s.end(), s.data() + (range.slot * d.value_heads + h) * cells);
      for (int n = 0; n < range.keep; ++n) {
        const std::int64_t place = (range.slot * 2 + range.half) * records + n;
        std::copy_n(head.records.key.data() + n * d.key_dim, d.key_dim, key.data() + place * d.key_channels() + key_head * d.key_dim);
        std::copy_n(head.records.u.data() + n * d.value_dim, d.value_dim, u.data() + place * d.value_channels() + h * d.value_dim);
        decay.data()[place * d.value_heads + h] = head.records.decay[at(n)];
      }
      own.push_back(std::move(head));
    }
    row += range.rows;
  }

  cuda::StepView step{};
  step.rows = row;
  step.ranges = step.first_range[3] = slots;
  step.first_row[3] = row;
  step.range = ranges.data();
  DeltaSm70Run run_of{&step,    row + 70, slots + 1, qkv.data(),    g.data(), beta.data(),
                      y.data(), q_stride, d.value_heads, y_stride, {},       nullptr};
  run_of.state.shape = d;
  run_of.state.records = records;
  run_of.state.s = s.data();
  run_of.state.key = key.data();
  run_of.state.u = u.data();
  run_of.state.decay = decay.data();
  const std::size_t bytes = record_bytes(run_of);
  Floats16 left(static_cast<std::int64_t>(bytes / 4) + 4);
  run_of.records = reinterpret_cast<std::byte*>(left.data());
  run_kernels(run_of, seed);

  for (int e = 0; e < 4; ++e) ASSERT_TRUE(std::isnan(left.data()[bytes / 4 + at(e)])) << where << ": behind the records";
  for (int r = 0; r < slots; ++r) {
    const cuda::RangeView& range = ranges[at(r)];
    for (int h = 0; h < d.value_heads; ++h) {
      DeltaHead x = heads[at(r)][at(h)].of;
      const Row want = run(isas_here().front(), x, heads[at(r)][at(h)].records);
      const std::string head = where + ", sequence " + std::to_string(r) + ", head " + std::to_string(h);
      for (std::int64_t i = 0; i < x.rows; ++i) {
        for (std::int64_t v = 0; v < d.value_dim; ++v) {
          const float got = y.data()[(range.first_row + i) * y_stride + h * d.value_dim + v];
          ASSERT_TRUE(same_bits(got, want[at(i * d.value_dim + v)]))
              << head << ", row " << i << ", column " << v << ": got " << got << ", expected " << want[at(i * d.value_dim + v)];
        }
      }
      for (std::int64_t i = 0; i < cells; ++i) {
        const float got = s.data()[(range.slot * d.value_heads + h) * cells + i];
        ASSERT_TRUE(same_bits(got, x.s[at(i)])) << head << ", S at " << i << ": got " << got << ", expected " << x.s[at(i)];
      }
    }
  }
  for (std::int64_t i = 0; i < (rows + 2) * y_stride; ++i) {
    if (i >= rows * y_stride || i % y_stride >= d.value_channels()) {
      ASSERT_TRUE(std::isnan(y.data()[i])) << where << ": beside y";
    }
  }
}

TEST(DeltaSm70OnCpu, RowsAndPositions) {
  for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    expect_mirror({1, 1, 32, 40, 4}, {{rows, rows % 2 == 0 ? 37 : 0, rows % 4}}, static_cast<unsigned>(rows), std::to_string(rows) + " rows");
  }
}
TEST(DeltaSm70OnCpu, KeysOf128) {
  for (const int rows : {1, 70}) expect_mirror({1, 1, 128, 136, 4}, {{rows, 30, 2}}, 7, std::to_string(rows) + " rows");
}
TEST(DeltaSm70OnCpu, HeadsOfOneKeyHead) { expect_mirror({2, 10, 32, 24, 4}, {{70, 3, 1}}, 8, "five heads of each key head"); }
TEST(DeltaSm70OnCpu, RaggedBatches) {
  expect_mirror({1, 2, 32, 72, 4}, {{65, 0, 0}, {1, 63, 3}, {130, 10, 1}, {64, 64, 0}}, 9, "ragged");
}

TEST(DeltaSm70OnCpu, SpecialValues) {
  const auto with = [](const char* name, const Change& change) { expect_mirror({1, 1, 32, 40, 4}, {{100}}, 24, name, change); };
  with("a key of NaN", [](DeltaHead& h) { h.k[at(70 * 32 + 3)] = kNan; });
  with("a key of infinity", [](DeltaHead& h) { h.k[at(20 * 32 + 3)] = kInfinity; });
  with("a query of NaN", [](DeltaHead& h) { h.q[at(70 * 32)] = kNan; });
  with("a value of NaN", [](DeltaHead& h) { h.v[at(90 * 40 + 39)] = kNan; });
  with("a value of infinity", [](DeltaHead& h) { h.v[at(9 * 40 + 17)] = kInfinity; });
  with("a gate of NaN", [](DeltaHead& h) { h.g[70] = kNan; });
  with("the last gate of -infinity", [](DeltaHead& h) { h.g[99] = -kInfinity; });
  with("S of infinity and NaN", [](DeltaHead& h) { h.s[5] = kInfinity, h.s[97] = kNan; });
  with("zeros of both signs", [](DeltaHead& h) {
    for (Row* all : {&h.k, &h.q, &h.v, &h.s}) {
      for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = i % 2 == 0 ? 0.0f : -0.0f;
    }
  });
  with("columns from 2^-140 to 2^94", [](DeltaHead& h) {
    for (Row* all : {&h.v, &h.s}) {
      for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = std::ldexp((*all)[i], static_cast<int>(i % 40) * 6 - 140);
    }
  });
}

// Shared memory serves a load of 16 bytes to eight lanes at once.
void expect_different_banks(const std::function<int(int)>& place, const std::string& where) {
  for (int first = 0; first < 32; first += 8) {
    std::set<int> banks;
    for (int lane = first; lane < first + 8; ++lane) banks.insert(place(lane) % 8);
    EXPECT_EQ(banks.size(), 8u) << where << ", lanes from " << first;
  }
}
template <int KeyDim>
void expect_keys() {
  using namespace cuda::sm70;
  std::set<int> places;
  for (int row = 0; row < kChunk; ++row) {
    for (int eight = 0; eight < KeyDim / 8; ++eight) places.insert(key_place<KeyDim>(row, eight));
  }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(kKeyPlaces<KeyDim>));
  EXPECT_EQ(*places.rbegin(), kKeyPlaces<KeyDim> - 1);
  for (int m = 0; m < kTokenTiles; ++m) {
    for (int eight = 0; eight < KeyDim / 8; ++eight) {
      expect_different_banks([=](int lane) { return key_place<KeyDim>(first_token(lane, m) + eighth_of(lane), eight); }, "rows as columns");
    }
  }
  for (int row = 0; row < kChunk; row += 4) {
    for (int n = 0; n < KeyDim / 32; ++n) {
      expect_different_banks([=](int lane) { return key_place<KeyDim>(row + lane % 4, first_x(lane, n) / 8 + upper_of(lane)); }, "rows as k");
    }
  }
}
TEST(DeltaSm70OnCpu, KeysLieOnceAndInDifferentBanks) {
  expect_keys<32>();
  expect_keys<128>();
}
TEST(DeltaSm70OnCpu, SquaresLieOnceAndInDifferentBanks) {
  using namespace cuda::sm70;
  std::set<int> places;
  for (int row = 0; row < kChunk; ++row) {
    for (int eight = 0; eight < (row < kChunk / 2 ? 4 : 8); ++eight) places.insert(square_place(row, eight));
  }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(kSquarePlaces));
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), kSquarePlaces - 1);
  for (int m = 0; m < kTokenTiles; ++m) {
    for (int eight = 0; eight <= 2 * m + 1; ++eight) {
      EXPECT_FALSE(above_diagonal(m, eight));
      expect_different_banks([=](int lane) { return square_place(first_token(lane, m) + eighth_of(lane), eight); }, "squares");
    }
  }
}

}  // namespace
}  // namespace nibble::test
