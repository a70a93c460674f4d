// sequence_test.cu: the CUDA ops that touch a sequence against the CPU's, by bytes.
#include "tests/cuda/sequence_worlds.h"

namespace nibble::test {
namespace {

constexpr std::int32_t kRowCounts[] = {1, 2, 3, 5, 8, 16, 17, 31, 63, 64, 65, 127, 128, 129, 255, 257, 1024};

struct DeltaCase {
  const char* name;
  DeltaShape shape;  // key heads, value heads, key_dim, value_dim, taps
  std::int32_t records;
};
constexpr DeltaCase kDelta[] = {
    {"model", {2, 6, 128, 128, 4}, 4}, {"small", {1, 1, 32, 32, 4}, 1},
    {"odd", {2, 2, 33, 17, 3}, 3},     {"mixed", {1, 4, 48, 80, 2}, 6},
    {"wide", {1, 2, 130, 40, 8}, 2},   {"no_history", {2, 4, 16, 48, 1}, 5},
};

struct AttentionRow {
  const char* name;
  AttentionCase c;  // heads, kv heads, head_dim; rotary; norms
};
constexpr AttentionRow kAttention[] = {
    {"model", {{6, 1, 256}, 64, true}},  {"small", {{4, 2, 64}, 16, true}},
    {"odd", {{3, 3, 37}, 10, true}},     {"bare", {{5, 1, 96}, 96, false}},
    {"many_heads", {{40, 2, 33}, 2, true}}, {"long_head", {{2, 1, 320}, 64, true}},
};

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

// f(E{}) for the element type of the case.
template <class F>
void with_element(bool bf16, F f) {
  if (bf16) {
    f(std::uint16_t{});
  } else {
    f(float{});
  }
}

class DeltaNet : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};

// A prompt of `rows` cut at multiples of 64, then every way to go on from it.
template <class E>
void delta_sequence(const DeltaCase& c, std::int32_t rows) {
  DeltaWorld<E> w(c.shape, 2, c.records);
  for (std::int32_t done = 0; done < rows;) {
    const std::int32_t next = std::min(done == 0 ? 64 : 128, rows - done);
    w.step({{Section::prefill, 0, next}}, "prompt from " + std::to_string(done));
    done += next;
  }
  w.expect_state(0, 0, "after the prompt");
  w.step({{Section::decode, 0, 1}}, "first decode");
  w.step({{Section::decode, 0, 1, 0}}, "decode, taken back");
  w.step({{Section::decode, 0, 1, 1}}, "decode, kept");
  std::int32_t pending = 1;
  for (std::int32_t keep = 0; keep <= c.records; ++keep) {
    w.step({{Section::verify, 0, c.records, std::min(keep, pending)}}, "verify before");
    pending = c.records;
    for (std::int32_t k = 0; k <= pending; ++k) w.expect_state(0, k, "verify");
    w.copy(0, keep, 1);
    w.expect_state(1, 0, "copied");
    w.step({{Section::decode, 1, 1}}, "decode of the copy");
    w.step({{Section::decode, 0, 1, keep}}, "decode after " + std::to_string(keep));
    pending = 1;
    EXPECT_EQ(w.saved(0, 1).size(), w.saved(1, 1).size());
    w.expect_state(0, 1, "decode");
    w.expect_state(1, 1, "decode of the copy");
  }
  w.reset(1);
  // prefill takes records too, and goes on in the middle of a chunk
  w.step({{Section::prefill, 1, 3}, {Section::prefill, 0, rows, 1}}, "prompt behind a decode");
  w.expect_state(0, 0, "second prompt");
  w.expect_state(1, 0, "fresh slot");
}

TEST_P(DeltaNet, SequenceEqualsCpu) {
  const Param p = GetParam();
  with_element(p.bf16, [&](auto e) { delta_sequence<decltype(e)>(kDelta[p.shape], p.rows); });
}

INSTANTIATE_TEST_SUITE_P(All, DeltaNet, testing::ValuesIn(params(kDelta)), [](const auto& info) {
  return kDelta[info.param.shape].name + param_text(info.param);
});

class Attention : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};

template <class E>
void attention_sequence(const AttentionCase& c, std::int32_t rows) {
  AttentionWorld<E> w(c, 2, rows + 128);
  w.step({{Section::prefill, 0, rows}}, "prompt");
  w.step({{Section::decode, 0, 1}, {Section::prefill, 1, std::min(rows, 64)}}, "decode");
  w.step({{Section::verify, 0, 5}, {Section::verify, 1, AttentionWorld<E>::kRows}}, "verify");
  w.set_position(0, rows + 3);  // two rows are taken back
  w.step({{Section::decode, 0, 1}, {Section::decode, 1, 1}}, "decode of both");
  w.step({{Section::verify, 0, 2}, {Section::prefill, 1, 41}}, "all but decode");
}

TEST_P(Attention, SequenceEqualsCpu) {
  const Param p = GetParam();
  with_element(p.bf16, [&](auto e) { attention_sequence<decltype(e)>(kAttention[p.shape].c, p.rows); });
}

INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(params(kAttention)),
                         [](const auto& info) {
                           return kAttention[info.param.shape].name + param_text(info.param);
                         });

class Sequence : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { NIBBLE_NEEDS_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(All, Sequence, testing::Bool(),
                         [](const auto& info) { return info.param ? "bf16" : "f32"; });

// All sections in one batch, several ranges in each, rows of one range on both sides of the grid.
TEST_P(Sequence, DeltaNetInRaggedBatches) {
  with_element(GetParam(), [](auto e) {
    for (const DeltaCase& c : {kDelta[2], kDelta[3], kDelta[5]}) {
      DeltaWorld<decltype(e)> w(c.shape, 6, c.records);
      w.step({{Section::prefill, 4, 65}, {Section::prefill, 0, 64}, {Section::prefill, 5, 1}},
             "three prompts");
      w.step({{Section::decode, 5, 1}, {Section::verify, 0, 3}, {Section::verify, 4, 2},
              {Section::prefill, 2, 130}, {Section::prefill, 1, 7}},
             "all sections");
      w.step({{Section::decode, 1, 1}, {Section::decode, 4, 1, 2}, {Section::decode, 2, 1},
              {Section::verify, 5, 2, 1}, {Section::prefill, 3, 63}, {Section::prefill, 0, 64, 3}},
             "all sections again");
      const std::int32_t pending[] = {0, 1, 1, 0, 1, 2};
      for (std::int32_t slot = 0; slot < 6; ++slot) {
        for (std::int32_t keep = 0; keep <= pending[slot]; ++keep) {
          w.expect_state(slot, keep, "ragged");
        }
      }
    }
  });
}

TEST_P(Sequence, AttentionInRaggedBatches) {
  with_element(GetParam(), [](auto e) {
    for (const AttentionRow& c : {kAttention[1], kAttention[2], kAttention[3]}) {
      AttentionWorld<decltype(e)> w(c.c, 5, 320);
      w.step({{Section::prefill, 4, 65}, {Section::prefill, 0, 64}, {Section::prefill, 3, 1}},
             "three prompts");
      w.step({{Section::decode, 3, 1}, {Section::verify, 0, 3}, {Section::verify, 4, 9},
              {Section::prefill, 2, 130}, {Section::prefill, 1, 7}},
             "all sections");
      w.step({{Section::decode, 1, 1}, {Section::decode, 4, 1}, {Section::decode, 2, 1},
              {Section::verify, 3, 2}, {Section::prefill, 0, 66}},
             "all sections again");
    }
  });
}

// Splits of 1,024 keys: rows that see none, some or all of the last one.
TEST_P(Sequence, AttentionAcrossSplits) {
  with_element(GetParam(), [](auto e) {
    AttentionWorld<decltype(e)> w({{3, 1, 40}, 8, true}, 2, 2300);
    w.step({{Section::prefill, 0, 1016}, {Section::prefill, 1, 2110}}, "prompts");
    w.step({{Section::decode, 1, 1}, {Section::verify, 0, 9}}, "over the border");
    w.step({{Section::decode, 0, 1}, {Section::verify, 1, 4}}, "behind it");
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
    DeltaWorld<decltype(e)> w({1, 1, 520, 5, 4}, 1, 3);
    w.step({{Section::prefill, 0, 70}}, "prompt");
    w.step({{Section::verify, 0, 3}}, "verify");
    w.step({{Section::decode, 0, 1, 2}}, "decode");
    w.expect_state(0, 1, "wide keys");
  });
}

TEST_P(Sequence, AttentionHeadOverTreeSwitch) {
  with_element(GetParam(), [](auto e) {
    AttentionWorld<decltype(e)> w({{2, 1, 516}, 6, true}, 1, 192);
    w.step({{Section::prefill, 0, 70}}, "prompt");
    w.step({{Section::decode, 0, 1}}, "decode");
  });
}

}  // namespace
}  // namespace nibble::test
