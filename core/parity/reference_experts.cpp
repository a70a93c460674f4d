// The ops of a mixture of experts in float64. Which expert serves is exact by contract: it is chosen from the logits
// that the device has shown.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/parity/reference.h"
#include "core/parity/weight_rows.h"

namespace nibble {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

void Reference::eval(const ExpertRoute& a, Result& out) {
  const View logits = view(a.logits), experts = view(a.experts), order = view(a.order), place = view(a.place),
             starts = view(a.starts);
  const std::int64_t k = a.experts_per_token, count = logits.cols;
  std::vector<std::int64_t> ids(at(count));
  std::vector<double> z(at(count)), p(at(count));
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    for (std::int64_t e = 0; e < count; ++e) {
      const double v = logits.row(t)[e];
      z[at(e)] = std::isnan(v) ? -INFINITY : v;
    }
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](std::int64_t x, std::int64_t y) { return z[at(x)] > z[at(y)]; });
    double total = 0;
    for (std::int64_t s = 0; s < count; ++s) {
      const double v = z[at(ids[at(s)])], first = z[at(ids[0])];
      p[at(s)] = v == first ? 1 : std::exp(v - first);
      if (!a.normalised || s < k) total += p[at(s)];
    }
    for (std::int64_t s = 0; s < k; ++s) {
      out.values[at(t * k + s)] = p[at(s)] / total;
      experts.row(t)[s] = static_cast<double>(ids[at(s)]);
    }
  }
  std::vector<std::int64_t> pairs(at(logits.rows * k));
  std::iota(pairs.begin(), pairs.end(), 0);
  const auto expert = [&](std::int64_t j) { return experts.row(j / k)[j % k]; };
  std::stable_sort(pairs.begin(), pairs.end(), [&](std::int64_t x, std::int64_t y) { return expert(x) < expert(y); });
  for (std::int64_t e = 0; e <= count; ++e) {
    const auto below = [&](std::int64_t j) { return expert(j) < static_cast<double>(e); };
    starts.row(0)[e] = static_cast<double>(std::count_if(pairs.begin(), pairs.end(), below));
  }
  for (std::int64_t i = 0; i < std::ssize(pairs); ++i) {
    const std::int64_t j = pairs[at(i)];
    order.row(i)[0] = static_cast<double>(j);
    place.row(j / k)[j % k] = static_cast<double>(i);
  }
}

void Reference::eval(const GroupedLinear& a, Result& out) {
  const std::int64_t k = program_->experts_per_token;
  const View order = view(a.order), starts = view(a.starts);
  const std::int64_t cols = weight(a.weights).cols, rows = weight(a.weights).rows;
  const std::vector<double> x = activations(a.x, a.x_scales, a.x_format, cols);
  std::vector<double> row(at(cols));
  for (std::int32_t e = 0; e < a.experts; ++e) {
    const auto begin = static_cast<std::int64_t>(starts.row(0)[e]), end = static_cast<std::int64_t>(starts.row(0)[e + 1]);
    for (std::int64_t n = 0; n < rows && begin < end; ++n) {
      weight_row(weight(a.weights + e), n, row.data());
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t source = a.x.rows == Rows::tokens ? static_cast<std::int64_t>(order.row(i)[0]) / k : i;
        out.values[at(i * rows + n)] = std::inner_product(row.begin(), row.end(), x.begin() + source * cols, 0.0);
      }
    }
  }
}

void Reference::eval(const ExpertCombine& a, Result& out) {
  const View x = view(a.x), weights = view(a.weights), place = view(a.place);
  for (std::int64_t t = 0; t < weights.rows; ++t) {
    double* const y = out.values.data() + t * x.cols;
    for (std::int64_t s = 0; s < weights.cols; ++s) {
      const double* const from = x.row(static_cast<std::int64_t>(place.row(t)[s]));
      for (std::int64_t c = 0; c < x.cols; ++c) y[c] += weights.row(t)[s] * from[c];
    }
    if (!a.shared.valid()) continue;
    const double gate = 1 / (1 + std::exp(-view(a.shared_gate).row(t)[0]));
    for (std::int64_t c = 0; c < x.cols; ++c) y[c] += gate * view(a.shared).row(t)[c];
  }
}

}  // namespace nibble
