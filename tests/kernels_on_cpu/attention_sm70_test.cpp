// attention_sm70_test.cpp: sm70's kernel of attention, thread by thread on the processor, against the CPU's mirror by
// bytes; and that what warps load at once lies in different banks.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "backends/cuda/ops/delta_sm70_maps.h"
#include "tests/cpu/attention_units_world.h"
#include "tests/kernels_on_cpu/attention_sm70_kernels.h"
#include "tests/support/buffers.h"

namespace nibble::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

struct Sequence {
  std::int64_t rows, position = 0;
};

// Floats from an address of whole 16 bytes on, NaN at first.
class Floats16 {
 public:
  explicit Floats16(std::int64_t count) : values_(at(count) + 4, kNan) {}
  float* data() { return values_.data() + (16 - reinterpret_cast<std::uintptr_t>(values_.data()) % 16) % 16 / 4; }

 private:
  std::vector<float> values_;
};

void expect_mirror(const AttentionShape& shape, const std::vector<Sequence>& sequences, unsigned seed, const std::string& where,
                   const std::function<void(AttentionRows&)>& change = {}) {
  const std::int64_t dim = shape.head_dim, cols = shape.heads * dim, page = 64 * dim, q_stride = cols + 4, y_stride = cols + 6;
  std::vector<AttentionRows> all;
  std::vector<cuda::RangeView> ranges;
  std::vector<std::int32_t> pages;
  std::int32_t row = 0, next_page = 1;  // page 0 is nobody's
  for (const Sequence& s : sequences) {
    all.push_back(like_a_model(shape, s.position, s.rows, seed + 10 * all.size(), true));
    if (change) change(all.back());
    cuda::RangeView r{};
    r.section = static_cast<int>(Section::prefill);
    r.first_row = row;
    r.rows = static_cast<std::int32_t>(s.rows);
    r.position = s.position;
    r.first_page = static_cast<std::int32_t>(pages.size());
    ranges.push_back(r);
    for (std::int64_t p = 0; p < (s.position + s.rows + 63) / 64; ++p) pages.push_back(next_page++);
    row += r.rows;
  }
  std::reverse(pages.begin(), pages.end());  // each sequence's lie somewhere
  Floats16 q(row * q_stride), y((row + 2) * y_stride), keys(next_page * shape.kv_heads * page), values(next_page * shape.kv_heads * page);
  for (std::size_t s = 0; s < all.size(); ++s) {
    const AttentionRows& of = all[s];
    for (std::int64_t i = 0; i < of.rows; ++i) {
      std::copy_n(of.q.data() + i * cols, cols, q.data() + (ranges[s].first_row + i) * q_stride);
    }
    for (std::int64_t i = 0; i < (of.position + of.rows) * of.kv_cols(); ++i) {
      const std::int64_t p = i / of.kv_cols(), head = i % of.kv_cols() / dim, d = i % dim;
      const std::int64_t to = ((pages[at(ranges[s].first_page + p / 64)] * shape.kv_heads + head) * 64 + p % 64) * dim + d;
      keys.data()[to] = of.k[at(i)];
      values.data()[to] = of.v[at(i)];
    }
  }
  cuda::StepView step{};
  step.rows = row;
  step.ranges = step.first_range[3] = static_cast<std::int32_t>(ranges.size());
  step.first_row[3] = row;
  step.range = ranges.data();
  step.pages = pages.data();
  const float scale = all.front().scale;
  run_kernel({&step, row + 70, static_cast<std::int32_t>(ranges.size()) + 1, q.data(), y.data(), q_stride, y_stride, scale, shape,
              keys.data(), values.data()},
             seed);
  for (std::size_t s = 0; s < all.size(); ++s) {
    const Row want = run(isas_here().front(), all[s]);
    for (std::int64_t i = 0; i < all[s].rows * cols; ++i) {
      const float got = y.data()[(ranges[s].first_row + i / cols) * y_stride + i % cols];
      ASSERT_TRUE(same_bits(got, want[at(i)])) << where << ", sequence " << s << ", row " << i / cols << ", column " << i % cols << ": got "
                                               << got << ", expected " << want[at(i)];
    }
  }
  for (std::int64_t i = 0; i < (row + 2) * y_stride; ++i) {
    if (i >= row * y_stride || i % y_stride >= cols) {
      ASSERT_TRUE(std::isnan(y.data()[i])) << where << ": beside y";
    }
  }
}

TEST(AttentionSm70OnCpu, RowsAndPositions) {
  for (const int rows : {1, 2, 15, 16, 17, 63, 64, 65, 129}) {
    expect_mirror({2, 1, 64}, {{rows, rows % 2 == 0 ? 37 : 0}}, static_cast<unsigned>(rows), std::to_string(rows) + " rows");
  }
}
TEST(AttentionSm70OnCpu, HeadsOf128And256) {
  expect_mirror({2, 1, 128}, {{70, 30}}, 7, "head_dim 128");
  expect_mirror({2, 1, 256}, {{70, 30}}, 8, "head_dim 256");
  expect_mirror({1, 1, 256}, {{33, 5}}, 9, "head_dim 256, two warps");
}
TEST(AttentionSm70OnCpu, HeadsThatShareKeys) {
  expect_mirror({6, 2, 64}, {{20, 50}}, 10, "three heads of each of two");
  expect_mirror({6, 1, 128}, {{20, 50}}, 11, "six heads");
}
TEST(AttentionSm70OnCpu, RaggedBatches) {
  expect_mirror({2, 2, 64}, {{65, 0}, {1, 63}, {100, 10}, {1, 0}, {64, 64}}, 12, "ragged");
}

TEST(AttentionSm70OnCpu, SpecialValues) {
  const auto with = [](const char* name, const std::function<void(AttentionRows&)>& change) {
    expect_mirror({2, 1, 64}, {{40, 33}}, 24, name, change);
  };
  for (const float x : {kNan, kInfinity, -kInfinity}) {
    const std::string of = std::to_string(x);
    with(("a key of " + of).c_str(), [x](AttentionRows& r) { r.k[at(40 * 64 + 3)] = x; });
    with(("a query of " + of).c_str(), [x](AttentionRows& r) { r.q[at(20 * 128 + 70)] = x; });
    with(("a value of " + of).c_str(), [x](AttentionRows& r) { r.v[at(70 * 64 + 9)] = x; });
  }
  with("zeros of both signs", [](AttentionRows& r) {
    for (Row* all : {&r.q, &r.k, &r.v}) {
      for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = i % 3 == 0 ? 0.0f : -0.0f;
    }
  });
  with("tiles with powers of their own", [](AttentionRows& r) {
    for (std::size_t i = 0; i < r.v.size(); ++i) r.v[i] = std::ldexp(r.v[i], i < 64 * 64 ? 30 : 60);
    for (std::size_t i = 0; i < r.k.size(); ++i) r.k[i] = std::ldexp(r.k[i], i < 64 * 64 ? 17 : 3);
    for (std::size_t i = 0; i < r.q.size(); ++i) r.q[i] = std::ldexp(r.q[i], static_cast<int>(i / 64 % 5) * 8 - 10);
  });
  with("values of all sizes", [](AttentionRows& r) {
    for (std::size_t i = 0; i < r.v.size(); ++i) r.v[i] = std::ldexp(r.v[i], static_cast<int>(i % 64) - 40);
  });
  with("weights from 1 to nothing", [](AttentionRows& r) {
    for (std::size_t i = 0; i < r.q.size(); ++i) r.q[i] = i % 64 == 0 ? 1.0f : 0.0f;
    for (std::size_t j = 0; j < r.k.size() / 64; ++j) r.k[j * 64] = -8.0f * static_cast<float>(j);
  });
}

// Shared memory serves a load of 16 bytes to eight lanes at once.
void expect_different_banks(const std::function<int(int)>& place, const std::string& where) {
  for (int first = 0; first < 32; first += 8) {
    std::set<int> banks, places;
    for (int lane = first; lane < first + 8; ++lane) banks.insert(place(lane) % 8), places.insert(place(lane));
    EXPECT_EQ(banks.size(), places.size()) << where << ", lanes from " << first;
  }
}
template <int Dim>
void expect_places() {
  using namespace cuda::sm70;
  std::set<int> places;
  for (int row = 0; row < kChunk; ++row) {
    for (int eight = 0; eight < Dim / 8; ++eight) places.insert(key_place<Dim>(row, eight));
  }
  EXPECT_EQ(places.size(), static_cast<std::size_t>(kKeyPlaces<Dim>));
  EXPECT_EQ(*places.rbegin(), kKeyPlaces<Dim> - 1);
  for (int eight = 0; eight < Dim / 8; ++eight) {
    expect_different_banks([=](int lane) { return key_place<Dim>(operand_row(lane), eight); }, "queries");
    for (int t = 0; t < kTokenTiles; ++t) {
      expect_different_banks([=](int lane) { return key_place<Dim>(first_token(lane, t) + eighth_of(lane), eight); }, "keys");
    }
  }
  for (int row = 0; row < kChunk; row += 4) {
    for (int n = 0; n < Dim / 32; ++n) {
      expect_different_banks([=](int lane) { return key_place<Dim>(row + lane % 4, first_x(lane, n) / 8 + upper_of(lane)); }, "values");
    }
  }
}
TEST(AttentionSm70OnCpu, TilesLieOnceAndInDifferentBanks) {
  expect_places<64>();
  expect_places<128>();
  expect_places<256>();
}

}  // namespace
}  // namespace nibble::test
