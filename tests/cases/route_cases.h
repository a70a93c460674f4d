// route_cases.h: router logits of every sort, and ExpertRoute and ExpertCombine written straight from their contracts.
// Needs no CUDA.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/numerics/reduce.h"
#include "tests/cases/linear_cases.h"

namespace nibble::test {

struct RouteCase {
  std::int32_t experts, per_token;
  std::int64_t t;
  bool normalised;
};
inline std::string route_text(const RouteCase& r) {
  return "E=" + std::to_string(r.experts) + " k=" + std::to_string(r.per_token) + " T=" + std::to_string(r.t) +
         (r.normalised ? " normalised" : "");
}

// Trees of 32 and of 256 lanes, one expert, as many as there may be, all of them chosen, no tokens.
inline std::vector<RouteCase> route_cases() {
  struct Sizes {
    std::int32_t experts, per_token;
  };
  constexpr Sizes kSizes[] = {{1, 1},   {2, 1},    {2, 2},    {3, 2},    {8, 2},     {31, 31},    {32, 4},   {33, 8},
                              {64, 8},  {60, 4},   {128, 8},  {256, 8},  {257, 9},   {512, 10},   {513, 10}, {512, 512},
                              {600, 1}, {1023, 7}, {1024, 8}, {40, 40},  {1024, 1024}};
  std::vector<RouteCase> all;
  for (const Sizes& s : kSizes) {
    for (const std::int64_t t : {0, 1, 2, 14, 67}) {
      if (s.per_token > 100 && t > 14) continue;
      for (const bool normalised : {false, true}) all.push_back({s.experts, s.per_token, t, normalised});
    }
  }
  return all;
}

// Row r % 14: ordinary, ties among few values, all equal, +inf once or several times, -inf in places or everywhere,
// NaN in places or everywhere, zeros of both signs, huge, subnormal, neighbours in float32, ascending, any bits.
inline std::vector<float> route_logits(const RouteCase& c, std::uint64_t seed) {
  Hash random{seed};
  std::vector<float> z;
  const auto unit = [&] { return static_cast<float>(random() % 65536) * 0x1p-13f - 4.0f; };
  for (std::int64_t t = 0; t < c.t; ++t) {
    for (std::int32_t e = 0; e < c.experts; ++e) {
      const std::uint32_t dice = random() % 8;
      float v = unit();
      switch (t % 14) {
        case 1: v = static_cast<float>(dice % 3); break;
        case 2: v = 1.25f; break;
        case 3: v = e == c.experts / 2 ? INFINITY : v; break;
        case 4: v = dice < 2 ? INFINITY : dice == 2 ? -INFINITY : v; break;
        case 5: v = dice < 4 ? -INFINITY : v; break;
        case 6: v = -INFINITY; break;
        case 7: v = dice == 0 ? std::nanf("") : v; break;
        case 8: v = std::nanf(""); break;
        case 9: v = dice % 2 == 0 ? 0.0f : -0.0f; break;
        case 10: v = random.value(100, 127); break;
        case 11: v = num::bit_cast<float>(random() & 0x807FFFFFu); break;
        case 12: v = num::bit_cast<float>(0x40490FDBu + dice); break;
        case 13: v = dice == 7 ? num::bit_cast<float>(random()) : static_cast<float>(e) * 0.01f; break;
        default: break;
      }
      z.push_back(v);
    }
  }
  return z;
}

struct RouteResult {
  std::vector<float> weights;
  std::vector<std::int32_t> ids, order, place, starts;
};

// The contract, read aloud.
inline RouteResult route_reference(const RouteCase& c, const std::vector<float>& logits) {
  RouteResult out;
  const auto experts = static_cast<std::size_t>(c.experts), k = static_cast<std::size_t>(c.per_token);
  const auto tokens = static_cast<std::size_t>(c.t);
  for (std::size_t t = 0; t < tokens; ++t) {
    std::vector<float> z(logits.begin() + static_cast<std::ptrdiff_t>(t * experts),
                         logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * experts));
    for (float& v : z) {
      if (std::isnan(v)) v = -INFINITY;
    }
    std::vector<std::int32_t> ids(experts);
    for (std::size_t e = 0; e < experts; ++e) ids[e] = static_cast<std::int32_t>(e);
    const auto of = [&](std::int32_t id) { return z[static_cast<std::size_t>(id)]; };
    std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) { return of(a) > of(b); });
    const float first = of(ids[0]);
    const auto p = [&](std::int32_t id) { return of(id) == first ? 1.0f : num::exp(num::sub(of(id), first)); };
    std::vector<float> terms;
    for (std::size_t i = 0; i < (c.normalised ? k : experts); ++i) {
      terms.push_back(p(c.normalised ? ids[i] : static_cast<std::int32_t>(i)));
    }
    const float total = num::tree_sum(terms.data(), static_cast<std::int64_t>(terms.size()));
    for (std::size_t s = 0; s < k; ++s) {
      out.ids.push_back(ids[s]);
      out.weights.push_back(num::div(p(ids[s]), total));
    }
  }
  for (std::size_t j = 0; j < tokens * k; ++j) out.order.push_back(static_cast<std::int32_t>(j));
  const auto expert = [&](std::int32_t j) { return out.ids[static_cast<std::size_t>(j)]; };
  std::stable_sort(out.order.begin(), out.order.end(), [&](auto a, auto b) { return expert(a) < expert(b); });
  out.place.resize(tokens * k);
  for (std::size_t i = 0; i < out.order.size(); ++i) {
    out.place[static_cast<std::size_t>(out.order[i])] = static_cast<std::int32_t>(i);
  }
  for (std::int32_t e = 0; e <= c.experts; ++e) {
    out.starts.push_back(static_cast<std::int32_t>(
        std::count_if(out.order.begin(), out.order.end(), [&](auto j) { return expert(j) < e; })));
  }
  return out;
}

struct CombineCase {
  std::int64_t t, cols;
  std::int32_t per_token;
  bool shared;
};
inline std::vector<CombineCase> combine_cases() {
  std::vector<CombineCase> all;
  for (const std::int64_t cols : {1, 63, 64, 77, 513, 5120}) {
    for (const std::int64_t t : {0, 1, 9}) {
      for (const std::int32_t k : {1, 3, 10}) {
        for (const bool shared : {false, true}) all.push_back({t, cols, k, shared});
      }
    }
  }
  return all;
}

// Inputs of a case; place is a permutation.
struct CombineInput {
  std::vector<float> x, weights, shared, gate;
  std::vector<std::int32_t> place;

  CombineInput(const CombineCase& c, std::uint64_t seed) {
    Hash random{seed};
    const auto values = [&](std::int64_t count, std::vector<float>& to) {
      for (std::int64_t i = 0; i < count; ++i) to.push_back(random.value(random() % 50 == 0 ? 60 : -8, random() % 50 == 0 ? 127 : 3));
    };
    const std::int64_t places = c.t * c.per_token;
    values(places * c.cols, x);
    values(places, weights);
    if (c.shared) values(c.t * c.cols, shared);
    if (c.shared) values(c.t, gate);
    for (std::int64_t i = 0; i < places; ++i) place.push_back(static_cast<std::int32_t>(i));
    for (std::size_t i = place.size(); i > 1; --i) std::swap(place[i - 1], place[random() % i]);
  }
};

inline std::vector<float> combine_reference(const CombineCase& c, const CombineInput& in) {
  std::vector<float> y;
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t t = 0; t < c.t; ++t) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      float sum = 0;
      for (std::int64_t s = 0; s < c.per_token; ++s) {
        const std::int64_t j = t * c.per_token + s;
        sum = std::fma(in.weights[at(j)], in.x[at(in.place[at(j)] * c.cols + col)], sum);
      }
      if (c.shared) sum = std::fma(num::sigmoid(in.gate[at(t)]), in.shared[at(t * c.cols + col)], sum);
      y.push_back(sum);
    }
  }
  return y;
}

}  // namespace nibble::test
