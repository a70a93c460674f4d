// Equal devices are equal, and a planted fault is found where it was planted.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "core/api/compare.h"
#include "core/api/lockstep.h"
#include "tests/golden/fixture.h"
#include "tests/models/folder.h"
#include "tests/parity/passes_on.h"
#include "tests/parity/runs.h"

namespace nibble::test {
namespace {

// Shows one element of one op changed.
class Faulty final : public PassesOn {
 public:
  struct Fault {
    std::string op;
    std::size_t call = 0, element = 0;
    std::uint32_t flip = 0;  // bits
  };
  Faulty(std::unique_ptr<Backend> inner, Fault fault) : PassesOn(std::move(inner)), fault_(std::move(fault)) {}

  void start(std::size_t index, const Batch& batch, const Observer& observer) override {
    PassesOn::start(index, batch, [&](const Op& op, std::int64_t rows, std::int64_t cols, std::span<const float> shown) {
      std::vector<float> copy(shown.begin(), shown.end());
      if (op.name == fault_.op && calls_++ == fault_.call) {
        float& v = copy.at(fault_.element);
        v = std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) ^ fault_.flip);
      }
      observer(op, rows, cols, copy);
    });
  }
  HostState export_state(std::int32_t slot, std::int32_t keep, std::span<const std::int32_t> pages,
                         std::int64_t positions) override {
    HostState state = PassesOn::export_state(slot, keep, pages, positions);
    if (fault_.op == "state") state.delta.at(2).conv.at(fault_.element) += 1;
    return state;
  }

 private:
  Fault fault_;
  std::size_t calls_ = 0;
};

Probe faulty_probe(const ParityOptions& how, const Faulty::Fault& fault, bool keep_weights = false) {
  Draft d = Probe::draft(model(), Device::cpu(1), how);
  d.backend = std::make_unique<Faulty>(std::move(d.backend), fault);
  return Probe(std::move(d), how, keep_weights);
}

ParityReport against_fault(const ParityOptions& how, const Faulty::Fault& fault) {
  Probe a(Probe::draft(model(), Device::cpu(1), how), how);
  Probe b = faulty_probe(how, fault);
  ParityReport report;
  compare(a, b, how, report);
  return report;
}

TEST(Parity, SameBits) {
  EXPECT_FALSE(same_bits(0.0f, -0.0f));
  EXPECT_TRUE(same_bits(std::nanf("1"), -std::nanf("2")));
  EXPECT_FALSE(same_bits(std::nanf("1"), 1.0f));
  EXPECT_TRUE(same_bits(INFINITY, INFINITY));
  EXPECT_FALSE(same_bits(1.0f, std::nextafter(1.0f, 2.0f)));
}

TEST(Parity, KernelsAndThreadsAgree) {
  for (const char* b : {"cpu:kernels=portable", "cpu:threads=2"}) {
    const ParityOptions how = options();
    const ParityReport r = compare_devices(model(), Device::parse("cpu:threads=1"), Device::parse(b), how);
    EXPECT_TRUE(r.equal()) << b << ": " << r.first->op;
    EXPECT_EQ(r.work.prefill_rows, 70);
    EXPECT_EQ(r.work.prefill_steps, 2);
    EXPECT_EQ(r.work.decode_steps, 3);
    EXPECT_EQ(r.work.logits, 73 * 4096) << "every row's";
    EXPECT_GT(r.work.state_elements, 0);
    EXPECT_EQ(r.work.tokens.size(), 4u);
  }
}

TEST(Parity, FlippedBitIsFoundInPrefill) {
  // The second call: the chunk of the prompt's rows 64 .. 69.
  const ParityReport r = against_fault(options(), {"model.layers.3.mlp.down_proj", 1, 2 * 256 + 17, 1});
  ASSERT_FALSE(r.equal());
  EXPECT_EQ(r.first->row, 2);
  EXPECT_EQ(r.first->column, 17);
  EXPECT_EQ(r.first->position, 66);
  EXPECT_EQ(r.first->step, 1);
}

TEST(Parity, FlippedBitIsFoundExactly) {
  const ParityOptions how = options();
  Probe names(Probe::draft(model(), Device::cpu(1), how), how);
  for (const Section section : {Section::prefill, Section::decode}) {
    const Program& program = names.program(section);
    bool tried = false;
    for (std::size_t i = program.ops.size() / 2; i < program.ops.size(); ++i) {
      const auto* linear = std::get_if<Linear>(&program.ops[i].args);
      if (linear == nullptr) continue;
      // Calls 0 and 1 are the two prefill steps, 2 the first decode step.
      const bool decode = section == Section::decode;
      const auto cols = static_cast<std::size_t>(linear->y.cols);
      const std::size_t row = decode ? 0 : 5, column = 3;
      const ParityReport r = against_fault(
          how, {program.ops[i].name, decode ? 2u : 1u, row * cols + column, 0x80000000u});
      ASSERT_FALSE(r.equal()) << program.ops[i].name;
      EXPECT_EQ(r.first->op, program.ops[i].name);
      EXPECT_EQ(r.first->kind, "linear");
      EXPECT_EQ(r.first->program, program.cls.name());
      EXPECT_EQ(r.first->index, static_cast<std::int64_t>(i));
      EXPECT_EQ(r.first->step, decode ? 2 : 1);
      EXPECT_EQ(r.first->row, static_cast<std::int64_t>(row));
      EXPECT_EQ(r.first->column, 3);
      EXPECT_EQ(r.first->position, decode ? 70 : 69);
      EXPECT_EQ(r.first->a_bits ^ r.first->b_bits, 0x80000000u);
      EXPECT_EQ(r.work.state_elements, 0) << "the run ends after that step";
      tried = true;
      break;
    }
    EXPECT_TRUE(tried) << program.cls.name();
  }
}

// A device with the fused op shows SwiGLU's output alone; the other's gate and up have no counterpart.
TEST(Parity, LeavesOutGateAndUpThatAreFoldedIn) {
  Draft d = Probe::draft(model(), Device::cpu(1), options());
  const Program& apart = d.spec.programs.front();
  Tracer tracer({.operand = DType::f32, .max_positions = 128, .fusions = {.linear_swiglu = true}});
  Step step(tracer, apart.cls);
  const Program fused = step.finish(d.decoder->forward(step));
  EXPECT_TRUE(tracer.apart().empty());
  const std::set<std::string> folded = folded_into(fused, apart);
  EXPECT_EQ(folded.size(), 2 * 8u);
  EXPECT_TRUE(folded.contains("model.layers.3.mlp.gate_proj") && folded.contains("model.layers.7.mlp.up_proj"));
  EXPECT_TRUE(folded_into(apart, fused).empty());
  ASSERT_EQ(fused.ops.size() + folded.size(), apart.ops.size());
  // Shown by either, found in the other.
  OpCursor in_fused(fused), in_apart(apart, folded);
  std::size_t at = 0;
  for (const Op& op : apart.ops) {
    if (folded.contains(op.name)) continue;
    EXPECT_TRUE(same_op(op, fused.ops.at(at)));
    EXPECT_EQ(in_fused.find(op), static_cast<std::int64_t>(at));
    EXPECT_EQ(apart.ops.at(static_cast<std::size_t>(in_apart.find(fused.ops.at(at)))).name, op.name);
    ++at;
  }
  OpCursor strict(apart);
  EXPECT_THROW(
      {
        for (const Op& op : fused.ops) strict.find(op);
      },
      Error);
}

TEST(Parity, StateIsCompared) {
  const ParityReport r = against_fault(options(64, 0), {"state", 0, 7, 0});
  ASSERT_FALSE(r.equal());
  EXPECT_EQ(r.first->op, "state.delta.2.conv");
  EXPECT_EQ(r.first->step, -1);
  EXPECT_EQ(r.first->row * 3 + r.first->column, 7);
}

TEST(Parity, CorruptedWeightIsFound) {
  Folder folder;
  // One norm weight of layer 2: that column differs in every row, first in row 0.
  Folder::Entry& norm = folder.tensors.at("model.language_model.layers.2.input_layernorm.weight");
  norm.bytes[2 * 5 + 1] = static_cast<char>(norm.bytes[2 * 5 + 1] ^ 0x40);
  folder.write();
  ParityOptions how = options();
  how.model_b = folder.path;
  const ParityReport r = compare_devices(model(), Device::cpu(), Device::cpu(), how);
  ASSERT_FALSE(r.equal());
  EXPECT_EQ(r.first->op, "model.layers.2.input_layernorm");
  EXPECT_EQ(r.first->kind, "rms_norm");
  EXPECT_EQ(r.first->row, 0);
  EXPECT_EQ(r.first->column, 5);
}

TEST(Parity, Float64) {
  for (const Activations activations : {Activations::a16, Activations::declared, Activations::a8}) {
    ParityOptions how = options();
    how.activations = activations;
    const Float64Report r = compare_with_float64(model(), Device::cpu(), how);
    EXPECT_EQ(r.bound, 1e-5);
    for (const auto& k : r.kinds) EXPECT_LT(k.largest, 1e-5) << k.kind << " at " << k.op;
    EXPECT_TRUE(r.within());
    EXPECT_EQ(r.work.logits, 73 * 4096);
  }
}

// A bound far above what is seen would let a fault through: the mirrors' errors lie close below theirs.
TEST(Parity, Float64OfTheMirrors) {
  for (const Float64Bound& b : float64_bounds()) {
    EXPECT_LT(b.seen, b.bound);
    if (b.profile == "f32") continue;
    double largest = 0;
    for (const Activations activations : {Activations::a16, Activations::declared, Activations::a8}) {
      ParityOptions how = options();
      how.activations = activations;
      const Device mirror = Device::parse((b.profile == "bf16" ? "cpu:profile=" : "cpu:mirror=") + std::string(b.profile));
      const Float64Report r = compare_with_float64(model(), mirror, how);
      EXPECT_EQ(r.bound, b.bound);
      for (const auto& k : r.kinds) {
        EXPECT_LE(k.largest, b.seen) << b.profile << ": " << k.kind << " at " << k.op;
        largest = std::max(largest, k.largest);
      }
      EXPECT_TRUE(r.within()) << b.profile;
    }
    EXPECT_GT(largest, b.bound / 5) << b.profile;
  }
  EXPECT_THROW(float64_bound("sm80"), Error);
}

TEST(Parity, Float64SeesAFault) {
  const ParityOptions how = options(64, 1);
  Probe probe = faulty_probe(how, {"model.norm", 0, 0, 0x80000000u}, /*keep_weights=*/true);
  Float64Report r;
  compare_with_reference(probe, how, r);
  EXPECT_FALSE(r.within());
  // The head did not have the input that was shown, so it is seen as well, and nothing else is.
  for (const auto& k : r.kinds) {
    EXPECT_EQ(k.ops_above, k.kind == "rms_norm" || k.kind == "linear" ? 1 : 0) << k.kind;
    if (k.kind == "rms_norm") {
      EXPECT_EQ(k.op, "model.norm");
    }
    if (k.kind == "linear") {
      EXPECT_EQ(k.op, "lm_head");
    }
  }
}

TEST(Parity, Refusals) {
  const auto code = [](const ParityOptions& how) {
    try {
      compare_devices(model(), Device::cpu(), Device::cpu(), how);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  ParityOptions how = options();
  how.chunk = 65;
  EXPECT_EQ(code(how), ErrorCode::invalid_argument);
  how = options();
  how.prompt = {4096};
  EXPECT_EQ(code(how), ErrorCode::invalid_argument);
  how.prompt.clear();
  EXPECT_EQ(code(how), ErrorCode::invalid_argument);
  how = options(70, 5000);
  EXPECT_EQ(code(how), ErrorCode::context_full);
  how = options();
  how.on_step = [](std::int64_t done, std::int64_t) { return done < 1; };
  EXPECT_EQ(code(how), ErrorCode::cancelled);
}

TEST(Lockstep, ErrorsComeOut) {
  const Op op{"one", Add{}, {}, {}};
  const float value = 1;
  const auto show = [&](const Observer& o) { o(op, 1, 1, {&value, 1}); };
  const auto none = [](const Observer&) {};
  const auto fail = [](const Observer&) { throw Error(ErrorCode::bad_file, "mine"); };
  int looks = 0;
  const auto look = [&](const Shown&, const Shown&) { ++looks; };
  Lockstep::run(show, show, look);
  EXPECT_EQ(looks, 1);
  const auto code = [&](const Lockstep::Run& a, const Lockstep::Run& b) {
    try {
      Lockstep::run(a, b, look);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code(show, none), ErrorCode::unsupported);
  EXPECT_EQ(code(none, show), ErrorCode::unsupported);
  EXPECT_EQ(code(fail, show), ErrorCode::bad_file);
  EXPECT_EQ(code(show, fail), ErrorCode::bad_file);
}

}  // namespace
}  // namespace nibble::test
