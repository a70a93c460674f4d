// sequence_test.cu: the CUDA ops that touch a sequence against the CPU's, by bytes.
#include "backends/cuda/ops/delta_rule.h"
#include "backends/cuda/ops/linear_parts.cuh"
#include "backends/cuda/ops/linear_schedule.cuh"
#include "tests/cases/sequence_cases.h"
#include "tests/cuda/sequence_worlds.h"

namespace nibble::test {
namespace {

struct Param {
  int shape;
  std::int32_t rows;
  bool bf16;
};
template <class Table>
std::vector<Param> params(const Table& table) {
  std::vector<Param> all;
  for (int s = 0; s < static_cast<int>(std::size(table)); ++s) {
    for (const std::int32_t rows : kRowCounts) {
      for (const bool bf16 : {false, true}) all.push_back({s, rows, bf16});
    }
  }
  return all;
}
std::string param_text(const Param& p) {
  return "_" + std::to_string(p.rows) + (p.bf16 ? "_bf16" : "_f32");
}

class DeltaNet : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};

TEST_P(DeltaNet, SequenceEqualsCpu) {
  const Param p = GetParam();
  const DeltaCase& c = kDelta[p.shape];
  with_element(p.bf16, [&](auto e) {
    DeltaWorld<decltype(e)> w(c.shape, 2, c.records);
    delta_sequence(w, c.records, p.rows);
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeltaNet, testing::ValuesIn(params(kDelta)), [](const auto& info) {
  return kDelta[info.param.shape].name + param_text(info.param);
});

// Prefill rows on matrix units, as profile sm90 has them.
class DeltaUnits : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};
std::vector<Param> params_of_units() {
  std::vector<Param> all = params(kDeltaUnits);
  std::erase_if(all, [](const Param& p) { return !p.bf16; });
  return all;
}

TEST_P(DeltaUnits, SequenceEqualsCpu) {
  const DeltaCase& c = kDeltaUnits[GetParam().shape];
  DeltaWorld<std::uint16_t> w(c.shape, 2, c.records, true);
  delta_sequence(w, c.records, GetParam().rows);
}

INSTANTIATE_TEST_SUITE_P(All, DeltaUnits, testing::ValuesIn(params_of_units()), [](const auto& info) {
  return kDeltaUnits[info.param.shape].name + param_text(info.param);
});

// All of a delta net as one op, tokens in one launch: without and with the norm.
class DeltaNetAtOnce : public DeltaUnits {};

TEST_P(DeltaNetAtOnce, SequenceEqualsCpu) {
  const DeltaCase& c = kDeltaUnits[GetParam().shape];
  using World = DeltaWorld<std::uint16_t>;
  for (const World::Ops ops : {World::Ops::net, World::Ops::normed_net}) {
    World w(c.shape, 2, c.records, true, cuda::delta_rule, ops);
    delta_sequence(w, c.records, GetParam().rows);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeltaNetAtOnce, testing::ValuesIn(params_of_units()), [](const auto& info) {
  return kDeltaUnits[info.param.shape].name + param_text(info.param);
});

// Shapes that one launch does not serve, too.
TEST(DeltaNetTogether, OtherShapesEqualCpu) {
  NIBBLE_NEEDS_DEVICE();
  using World = DeltaWorld<std::uint16_t>;
  for (const DeltaCase& c : kDelta) {
    World w(c.shape, 2, c.records, false, cuda::delta_rule, World::Ops::normed_net);
    delta_sequence(w, c.records, 65);
  }
}

// Sixteen rows, of which the next step keeps any number; then as many again.
TEST(DeltaNetTogether, SixteenRowsOfWhichAnyNumberIsKept) {
  NIBBLE_NEEDS_DEVICE();
  using World = DeltaWorld<std::uint16_t>;
  for (const DeltaShape& shape : {DeltaShape{1, 3, 32, 32, 4}, DeltaShape{1, 2, 128, 128, 4}}) {
    World w(shape, 2, 16, true, cuda::delta_rule, World::Ops::normed_net);
    w.step({{Section::prefill, 0, 5}, {Section::prefill, 1, 70}}, "prompts");
    for (std::int32_t keep = 0; keep <= 16; ++keep) {
      const std::string where = "keep " + std::to_string(keep);
      w.step({{Section::verify, 0, 16, keep == 0 ? 0 : 1}, {Section::verify, 1, 16 - keep % 3, keep == 0 ? 0 : 1}}, where);
      w.step({{Section::decode, 0, 1, keep}, {Section::decode, 1, 1, keep < 14 ? keep : 14}}, where);
      w.expect_state(0, 1, where);
      w.expect_state(1, 0, where);
    }
  }
}

// Of sixteen rows at once each number that is kept leaves what as many steps of one row leave.
TEST(DeltaNetTogether, KeptRowsAreSteps) {
  NIBBLE_NEEDS_DEVICE();
  using World = DeltaWorld<std::uint16_t>;
  constexpr DeltaShape kShape{1, 2, 128, 128, 4};
  for (std::int32_t keep = 1; keep <= 16; ++keep) {
    World at_once(kShape, 1, 16, true, cuda::delta_rule, World::Ops::net), steps(kShape, 1, 16, true, cuda::delta_rule, World::Ops::net);
    for (World* w : {&at_once, &steps}) w->step({{Section::prefill, 0, 70}}, "prompt");
    at_once.step({{Section::verify, 0, 16}}, "sixteen rows");
    for (std::int32_t i = 0; i < keep; ++i) steps.step({{Section::decode, 0, 1, i == 0 ? 0 : 1}}, "a row");
    expect_bytes(at_once.saved(0, keep), steps.saved(0, 1), "keep " + std::to_string(keep));
  }
}

TEST(DeltaNetTogether, RaggedBatches) {
  NIBBLE_NEEDS_DEVICE();
  using World = DeltaWorld<std::uint16_t>;
  for (const DeltaCase& c : kDeltaUnits) {
    for (const World::Ops ops : {World::Ops::net, World::Ops::normed_net}) {
      World w(c.shape, 6, c.records, true, cuda::delta_rule, ops);
      delta_ragged(w);
    }
  }
}

// The same without matrix units, whose sums take long: few rows.
class DeltaUnitsPlain : public DeltaUnits {};
std::vector<Param> params_of_plain() {
  std::vector<Param> all;
  for (int s = 0; s < static_cast<int>(std::size(kDeltaUnits)); ++s) {
    for (const std::int32_t rows : {1, 17, 64, 65, 130}) all.push_back({s, rows, true});
  }
  return all;
}

TEST_P(DeltaUnitsPlain, SequenceEqualsCpu) {
  const DeltaCase& c = kDeltaUnits[GetParam().shape];
  DeltaWorld<std::uint16_t> w(c.shape, 2, c.records, true, cuda::delta_units_plain);
  delta_sequence(w, c.records, GetParam().rows);
}

INSTANTIATE_TEST_SUITE_P(All, DeltaUnitsPlain, testing::ValuesIn(params_of_plain()), [](const auto& info) {
  return kDeltaUnits[info.param.shape].name + param_text(info.param);
});

// As profile sm70 has them. Emulated but on 7.0, which takes long: up to four chunks.
class DeltaUnitsSm70 : public DeltaUnits {};
std::vector<Param> params_of_sm70() {
  std::vector<Param> all;
  for (int s = 0; s < static_cast<int>(std::size(kDeltaUnits)); ++s) {
    for (const std::int32_t rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) all.push_back({s, rows, false});
  }
  return all;
}

TEST_P(DeltaUnitsSm70, SequenceEqualsCpu) {
  const DeltaCase& c = kDeltaUnits[GetParam().shape];
  DeltaWorld<F16> w(c.shape, 2, c.records, true);
  delta_sequence(w, c.records, GetParam().rows);
}

INSTANTIATE_TEST_SUITE_P(All, DeltaUnitsSm70, testing::ValuesIn(params_of_sm70()), [](const auto& info) {
  return std::string(kDeltaUnits[info.param.shape].name) + "_" + std::to_string(info.param.rows) + "_f16";
});

TEST(DeltaUnitsTogether, RaggedBatchesSm70) {
  NIBBLE_NEEDS_DEVICE();
  for (const DeltaCase& c : kDeltaUnits) {
    DeltaWorld<F16> w(c.shape, 6, c.records, true);
    delta_ragged(w);
  }
}

// Neither a cut at the 64-grid nor a batch changes a bit of what a sequence leaves behind.
TEST(DeltaUnitsTogether, CutsAndBatchesSm70) {
  NIBBLE_NEEDS_DEVICE();
  for (const DeltaCase& c : kDeltaUnits) {
    DeltaWorld<F16> alone(c.shape, 1, c.records, true), cut(c.shape, 1, c.records, true), batch(c.shape, 4, c.records, true);
    alone.step({{Section::prefill, 0, 200}}, "alone");
    for (const std::int32_t rows : {64, 128, 8}) cut.step({{Section::prefill, 0, rows}}, "cut");
    batch.step({{Section::verify, 3, 2}, {Section::prefill, 1, 77}, {Section::prefill, 0, 200}, {Section::prefill, 2, 3}},
               "in a batch");
    const Row want = alone.saved(0, 0);
    expect_bytes(cut.saved(0, 0), want, "cut");
    expect_bytes(batch.saved(0, 0), want, "in a batch");
  }
}

// Row counts that the cases above have not, a long prompt among them; on cards without sm70's unit that one is emulated.
TEST(DeltaUnitsTogether, OtherRowCounts) {
  NIBBLE_NEEDS_DEVICE();
  for (const DeltaShape& shape : {DeltaShape{1, 2, 128, 128, 4}, DeltaShape{1, 1, 32, 32, 4}}) {
    for (const std::int32_t rows : {15, 200, 4097}) {
      DeltaWorld<std::uint16_t> w(shape, 2, 3, true);
      delta_sequence(w, 3, rows);
      if (rows > 200 && shape.key_dim > 32) continue;
      DeltaWorld<F16> of_f16(shape, 2, 3, true);
      delta_sequence(of_f16, 3, rows);
    }
  }
}

TEST(DeltaUnitsTogether, RaggedBatches) {
  NIBBLE_NEEDS_DEVICE();
  for (const DeltaCase& c : kDeltaUnits) {
    for (const auto prefill : {cuda::delta_rule, cuda::delta_units_plain}) {
      DeltaWorld<std::uint16_t> w(c.shape, 6, c.records, true, prefill);
      delta_ragged(w);
    }
  }
}

// What StepStats shows; on a card without code of sm_90a also why.
TEST(DeltaUnitsTogether, KernelIsNamed) {
  NIBBLE_NEEDS_DEVICE();
  cuda::DeltaRuleArgs args{};
  args.section = Section::prefill;
  EXPECT_EQ(cuda::delta_rule_kernel(args), "chunks");
  std::byte record{};
  args.records = &record;
  EXPECT_EQ(cuda::delta_rule_kernel(args), cuda::has_wgmma()
                                               ? "chunks, wgmma.m64k16"
                                               : "chunks, fused sums in software: the card runs no code for sm_90a");
  args.units = cuda::ArchPath::sm70;
  EXPECT_EQ(cuda::delta_rule_kernel(args), cuda::has_m8n8k4() ? "chunks, mma.m8n8k4" : "chunks, mma.m8n8k4, emulated");
  args.section = Section::decode;
  EXPECT_EQ(cuda::delta_rule_kernel(args), "generic");
  args.state.shape = {1, 1, 128, 128, 4};
  EXPECT_EQ(cuda::delta_rule_kernel(args), "columns in registers");
}

class Attention : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};

TEST_P(Attention, SequenceEqualsCpu) {
  const Param p = GetParam();
  with_element(p.bf16, [&](auto e) {
    AttentionWorld<decltype(e)> w(kAttention[p.shape].c, 2, p.rows + 128);
    attention_sequence(w, p.rows);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(params(kAttention)),
                         [](const auto& info) {
                           return kAttention[info.param.shape].name + param_text(info.param);
                         });

// On matrix units, as profiles sm90 and sm120 have it.
class AttentionUnits : public Attention {};
std::vector<Param> params_of_attention_units() {
  std::vector<Param> all = params(kAttentionUnits);
  std::erase_if(all, [](const Param& p) { return !p.bf16; });
  return all;
}

TEST_P(AttentionUnits, SequenceEqualsCpu) {
  const Param p = GetParam();
  AttentionWorld<std::uint16_t> w(kAttentionUnits[p.shape].c, 2, p.rows + 128, true);
  attention_sequence(w, p.rows);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionUnits, testing::ValuesIn(params_of_attention_units()), [](const auto& info) {
  return kAttentionUnits[info.param.shape].name + param_text(info.param);
});

// The same over keys and values in fp8.
class AttentionCodes : public AttentionUnits {};
TEST_P(AttentionCodes, SequenceEqualsCpu) {
  const Param p = GetParam();
  AttentionWorld<std::uint16_t> w(kAttentionUnits[p.shape].c, 2, p.rows + 128, true, KvFormat::fp8);
  attention_sequence(w, p.rows);
}
INSTANTIATE_TEST_SUITE_P(All, AttentionCodes, testing::ValuesIn(params_of_attention_units()), [](const auto& info) {
  return kAttentionUnits[info.param.shape].name + param_text(info.param);
});

constexpr KvFormat kKvFormats[] = {KvFormat::operand, KvFormat::fp8};

// As profile sm70 has them. Emulated but on 7.0, which takes long: up to four tiles.
class AttentionUnitsSm70 : public Attention {};
std::vector<Param> params_of_attention_sm70() {
  std::vector<Param> all;
  for (int s = 0; s < static_cast<int>(std::size(kAttentionUnits)); ++s) {
    for (const std::int32_t rows : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 200}) all.push_back({s, rows, false});
  }
  return all;
}

TEST_P(AttentionUnitsSm70, SequenceEqualsCpu) {
  const Param p = GetParam();
  AttentionWorld<float> w(kAttentionUnits[p.shape].c, 2, p.rows + 128, true);
  attention_sequence(w, p.rows);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionUnitsSm70, testing::ValuesIn(params_of_attention_sm70()), [](const auto& info) {
  return kAttentionUnits[info.param.shape].name + std::string("_") + std::to_string(info.param.rows);
});

TEST(AttentionUnitsTogether, RaggedBatchesSm70) {
  NIBBLE_NEEDS_DEVICE();
  for (const AttentionRow& row : kAttentionUnits) {
    AttentionWorld<float> w(row.c, 5, 320, true);
    attention_ragged(w);
  }
}

// What is too large for f16, tile by tile, and values that are no numbers.
TEST(AttentionUnitsTogether, PowersSm70) {
  NIBBLE_NEEDS_DEVICE();
  for (const AttentionRow& row : kAttentionUnits) {
    for (const float by : {0x1p20f, 0x1p40f, 0x1p-30f}) {
      AttentionWorld<float> w(row.c, 2, 300, true);
      w.alter([&](auto& s) {
        for (std::size_t i = 0; i < s.v.size(); i += 3) s.v[i] *= by;
        for (std::size_t i = 0; i < s.k.size(); i += 7) s.k[i] *= by;
        for (std::size_t i = 0; i < s.q.size(); i += 5) s.q[i] *= by;
      });
      w.step({{Section::prefill, 0, 130}, {Section::prefill, 1, 59}}, "prompts");
      w.step({{Section::prefill, 1, 70}}, "another");
    }
    AttentionWorld<float> w(row.c, 1, 200, true);
    w.alter([&](auto& s) { s.v[at(3 * row.c.shape.kv_heads * row.c.shape.head_dim)] = std::nanf(""); });
    w.step({{Section::prefill, 0, 130}}, "a value that is no number");
  }
}

TEST(AttentionUnitsTogether, RaggedBatches) {
  NIBBLE_NEEDS_DEVICE();
  for (const AttentionRow& row : kAttentionUnits) {
    for (const KvFormat kv : kKvFormats) {
      AttentionWorld<std::uint16_t> w(row.c, 5, 320, true, kv);
      attention_ragged(w);
    }
  }
}

TEST(AttentionUnitsTogether, LongPrompts) {
  NIBBLE_NEEDS_DEVICE();
  for (const AttentionRow& row : kAttentionUnits) {
    AttentionWorld<std::uint16_t> w(row.c, 2, 2300, true);
    attention_across_splits(w);
    for (const KvFormat kv : kKvFormats) {
      AttentionWorld<std::uint16_t> other(row.c, 2, 2300, true, kv);
      attention_across_unit_splits(other);
    }
  }
}

// Keys and values of later rows of a range that are no numbers, in a row's tile and in others, change nothing.
TEST(AttentionUnitsTogether, WhatLiesBehindARowCountsForNothing) {
  NIBBLE_NEEDS_DEVICE();
  const auto run = [](const AttentionRow& row, float x, KvFormat kv) {
    AttentionWorld<std::uint16_t> w(row.c, 2, 700, true, kv);
    w.step({{Section::prefill, 0, 59}, {Section::prefill, 1, 509}}, "prompts");
    const std::int64_t cols = std::int64_t{row.c.shape.kv_heads} * row.c.shape.head_dim;
    w.alter([&](auto& s) {  // all values of the second half from the range's third row on, and the fourth key
      for (const Range& r : s.ranges) {
        for (std::int64_t i = 2; i < r.rows; ++i) {
          for (std::int64_t d = cols / 2; d < cols; ++d) s.v[at((r.first_row + i) * cols + d)] = x;
        }
        if (r.rows > 3) s.k[at((r.first_row + 3) * cols)] = x;
      }
    });
    w.step({{Section::verify, 0, 7}, {Section::verify, 1, 9}}, "verify");
    w.set_position(0, 61);  // what is no number lies behind the last row
    w.set_position(1, 511);
    w.step({{Section::decode, 1, 1}, {Section::verify, 0, 2}}, "before it");
  };
  for (const AttentionRow& row : kAttentionUnits) {
    for (const float x : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      for (const KvFormat kv : kKvFormats) run(row, x, kv);
    }
  }
}

TEST(AttentionUnitsTogether, KernelIsNamed) {
  NIBBLE_NEEDS_DEVICE();
  cuda::AttentionArgs args{};
  args.state.shape = {2, 1, 64};
  cuda::Launch to;
  EXPECT_EQ(cuda::attention_kernel(to, args), "generic");
  args.units = true;
  const std::string unit = cuda::has_m16n8k16() ? ": mma.m16n8k16" : ": mma.m16n8k16, emulated";
  args.section = Section::prefill;
  EXPECT_EQ(cuda::attention_kernel(to, args), "prompts" + unit);
  args.path = cuda::ArchPath::sm70;
  EXPECT_EQ(cuda::attention_kernel(to, args), cuda::has_m8n8k4() ? "prompts: mma.m8n8k4" : "prompts: mma.m8n8k4, emulated");
  args.path = cuda::ArchPath::sm90;
  EXPECT_EQ(cuda::attention_kernel(to, args), cuda::has_wgmma() ? "prompts: wgmma.m64k16"
                                                                : "prompts" + unit + " (no wgmma: the card runs no code for sm_90a)");
  args.q.stride = 4;
  EXPECT_EQ(cuda::attention_kernel(to, args), "prompts" + unit +
                                                  (cuda::has_wgmma() ? " (no wgmma: rows of q are not aligned to 16 bytes)"
                                                                     : " (no wgmma: the card runs no code for sm_90a)"));
  for (const Section section : {Section::decode, Section::verify}) {
    args.section = section;
    EXPECT_EQ(cuda::attention_kernel(to, args), "splits of 512" + unit);
  }
}

class Sequence : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(All, Sequence, testing::Bool(),
                         [](const auto& info) { return info.param ? "bf16" : "f32"; });

TEST_P(Sequence, DeltaNetInRaggedBatches) {
  with_element(GetParam(), [](auto e) {
    for (const int i : kRaggedDelta) {
      DeltaWorld<decltype(e)> w(kDelta[i].shape, 6, kDelta[i].records);
      delta_ragged(w);
    }
  });
}

TEST_P(Sequence, AttentionInRaggedBatches) {
  with_element(GetParam(), [](auto e) {
    for (const int i : kRaggedAttention) {
      AttentionWorld<decltype(e)> w(kAttention[i].c, 5, 320);
      attention_ragged(w);
    }
  });
}

TEST_P(Sequence, AttentionAcrossSplits) {
  with_element(GetParam(), [](auto e) {
    AttentionWorld<decltype(e)> w(kAcrossSplits, 2, 2300);
    attention_across_splits(w);
  });
}

TEST_P(Sequence, EmptySectionsAndStepsWriteNothing) {
  with_element(GetParam(), [](auto e) {
    using E = decltype(e);
    const DeltaCase& c = kDelta[2];
    DeltaWorld<E> w(c.shape, 1, c.records);
    const StepOnDevice on(batch_of({}));
    const cuda::Launch to = launch_of(on, 8, 2);
    DeviceMatrix<E> x(8, c.shape.channels()), y(8, c.shape.channels()),
        o(8, c.shape.value_channels());
    DeviceMatrix<float> g(8, c.shape.value_heads), beta(8, c.shape.value_heads);
    const AttentionShape s{4, 2, 64};
    DeviceArray<E> keys(at(2 * 64 * 64)), values(at(2 * 64 * 64));
    const cuda::KvLayerView kv{s, element_dtype<E>(), 1, keys.raw(), values.raw()};
    DeviceMatrix<E> q(8, 256), k(8, 128), v(8, 128), out(8, 256);
    DeviceArray<float> constants(at(c.shape.channels() * c.shape.conv_kernel));
    const float* const f = constants.data();
    cuda::delta_gates(to, {g.view(), beta.view(), f, f, g.view(), beta.view()});
    cuda::qk_norm_rope(to, {q.view(), k.view(), v.view(), 64, nullptr, nullptr, 1e-6f, f, 8, kv,
                            out.view()});
    for (const Section part : kSections) {
      cuda::delta_conv(to, {x.view(), f, w.view(), part, y.view()});
      cuda::delta_rule(to, {x.view(), g.view(), beta.view(), w.view(), part, o.view()});
      cuda::attention(to, {q.view(), 0.125f, kv, part, out.view()});
    }
    finish_device();
    const auto untouched = [](const auto& values_read) {
      for (const auto value : values_read) {
        unsigned char raw[sizeof value];
        std::memcpy(raw, &value, sizeof value);
        for (const unsigned char b : raw) ASSERT_EQ(b, 0xFF);
      }
    };
    untouched(y.download());
    untouched(o.download());
    untouched(out.download());
    untouched(keys.download());
    untouched(values.download());
    untouched(g.download());
    untouched(beta.download());
    w.expect_state(0, 0, "after nothing");
  });
}

TEST_P(Sequence, DeltaNetKeyOverTreeSwitch) {
  with_element(GetParam(), [](auto e) {
    DeltaWorld<decltype(e)> w(kWideKeys, 1, 3);
    delta_wide_keys(w);
  });
}

TEST_P(Sequence, AttentionHeadOverTreeSwitch) {
  with_element(GetParam(), [](auto e) {
    AttentionWorld<decltype(e)> w(kWideHead, 1, 192);
    attention_wide_head(w);
  });
}

}  // namespace
}  // namespace nibble::test
