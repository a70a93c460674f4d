#include "tests/golden/fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

namespace nibble::test {

std::string data(const std::string& path) { return std::string(NIBBLE_TEST_DATA) + "/" + path; }

Json read_json(const std::string& path) {
  std::ifstream in(data(path), std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  return Json::parse(text, path);
}

Trace::Trace(Model& model, std::vector<std::string> wanted) : model_(model) {
  model.impl().engine->observe([this, names = std::set<std::string>(wanted.begin(), wanted.end())](
                                   const Op& op, std::int64_t, std::int64_t cols,
                                   std::span<const float> values) {
    if (!names.empty() && !names.contains(op.name)) return;
    Rows& rows = ops[op.name];
    rows.cols = cols;
    rows.values.insert(rows.values.end(), values.begin(), values.end());
  });
}

Trace::~Trace() { model_.impl().engine->observe({}); }

void expect_greedy(Model& model, std::span<const std::int32_t> prompt,
                   std::span<const std::int32_t> oracle, std::span<const double> margins,
                   double least_margin, const std::string& what) {
  std::vector<std::int32_t> history(prompt.begin(), prompt.end());
  std::size_t done = 0;
  while (done < oracle.size()) {
    Session session = model.new_session();
    Sampling how;
    how.max_new_tokens = static_cast<int>(oracle.size() - done);
    how.ignore_model_stop_tokens = true;
    bool differs = false;
    for (const Piece& piece : session.generate(history, how)) {
      if (piece.token < 0) continue;
      const std::int32_t expected = oracle[done];
      if (piece.token != expected) {
        const double margin = done < margins.size() ? margins[done] : 1e9;
        ASSERT_LT(margin, least_margin)
            << what << ": step " << done << ": token " << piece.token << ", the oracle has " << expected;
        std::printf("%s: step %zu: token %d, the oracle has %d at a margin of %g: going on from its token\n",
                    what.c_str(), done, piece.token, expected, margin);
        differs = true;
      }
      ++done;
      if (differs) break;
    }
    history.assign(prompt.begin(), prompt.end());
    history.insert(history.end(), oracle.begin(), oracle.begin() + static_cast<std::ptrdiff_t>(done));
    ASSERT_TRUE(differs || done == oracle.size()) << what << ": the answer ended after " << done << " tokens";
  }
}

double relative_l2(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;  // nothing was compared
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    diff += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  const double error = std::sqrt(diff / norm);
  return std::isnan(error) ? INFINITY : error;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double worst = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - double{b[i]}));
    if (std::isnan(a[i]) || std::isnan(b[i])) return INFINITY;
  }
  return worst;
}

}  // namespace nibble::test
