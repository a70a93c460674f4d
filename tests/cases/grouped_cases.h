// grouped_cases.h: the table of GroupedLinear's cases and logits that route as each asks for. Needs no CUDA.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cases/linear_cases.h"

namespace nibble::test {

// Which experts tokens get.
enum class Spread {
  any,   // random ones: experts without tokens wherever there are few tokens
  one,   // every token the same k, in the middle: all others have none
  few,   // k + 1 experts among which tokens choose
  ends,  // the first and the last experts only
  even,  // as equal as can be
};

struct GroupedCase {
  std::int32_t experts, per_token;
  std::int64_t t;
  Spread spread;
  bool by_place;  // x has a row for each sorted place (down), else for each token (gate, up)
  Case linear;    // t: rows of x
  std::int64_t places() const { return t * per_token; }
};

inline std::string grouped_text(const Combination& c, const GroupedCase& g, std::size_t index) {
  constexpr const char* kSpreads[] = {"any", "one", "few", "ends", "even"};
  return case_text(c, g.linear) + " E=" + std::to_string(g.experts) + " k=" + std::to_string(g.per_token) +
         " tokens=" + std::to_string(g.t) + " " + kSpreads[static_cast<int>(g.spread)] +
         (g.by_place ? " by place #" : " by token #") + std::to_string(index);
}

// 48 for each combination. New ones go to the end: seeds follow from a case's index.
inline std::vector<GroupedCase> grouped_cases_of(const Combination& c) {
  struct Routes {
    std::int32_t experts, per_token;
    std::int64_t t;
    Spread spread;
  };
  constexpr Routes kRoutes[] = {
      {1, 1, 0, Spread::any},    {1, 1, 1, Spread::any},    {1, 1, 5, Spread::any},     {4, 2, 0, Spread::any},
      {4, 2, 1, Spread::any},    {4, 2, 7, Spread::any},    {4, 4, 6, Spread::any},     {8, 1, 9, Spread::one},
      {8, 3, 33, Spread::any},   {8, 2, 20, Spread::few},   {8, 2, 17, Spread::ends},   {16, 8, 1, Spread::any},
      {16, 4, 11, Spread::even}, {64, 8, 3, Spread::any},   {128, 8, 1, Spread::any},   {256, 8, 2, Spread::few},
      {512, 10, 1, Spread::any}, {512, 10, 4, Spread::any}, {3, 1, 70, Spread::one},    {2, 1, 130, Spread::any},
      {5, 5, 13, Spread::any},   {60, 4, 25, Spread::few},  {33, 1, 40, Spread::ends},  {7, 2, 65, Spread::even}};
  struct Shape {
    std::int64_t n, k, odd_k;
  };
  // Tails of units and tiles, several segments, blocks of 128; the last two for many experts.
  constexpr Shape kShapes[] = {{33, 48, 51}, {77, 16, 15}, {130, 144, 131}, {5, 2208, 2205}, {64, 272, 259}};
  constexpr Shape kSmall[] = {{17, 96, 77}, {1, 32, 9}};
  const bool blocks = c.format == WeightFormat::nvfp4 || c.kind == Kind::nvfp4_static;
  std::vector<GroupedCase> all;
  std::size_t turn = static_cast<std::size_t>(c.kind) * 2 + static_cast<std::size_t>(c.layout);
  for (const bool by_place : {false, true}) {
    for (const Routes& r : kRoutes) {
      const std::size_t i = all.size();
      const Shape& s = r.experts >= 60 ? kSmall[turn % 2] : kShapes[turn % 5];
      ++turn;
      const std::int64_t rows = by_place ? r.t * r.per_token : r.t;
      constexpr std::int64_t kGaps[] = {0, 8, 3};
      all.push_back({r.experts, r.per_token, r.t, r.spread, by_place,
                     {s.n, blocks || i % 3 != 0 ? s.k : s.odd_k, rows, i % 5 == 4, i % 2 == 1, kGaps[i % 3]}});
    }
  }
  return all;
}

// What kernels with tiles of 8 to 128 rows are tried on, with unquantised x: 40 for each combination. New ones go to the
// end.
inline std::vector<GroupedCase> grouped_tile_cases_of(const Combination& c) {
  struct Routes {
    std::int32_t experts, per_token;
    std::int64_t t;
    Spread spread;
  };
  constexpr Routes kRoutes[] = {
      {1, 1, 1, Spread::any},    {1, 1, 300, Spread::any},  {2, 1, 2048, Spread::one},  {8, 2, 2048, Spread::any},
      {8, 2, 512, Spread::few},  {4, 4, 129, Spread::any},  {16, 2, 257, Spread::ends}, {64, 8, 64, Spread::any},
      {64, 6, 200, Spread::few}, {512, 10, 1, Spread::any}, {512, 10, 8, Spread::any},  {512, 10, 64, Spread::any},
      {512, 8, 200, Spread::any}, {128, 8, 17, Spread::even}, {3, 1, 65, Spread::one},  {33, 1, 40, Spread::ends},
      {7, 2, 333, Spread::even}, {256, 8, 5, Spread::any},  {1024, 4, 9, Spread::any},  {60, 4, 0, Spread::any}};
  struct Shape {
    std::int64_t n, k, odd_k;
  };
  // Tails of tiles of 128 and 64 rows and of 64 columns, one segment and more, with odd counts of k tiles.
  constexpr Shape kShapes[] = {{464, 1856, 1851}, {130, 2880, 2877}, {1856, 464, 457}, {200, 2064, 2051},
                               {77, 96, 90},      {256, 1024, 1024}, {129, 64, 64}};
  constexpr Shape kSmall[] = {{144, 208, 203}, {33, 96, 77}, {65, 48, 51}};
  std::vector<GroupedCase> all;
  std::size_t turn = static_cast<std::size_t>(c.format) + static_cast<std::size_t>(c.layout);
  for (const bool by_place : {false, true}) {
    for (const Routes& r : kRoutes) {
      const std::size_t i = all.size();
      const Shape& s = r.experts >= 60 ? kSmall[turn % 3] : kShapes[turn % 7];
      ++turn;
      const std::int64_t rows = by_place ? r.t * r.per_token : r.t;
      const std::int64_t k = c.format == WeightFormat::nvfp4 || i % 3 != 0 ? s.k : s.odd_k;
      // Rows of x start at multiples of 16 bytes.
      const std::int64_t gap = (8 - k % 8) % 8 + 8 * static_cast<std::int64_t>(i % 2);
      all.push_back({r.experts, r.per_token, r.t, r.spread, by_place, {s.n, k, rows, i % 7 == 4, i % 4 < 2, gap}});
    }
  }
  return all;
}

// [t, experts]: the wanted experts stand far above the others, in an order that differs from token to token.
inline std::vector<float> grouped_logits(const GroupedCase& g, std::uint64_t seed) {
  Hash random{seed};
  std::vector<float> z;
  for (std::int64_t t = 0; t < g.t; ++t) {
    for (std::int32_t e = 0; e < g.experts; ++e) {
      const std::int32_t k = g.per_token, middle = (g.experts - k) / 2;
      bool wanted = false;
      switch (g.spread) {
        case Spread::any:
          break;
        case Spread::one:
          wanted = e >= middle && e < middle + k;
          break;
        case Spread::few:
          wanted = e % 3 == 1 && e / 3 <= k;
          break;
        case Spread::ends:
          wanted = e == 0 || e == g.experts - 1;
          break;
        case Spread::even:
          wanted = (e + g.experts - t * k % g.experts) % g.experts < k;
          break;
      }
      z.push_back(static_cast<float>(random() % 1000) * 0.01f + (wanted ? 100.0f : 0.0f));
    }
  }
  return z;
}

// One weight for each expert, every one different, global scales included.
inline std::vector<std::unique_ptr<OwnedWeight>> grouped_weights(const Combination& c, const GroupedCase& g,
                                                                 std::size_t index) {
  std::vector<std::unique_ptr<OwnedWeight>> all;
  for (std::int32_t e = 0; e < g.experts; ++e) {
    all.push_back(std::make_unique<OwnedWeight>(c, g.linear, kWeightSeed + 1024 * index + static_cast<std::size_t>(e)));
  }
  return all;
}

}  // namespace nibble::test
