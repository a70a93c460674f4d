// float64.cpp: each op of a device beside its formula in float64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/api/compare.h"
#include "core/base/quote.h"
#include "core/parity/reference.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// NaN where both have it, and equal infinities, are no error.
class RelativeL2 {
 public:
  // least_size: see Reference::Result::sizes.
  void add(double found, double expected, double least_size = 0) {
    const double size = std::max(std::abs(expected), least_size);
    if (std::isfinite(size)) size_ += size * size;
    if (found == expected || (std::isnan(found) && std::isnan(expected))) return;
    const double d = found - expected;
    error_ += std::isfinite(d) ? d * d : kInfinity;
  }
  double value() const {
    if (error_ == 0) return 0;
    return size_ == 0 ? kInfinity : std::sqrt(error_ / size_);
  }

 private:
  double error_ = 0, size_ = 0;
};

class Judge {
 public:
  explicit Judge(Float64Report& report) : report_(report) {}

  void add(const std::string& program, const std::string& op, const std::string& kind, std::int64_t step,
           std::int64_t elements, double error) {
    auto row = std::find_if(report_.kinds.begin(), report_.kinds.end(),
                            [&](const Float64Report::Kind& k) { return k.kind == kind; });
    if (row == report_.kinds.end()) {
      report_.kinds.push_back({kind});
      row = report_.kinds.end() - 1;
    }
    ++row->ops;
    row->elements += elements;
    row->ops_above += error > report_.bound;
    if (error > row->largest || row->op.empty()) {
      row->largest = error;
      row->program = program;
      row->op = op;
      row->step = step;
    }
  }

  void state(const std::string& name, const std::vector<float>& found, const std::vector<double>& expected) {
    RelativeL2 error;
    if (found.size() != expected.size()) {
      throw Error(ErrorCode::internal, "[parity] state." + name + ": expected " +
                                           std::to_string(expected.size()) + " elements, found " +
                                           std::to_string(found.size()));
    }
    for (std::size_t i = 0; i < found.size(); ++i) error.add(found[i], expected[i]);
    report_.work.state_elements += static_cast<std::int64_t>(found.size());
    add("state", "state." + name, "state", -1, static_cast<std::int64_t>(found.size()), error.value());
  }

 private:
  Float64Report& report_;
};

// [positions, heads * dim] to the export's [heads, positions, dim].
std::vector<double> by_head(const std::vector<double>& rows, const AttentionShape& shape) {
  const auto dim = static_cast<std::size_t>(shape.head_dim), heads = static_cast<std::size_t>(shape.kv_heads);
  std::vector<double> out;
  out.reserve(rows.size());
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t at = h * dim; at < rows.size(); at += heads * dim) {
      out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(at),
                 rows.begin() + static_cast<std::ptrdiff_t>(at + dim));
    }
  }
  return out;
}

void judge_state(const HostState& found, const Reference::State& expected, const StateLayout& layout,
                 Judge& judge) {
  for (std::size_t i = 0; i < found.delta.size(); ++i) {
    const std::string name = "delta." + std::to_string(i);
    judge.state(name + ".s", found.delta[i].s, expected.delta[i].s);
    judge.state(name + ".conv", found.delta[i].conv, expected.delta[i].conv);
  }
  for (std::size_t i = 0; i < found.kv.size(); ++i) {
    const std::string name = "attention." + std::to_string(i);
    judge.state(name + ".k", found.kv[i].k, by_head(expected.kv[i].k, layout.attention[i]));
    judge.state(name + ".v", found.kv[i].v, by_head(expected.kv[i].v, layout.attention[i]));
  }
}

}  // namespace

void compare_with_reference(Probe& on, const ParityOptions& how, Float64Report& report) {
  report.bound = how.bound > 0 ? how.bound : float64_bound(on.device().profile);
  Reference reference(on.spec());
  Judge judge(report);
  walk(how, report.work, [&](const ProbeStep& s, bool&) {
    const Program& program = on.program(s.section);
    OpCursor cursor(program);
    const Observer look = [&](const Op& shown, std::int64_t, std::int64_t, std::span<const float> data) {
      const Op& op = program.ops[static_cast<std::size_t>(cursor.find(shown))];
      const Reference::Result expected = reference.evaluate(op);
      if (expected.values.size() != data.size()) {
        throw Error(ErrorCode::internal, "[parity] " + describe_op(op) + ": expected " +
                                             std::to_string(expected.values.size()) + " elements, was shown " +
                                             std::to_string(data.size()));
      }
      RelativeL2 error;
      bool equal = true;
      for (std::size_t i = 0; i < data.size(); ++i) {
        error.add(data[i], expected.values[i], expected.sizes.empty() ? 0 : expected.sizes[i]);
        equal = equal && static_cast<double>(data[i]) == expected.values[i];
      }
      reference.show(op, data);
      ++report.work.ops;
      report.work.elements += static_cast<std::int64_t>(data.size());
      if (gives_logits(program, op)) report.work.logits += static_cast<std::int64_t>(data.size());
      judge.add(program.cls.name(), op.name, op_kind(op.args), s.number, static_cast<std::int64_t>(data.size()),
                expected.exact && !equal ? kInfinity : error.value());
    };
    return on
        .run(s.section, s.tokens, look,
             [&](const Program& p, const Batch& batch) { reference.begin(p, batch); })
        .tokens.back();
  });
  judge_state(on.state(), reference.state(), on.spec().state, judge);
}

Float64Report compare_with_float64(const std::filesystem::path& model, const Device& on,
                                   const ParityOptions& how) {
  expect_ops_one_by_one(on, "float64 knows ops one by one");
  Float64Report report;
  Probe probe(Probe::draft(model, on, how), how, /*keep_weights=*/true);
  report.device = describe_device(on, probe.device());
  compare_with_reference(probe, how, report);
  return report;
}

// 16-bit profiles: half as much again as was seen. In f32 errors grow with a model's widths, and the
// checkpoints are narrow: four times.
std::span<const Float64Bound> float64_bounds() {
  static constexpr Float64Bound kBounds[] = {{"f32", 2.4e-6, 1e-5},      // attention
                                             {"bf16", 6e-3, 9e-3},      // linear: rounded inputs
                                             {"sm70", 1.46e-3, 2.2e-3},  // delta_rule: tiny outputs, f16 subnormals
                                             {"sm90", 9.3e-3, 1.4e-2},   // attention: rounded keys move large scores
                                             {"sm120", 9.3e-3, 1.4e-2}};
  return kBounds;
}

double float64_bound(std::string_view profile) {
  for (const Float64Bound& b : float64_bounds()) {
    if (b.profile == profile) return b.bound;
  }
  throw Error(ErrorCode::invalid_argument, "[parity] no bound is known for profile " + in_quotes(profile));
}

}  // namespace nibble
