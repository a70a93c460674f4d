// In which profiles a model's attention runs on matrix units (core/numerics/attention_order.h): sm90 and sm120, and sm70 of
// prefill rows.
#include "tests/cpu/attention_units_reference.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

constexpr std::int64_t kDim = 64, kHeads = 4, kKvHeads = 2;  // of model/hf-nvfp4-ct

const Trace::Rows& rows_of(const Trace& trace, std::size_t layer, const std::string& op) {
  return trace.ops.at("model.layers." + std::to_string(4 * layer + 3) + ".self_attn." + op);
}

// Outputs of a layer from its queries and the cache alone, as the contract for matrix units has them.
std::vector<float> expected(const std::vector<float>& q, const HostState::KvLayer& cache, Section section, bool sm70) {
  const std::int64_t rows = static_cast<std::int64_t>(q.size()) / (kHeads * kDim);
  const std::int64_t keys = static_cast<std::int64_t>(cache.k.size()) / (kKvHeads * kDim);
  std::vector<float> y(q.size());
  for (std::int64_t h = 0; h < kHeads; ++h) {
    AttentionHead head{kDim, keys - rows, rows, {}, {}, {}, 0.125f, sm70};
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto begin = q.begin() + (i * kHeads + h) * kDim;
      head.q.insert(head.q.end(), begin, begin + kDim);
    }
    const std::int64_t kv = h / (kHeads / kKvHeads) * keys * kDim;
    head.k.assign(cache.k.begin() + kv, cache.k.begin() + kv + keys * kDim);
    head.v.assign(cache.v.begin() + kv, cache.v.begin() + kv + keys * kDim);
    const Row got = reference_units(head, section);
    for (std::int64_t i = 0; i < rows * kDim; ++i) {
      y[at((i / kDim * kHeads + h) * kDim + i % kDim)] = sm70 ? f16(got[at(i)]) : bf16(got[at(i)]);
    }
  }
  return y;
}

class AttentionOnUnits : public testing::TestWithParam<const char*> {
 protected:
  // Attention as an op of its own.
  static Device parts(const char* text) {
    Device d = Device::parse(text);
    d.fused_gate = false;
    return d;
  }
  static bool sm70() { return GetParam() == std::string("cpu:mirror=sm70"); }
  static bool on_units(Section section) {
    const std::string device = GetParam();
    return device == "cpu:mirror=sm90" || device == "cpu:mirror=sm120" || (sm70() && section == Section::prefill);
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionOnUnits,
                         testing::Values("cpu", "cpu:profile=bf16", "cpu:mirror=sm70", "cpu:mirror=sm90",
                                         "cpu:mirror=sm120"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name == "cpu" ? "f32" : name.substr(name.find('=') + 1);
                         });

TEST_P(AttentionOnUnits, InTheProfilesOfCards) {
  Model model = load(options(), parts(GetParam()));
  const auto all = long_prompt(140 + 9);
  const auto ids = std::span(all);
  Session session = model.new_session();
  const auto same = [&](std::span<const std::int32_t> more, Section section) {
    Trace trace(model, {});
    read_all(session.generate(more, tokens(1)));
    const HostState state = state_of(session);
    bool equal = true;
    for (std::size_t layer = 0; layer < state.kv.size(); ++layer) {
      const auto& q = rows_of(trace, layer, "rope").values;
      equal &= same_bytes(rows_of(trace, layer, "attention").values, expected(q, state.kv[layer], section, sm70() && section == Section::prefill));
    }
    EXPECT_EQ(state.kv.size(), 2u);
    return equal;
  };
  EXPECT_EQ(same(ids.first(140), Section::prefill), on_units(Section::prefill));
  EXPECT_EQ(same(ids.subspan(140), Section::prefill), on_units(Section::prefill));  // from inside a tile
  EXPECT_EQ(same({}, Section::decode), on_units(Section::decode));
}

// What comes out of the first attention layer is near profile f32.
TEST_P(AttentionOnUnits, LiesNearF32) {
  if (GetParam() == std::string("cpu")) GTEST_SKIP() << "it is f32";
  Model f32 = load(options(), parts("cpu")), model = load(options(), parts(GetParam()));
  const auto ids = long_prompt(300);
  const auto outputs = [&](Model& of) {
    Trace trace(of, {});
    Session session = of.new_session();
    read_all(session.generate(ids, tokens(1)));
    return rows_of(trace, 0, "attention").values;
  };
  const double off = relative_l2(outputs(model), outputs(f32));
  std::printf("%s: first attention layer %.3g relative L2 from f32\n", GetParam(), off);
  EXPECT_GT(off, 0);
  EXPECT_LE(off, GetParam() == std::string("cpu:mirror=sm70") ? 1e-3 : 5e-3);  // seen: 4.4e-4, 1.8e-3 (bf16), 3.5e-3
}

}  // namespace
}  // namespace nibble::test
