#include "core/api/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/api/lockstep.h"

namespace nibble {
namespace {

[[noreturn]] void different_programs(const std::string& what) {
  throw Error(ErrorCode::unsupported, "[parity] the devices run different programs: " + what);
}

// Ops of a program that the other one shows as well.
std::vector<const Op*> shared_ops(const Program& program, const Program& other) {
  const std::set<std::string> folded = folded_into(other, program);
  std::vector<const Op*> all;
  for (const Op& op : program.ops) {
    if (!folded.contains(op.name)) all.push_back(&op);
  }
  return all;
}

void check_programs(const std::vector<Program>& a, const std::vector<Program>& b) {
  for (std::size_t p = 0; p < std::min(a.size(), b.size()); ++p) {
    const std::string name = a[p].cls.name();
    const std::vector<const Op*> of_a = shared_ops(a[p], b[p]), of_b = shared_ops(b[p], a[p]);
    for (std::size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
      const auto show = [&](const std::vector<const Op*>& ops) {
        return i < ops.size() ? describe_op(*ops[i]) : std::string("nothing");
      };
      if (i >= of_a.size() || i >= of_b.size() || !same_op(*of_a[i], *of_b[i])) {
        different_programs("op " + std::to_string(i) + " of " + name + " is " + show(of_a) + " on A and " +
                           show(of_b) + " on B");
      }
    }
  }
}

// An observer that is shown what the other device shows too.
Observer without(const std::set<std::string>& folded, const Observer& shown) {
  return [&](const Op& op, std::int64_t rows, std::int64_t cols, std::span<const float> data) {
    if (!folded.contains(op.name)) shown(op, rows, cols, data);
  };
}

class Comparison {
 public:
  Comparison(Probe& a, Probe& b, const ParityOptions& how, ParityReport& report)
      : a_(a), b_(b), how_(how), report_(report) {}

  void run() {
    const bool whole = walk(how_, report_.work, [&](const ProbeStep& s, bool& more) {
      const std::int32_t token = step(s);
      more = report_.equal() || how_.keep_going;
      return token;
    });
    if (whole) states();
  }

 private:
  std::int32_t step(const ProbeStep& s) {
    const Program& program = b_.program(s.section);
    const auto of_a = folded_into(program, a_.program(s.section)), of_b = folded_into(a_.program(s.section), program);
    OpCursor cursor(program, of_b);
    const std::int64_t base = b_.position();
    std::int32_t token = 0;
    Lockstep::run([&](const Observer& o) { token = a_.run(s.section, s.tokens, without(of_a, o)).tokens.back(); },
                  [&](const Observer& o) { b_.run(s.section, s.tokens, without(of_b, o)); },
                  [&](const Shown& a, const Shown& b) {
                    if (!same_op(*a.op, *b.op) || a.rows != b.rows || a.cols != b.cols) {
                      different_programs("in step " + std::to_string(s.number) + " A shows " +
                                         describe_shown(a) + " and B " + describe_shown(b));
                    }
                    ParityDifference where;
                    where.program = program.cls.name();
                    where.op = b.op->name;
                    where.kind = op_kind(b.op->args);
                    where.step = s.number;
                    where.index = cursor.find(*b.op);
                    where.position = base;
                    ++report_.work.ops;
                    report_.work.elements += static_cast<std::int64_t>(b.data.size());
                    if (gives_logits(program, *b.op)) report_.work.logits += static_cast<std::int64_t>(b.data.size());
                    look(where, a.data, b.data, b.cols);
                  });
    return token;
  }

  static std::string describe_shown(const Shown& s) {
    return describe_op(*s.op) + " [" + std::to_string(s.rows) + ", " + std::to_string(s.cols) + "]";
  }

  // `where`: of element 0; position counts on with the rows unless it is -1.
  void look(ParityDifference where, std::span<const float> a, std::span<const float> b, std::int64_t cols) {
    auto kind = std::find_if(report_.kinds.begin(), report_.kinds.end(),
                             [&](const ParityReport::Kind& k) { return k.kind == where.kind; });
    if (kind == report_.kinds.end()) {
      report_.kinds.push_back({where.kind});
      kind = report_.kinds.end() - 1;
    }
    ++kind->ops;
    kind->elements += static_cast<std::int64_t>(a.size());
    std::int64_t differing = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (same_bits(a[i], b[i])) continue;
      const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
      kind->largest = std::max(kind->largest,
                               std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance);
      if (differing++ == 0 && !report_.first) {
        const auto at = static_cast<std::int64_t>(i);
        where.row = at / cols;
        where.column = at % cols;
        if (where.position >= 0) where.position += where.row;
        where.a = a[i];
        where.b = b[i];
        where.a_bits = std::bit_cast<std::uint32_t>(a[i]);
        where.b_bits = std::bit_cast<std::uint32_t>(b[i]);
        report_.first = where;
      }
    }
    kind->elements_differing += differing;
    kind->ops_differing += differing > 0;
  }

  void state(const std::string& name, const std::vector<float>& a, const std::vector<float>& b,
             std::int64_t cols) {
    if (a.size() != b.size()) {
      different_programs(name + " has " + std::to_string(a.size()) + " elements on A and " +
                         std::to_string(b.size()) + " on B");
    }
    ParityDifference where;
    where.program = where.kind = "state";
    where.op = "state." + name;
    report_.work.state_elements += static_cast<std::int64_t>(a.size());
    look(where, a, b, cols);
  }

  void states() {
    const HostState a = a_.state(), b = b_.state();
    const StateLayout& layout = b_.spec().state;
    for (std::size_t i = 0; i < std::min(a.delta.size(), b.delta.size()); ++i) {
      const std::string name = "delta." + std::to_string(i);
      state(name + ".s", a.delta[i].s, b.delta[i].s, layout.delta[i].value_dim);
      state(name + ".conv", a.delta[i].conv, b.delta[i].conv,
            std::max<std::int64_t>(1, layout.delta[i].conv_kernel - 1));
    }
    for (std::size_t i = 0; i < std::min(a.kv.size(), b.kv.size()); ++i) {
      const std::string name = "attention." + std::to_string(i);
      state(name + ".k", a.kv[i].k, b.kv[i].k, layout.attention[i].head_dim);
      state(name + ".v", a.kv[i].v, b.kv[i].v, layout.attention[i].head_dim);
    }
  }

  Probe &a_, &b_;
  const ParityOptions& how_;
  ParityReport& report_;
};

}  // namespace

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}

void compare(Probe& a, Probe& b, const ParityOptions& how, ParityReport& report) {
  check_programs(a.spec().programs, b.spec().programs);
  Comparison(a, b, how, report).run();
}

ParityReport compare_devices(const std::filesystem::path& model, const Device& a, const Device& b,
                             const ParityOptions& how) {
  const bool packs_a = a.fused_pack.value_or(false), packs_b = b.fused_pack.value_or(false);
  if (packs_a != packs_b) {
    const auto text = [](bool on) { return std::string(on ? "on" : "off"); };
    throw Error(ErrorCode::invalid_argument,
                "[parity] fused-pack: expected the same on A and B (off where nothing is said), found " + text(packs_a) +
                    " and " + text(packs_b));
  }
  ParityReport report;
  // One after the other: what A holds is no longer free for B.
  Probe on_a(Probe::draft(model, a, how), how);
  Probe on_b(Probe::draft(how.model_b.empty() ? model : how.model_b, b, how), how);
  report.a = describe_device(a, on_a.device());
  report.b = describe_device(b, on_b.device());
  compare(on_a, on_b, how, report);
  return report;
}

}  // namespace nibble
