#include "backends/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>

#include "backends/cpu/memory.h"
#include "backends/cpu/ops/linear.h"
#include "backends/cpu/ops/quantize.h"
#include "backends/registry.h"
#include "core/numerics/reduce.h"
#include "nibble/error.h"
#include "tests/backend/toy.h"

namespace nibble::cpu {
namespace {

using test::ProgramBuilder;

// embed -> rms_norm -> linear -> gather -> sample, small enough to compute by hand.
struct Chain {
  static constexpr std::int64_t kVocab = 21, kHidden = 150;

  static ModelSpec spec() {
    ModelSpec spec;
    spec.weights.push_back(test::random_weight("embed", kVocab, kHidden, 1));
    spec.weights.push_back(test::random_weight("head", kVocab, kHidden, 2));
    Constant norm{"norm", {kHidden}, {}};
    for (int i = 0; i < kHidden; ++i) norm.data.push_back(1 + 0.01f * static_cast<float>(i % 7));
    spec.constants.push_back(norm);
    ProgramBuilder p({ProgramClass::Kind::mixed, 10, 4});
    const Tensor x = p.buffer(Rows::tokens, kHidden);
    p.op("embed", Embed{0, x});
    const Tensor y = p.linear("head", p.norm("norm", x, 0), 1, kVocab);
    const Tensor logits = p.buffer(Rows::outputs, kVocab);
    p.op("last", GatherRows{y, logits});
    p.op("sample", Sample{logits});
    spec.programs.push_back(p.take());
    return spec;
  }

  // The contracts of core/ops/ops.h, read aloud.
  static std::vector<float> logits(const ModelSpec& spec, std::int32_t token) {
    const auto* embed = reinterpret_cast<const float*>(spec.weights[0].codes.data());
    const auto* head = reinterpret_cast<const float*>(spec.weights[1].codes.data());
    const float* const x = embed + token * kHidden;
    const float sum = num::tree_sum_squares(x, kHidden);
    const float scale =
        num::rsqrt(num::add(num::mul(sum, static_cast<float>(1.0 / kHidden)), 1e-6f));
    std::vector<float> out;
    for (std::int64_t n = 0; n < kVocab; ++n) {
      float total = 0;
      for (std::int64_t first = 0; first < kHidden; first += 128) {
        float segment = 0;
        for (std::int64_t k = first; k < std::min(first + 128, kHidden); ++k) {
          const float h =
              num::mul(num::mul(x[k], scale), spec.constants[0].data[static_cast<std::size_t>(k)]);
          segment = num::fma(h, head[n * kHidden + k], segment);
        }
        total = num::add(total, segment);
      }
      out.push_back(total);
    }
    return out;
  }

  static Batch batch() {
    Batch b;
    b.tokens = {3, 20, 0, 7, 7, 11};
    b.ranges = {{Section::decode, 1, 0, 1, 0, 0, 0}, {Section::prefill, 0, 1, 5, 0, 0, 0}};
    b.output_rows = {0, 3, 5};
    b.sampling.resize(3);
    b.sampling[0].slot = 1;
    return b;
  }
};

constexpr StateSizes kTwoSlots{2, 0, 1, Chain::kVocab};

class CpuBackendIsas : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, CpuBackendIsas, testing::ValuesIn(available_isas()),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

TEST_P(CpuBackendIsas, RunsAChainOfOps) {
  for (const int threads : {1, 2, 7}) {
    CpuBackend backend({threads, isa_name(GetParam())});
    backend.prepare(Chain::spec(), kTwoSlots, {});
    const Batch batch = Chain::batch();
    StepOutput out;
    std::map<std::string, std::vector<float>> seen;
    std::vector<std::string> order;
    backend.run(0, batch, out, [&](const Op& op, auto rows, auto cols, auto data) {
      ASSERT_EQ(static_cast<std::size_t>(rows * cols), data.size());
      seen[op.name].assign(data.begin(), data.end());
      order.push_back(op.name);
    });
    EXPECT_EQ(order, (std::vector<std::string>{"embed", "norm", "head", "last", "sample"}));
    const ModelSpec spec = Chain::spec();
    ASSERT_EQ(seen["last"].size(), std::size_t{3 * Chain::kVocab});
    ASSERT_EQ(out.tokens.size(), 3u);
    EXPECT_TRUE(out.logprobs.empty());
    for (std::size_t o = 0; o < 3; ++o) {
      const auto row = static_cast<std::size_t>(batch.output_rows[o]);
      const std::vector<float> expected = Chain::logits(spec, batch.tokens[row]);
      EXPECT_EQ(std::memcmp(expected.data(), seen["last"].data() + o * Chain::kVocab,
                            sizeof(float) * Chain::kVocab),
                0)
          << o;
      EXPECT_EQ(out.tokens[o],
                std::max_element(expected.begin(), expected.end()) - expected.begin());
      EXPECT_EQ(seen["sample"][o], static_cast<float>(out.tokens[o]));
    }
  }
}

// Codes and scales reach Linear as they do when both ops are called by hand.
TEST_P(CpuBackendIsas, QuantisedActivationsArriveWhole) {
  using Kind = ActivationFormat::Kind;
  constexpr std::int64_t kK = 272, kN = 21, kRows = 5;
  struct Case {
    Kind kind;
    DType scale_type;
    std::int64_t code_cols, scale_cols;
  };
  for (const Case& c :
       {Case{Kind::nvfp4_static, DType::u8, kK / 2, kK / 16},
        Case{Kind::fp8_tensor_static, DType::f32, kK, 0}, Case{Kind::fp8_token, DType::f32, kK, 1},
        Case{Kind::fp8_token_group128, DType::f32, kK, 3}}) {
    SCOPED_TRACE(activation_format_name(c.kind));
    const ActivationFormat format{c.kind, 0.01f};
    ModelSpec spec;
    spec.weights.push_back(test::random_weight("embed", kN, kK, 1));
    spec.weights.push_back(test::random_weight("head", kN, kK, 2));
    ProgramBuilder p({ProgramClass::Kind::mixed, kRows, kRows});
    const Tensor x = p.buffer(Rows::tokens, kK);
    const Tensor codes = p.buffer(Rows::tokens, c.code_cols, DType::u8);
    const Tensor scales =
        c.scale_cols == 0 ? Tensor{} : p.buffer(Rows::tokens, c.scale_cols, c.scale_type);
    const Tensor y = p.buffer(Rows::tokens, kN), logits = p.buffer(Rows::outputs, kN);
    p.op("embed", Embed{0, x});
    p.op("quantize", Quantize{x, format, codes, scales});
    p.op("head", nibble::Linear{codes, scales, format, 1, y});
    p.op("last", GatherRows{y, logits});
    p.op("sample", nibble::Sample{logits});
    spec.programs.push_back(p.take());

    Batch b;
    b.tokens = {3, 20, 0, 7, 11};
    b.ranges = {{Section::prefill, 0, 0, 5, 0, 0, 0}};
    std::vector<float> rows;
    const auto* table = reinterpret_cast<const float*>(spec.weights[0].codes.data());
    for (const std::int32_t t : b.tokens)
      rows.insert(rows.end(), table + t * kK, table + (t + 1) * kK);
    Parallel parallel(1);
    std::vector<std::uint8_t> by_hand(kRows * kK);
    std::vector<float> hand_scales(kRows * kK), expected(kRows * kN);
    quantize(GetParam(), parallel,
             {kRows, kK, format, rows.data(), kK, by_hand.data(), c.code_cols, hand_scales.data(),
              c.scale_cols});
    std::uint64_t made = 0;
    Block arena(packed_bytes(spec.weights[1]), "test", made);
    const PackedWeight head =
        pack(spec.weights[1], arena.data(), parallel, nibble_order(GetParam()));
    Block workspace(static_cast<std::uint64_t>(linear_workspace_bytes(kRows, kK)), "test", made);
    linear(GetParam(), parallel,
           {&head, kRows, format, nullptr, c.code_cols, by_hand.data(), hand_scales.data(),
            c.scale_cols, expected.data(), kN, workspace.data()});

    CpuBackend backend({2, isa_name(GetParam())});
    backend.prepare(std::move(spec), {1, 0, 1, kN}, {});
    StepOutput out;
    std::vector<float> got, shown;
    backend.run(0, b, out, [&](const Op& op, auto, auto, auto data) {
      if (op.name == "head") got.assign(data.begin(), data.end());
      if (op.name == "quantize") shown.assign(data.begin(), data.end());
    });
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
    by_hand.resize(static_cast<std::size_t>(kRows * c.code_cols));
    EXPECT_EQ(shown, std::vector<float>(by_hand.begin(), by_hand.end()));
  }
}

TEST(CpuBackend, SaysWhatItIs) {
  const auto registry = backend_registry();
  const auto entry = std::find_if(registry.begin(), registry.end(), [](const BackendEntry& e) {
    return std::string(e.name) == "cpu";
  });
  ASSERT_NE(entry, registry.end());
  EXPECT_EQ(entry->refusal(), "");
  const auto backend = entry->make({3, "portable"});
  const DeviceInfo& device = backend->device();
  EXPECT_EQ(device.backend, "cpu");
  EXPECT_EQ(device.profile, "f32");
  EXPECT_EQ(device.kernels, "portable");
  EXPECT_EQ(device.operand, DType::f32);
  EXPECT_EQ(device.threads, 3);
  EXPECT_GT(device.free_memory, 0u);
  EXPECT_LE(device.free_memory, device.memory);
  EXPECT_EQ(CpuBackend({}).device().kernels, isa_name(available_isas().front()));
}

TEST(CpuBackend, PlansWhatItAllocates) {
  CpuBackend backend({2, ""});
  const test::ToySizes sizes;
  const ModelSpec spec = test::toy_model(sizes);
  const MemoryPlan plan = backend.plan(spec, test::toy_state(sizes));
  std::uint64_t weights = 0, constants = 0, scratch = 0;
  for (const Weight& w : spec.weights) weights += w.bytes();
  for (const Constant& c : spec.constants) constants += c.data.size() * sizeof(float);
  for (const Program& p : spec.programs) {
    scratch = std::max(scratch, static_cast<std::uint64_t>(p.scratch_bytes));
  }
  EXPECT_GE(plan.weights, weights);
  EXPECT_LT(plan.weights, weights + weights / 4);  // panels are padded to 16 rows
  EXPECT_GE(plan.constants, constants);
  EXPECT_GT(plan.scratch, scratch);
  const std::uint64_t page = 2u * 2 * 64 * 64 * sizeof(float);  // K and V, heads, places, columns
  EXPECT_EQ(plan.kv, page * static_cast<std::uint64_t>(sizes.pages));
  EXPECT_GE(plan.delta, 8u * 4 * 32 * 32 * sizeof(float));
  EXPECT_GE(plan.counts, 8u * 300 * sizeof(std::int32_t));
  EXPECT_EQ(plan.total(),
            plan.weights + plan.constants + plan.kv + plan.delta + plan.scratch + plan.counts);
}

TEST(CpuBackend, PacksWeightsOneByOneAndDropsThem) {
  ModelSpec spec = Chain::spec();
  std::vector<std::weak_ptr<const void>> owners;
  std::set<std::string> made;
  for (Weight& w : spec.weights) {
    const Weight whole = w;
    owners.push_back(w.owner);
    w.codes = {};
    w.owner = nullptr;
    w.materialize = [whole, &made](Weight& to) {
      made.insert(to.name);
      to.codes = whole.codes;
      to.owner = whole.owner;
    };
  }
  std::vector<std::uint64_t> told;
  CpuBackend backend({1, ""});
  backend.prepare(std::move(spec), kTwoSlots, [&](std::uint64_t bytes) {
    EXPECT_EQ(made.size(), told.size() + 1);  // none is made before its turn
    told.push_back(bytes);
    for (std::size_t i = 0; i + 1 < told.size(); ++i) EXPECT_TRUE(owners[i].expired()) << i;
    return true;
  });
  const std::uint64_t each = Chain::kVocab * Chain::kHidden * sizeof(float);
  EXPECT_EQ(told, (std::vector<std::uint64_t>{each, 2 * each}));
  for (const auto& owner : owners) EXPECT_TRUE(owner.expired());
  StepOutput out;
  backend.run(0, Chain::batch(), out, {});
  EXPECT_EQ(out.tokens.size(), 3u);
}

TEST(CpuBackend, LoadingCanBeCancelled) {
  CpuBackend backend({1, ""});
  backend.prepare(Chain::spec(), kTwoSlots, {});
  StepOutput before, after;
  backend.run(0, Chain::batch(), before, {});
  try {
    backend.prepare(Chain::spec(), kTwoSlots, [](std::uint64_t) { return false; });
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::cancelled) << e.what();
  }
  // what was there before still runs
  backend.reset_slot(0);
  backend.reset_slot(1);
  backend.run(0, Chain::batch(), after, {});
  EXPECT_EQ(before.tokens, after.tokens);
}

TEST(CpuBackend, CountsItsSteps) {
  CpuBackend backend({1, ""});
  backend.prepare(Chain::spec(), kTwoSlots, {});
  StepOutput out;
  backend.run(0, Chain::batch(), out, {});
  EXPECT_EQ(backend.stats().steps, 1u);
  EXPECT_EQ(backend.stats().last_launches, 5u);
  EXPECT_EQ(backend.stats().prefill_tokens, 5u);
  EXPECT_EQ(backend.stats().decode_tokens, 1u);
  EXPECT_GT(backend.stats().prefill_seconds, 0);
  EXPECT_GT(backend.stats().decode_seconds, 0);
  Batch one;
  one.tokens = {4};
  one.ranges = {{Section::prefill, 0, 0, 1, 5, 0, 0}};
  backend.run(0, one, out, {});
  EXPECT_TRUE(out.tokens.empty());
  EXPECT_EQ(backend.stats().launches, 10u);  // whatever the number of rows
  const std::string isa = backend.device().kernels;
  std::map<std::string, std::string> kernels(backend.stats().kernels.begin(),
                                             backend.stats().kernels.end());
  EXPECT_EQ(kernels["linear f32"], "panels of 16, " + isa);
  EXPECT_EQ(kernels["sample"], isa);
  EXPECT_EQ(kernels.size(), 5u);
}

#if defined(__SSE2__)
constexpr std::uint64_t kPlainControl = 0x1F80, kFlushingControl = 0x1F80 | 0x8040;
std::uint64_t control_word() {
  return _mm_getcsr() & 0xFFC0u;  // without the flags of past exceptions
}
void set_control_word(std::uint64_t word) {
  _mm_setcsr(static_cast<unsigned>(word));
}
#elif defined(__aarch64__)
constexpr std::uint64_t kPlainControl = 0, kFlushingControl = std::uint64_t{1} << 24;  // FZ
std::uint64_t control_word() {
  std::uint64_t word;
  __asm__ volatile("mrs %0, fpcr" : "=r"(word)::"memory");
  return word;
}
void set_control_word(std::uint64_t word) {
  __asm__ volatile("msr fpcr, %0" ::"r"(word) : "memory");
}
#endif

// A program built with fast-math runs with flush-to-zero on: it must change nothing.
TEST(CpuBackend, SetsTheFloatingPointEnvironment) {
  ModelSpec spec = Chain::spec();
  std::vector<float> tiny(Chain::kVocab * Chain::kHidden, 1e-42f);  // subnormal
  spec.weights[0].codes = std::as_bytes(std::span(tiny));
  const auto logits_of = [&](std::uint64_t control) {
    CpuBackend backend({1, ""});
    backend.prepare(spec, kTwoSlots, {});
    std::vector<float> seen;
    StepOutput out;
    const std::uint64_t saved = control_word();
    set_control_word(control);
    backend.run(0, Chain::batch(), out, [&](const Op& op, auto, auto, auto data) {
      if (op.name == "norm") seen.assign(data.begin(), data.end());
    });
    const std::uint64_t left = control_word();
    set_control_word(saved);
    EXPECT_EQ(left, control);  // and it leaves the caller's setting alone
    return seen;
  };
  const std::vector<float> plain = logits_of(kPlainControl), flushing = logits_of(kFlushingControl);
  ASSERT_FALSE(plain.empty());
  EXPECT_NE(plain[0], 0.0f);
  EXPECT_EQ(plain, flushing);
}

}  // namespace
}  // namespace nibble::cpu
