// Keys and values in fp8 (LoadOptions::kv_cache_dtype) in every profile that takes them: the same bits whatever the cut, the
// threads, the instruction set and the neighbours, marks that bring them back, and the golden answers.
#include <cstdio>

#include "core/numerics/kv_codes.h"
#include "tests/engine/support.h"

namespace nibble::test {
namespace {

LoadOptions in_fp8(LoadOptions how = options()) {
  how.kv_cache_dtype = KvCacheDtype::fp8;
  return how;
}

class KvCacheInFp8 : public testing::TestWithParam<const char*> {
 protected:
  Device device(const std::string& more = "") const {
    const std::string name = GetParam();
    return Device::parse(name + (more.empty() ? "" : (name == "cpu" ? ":" : ",") + more));
  }
};
INSTANTIATE_TEST_SUITE_P(All, KvCacheInFp8, testing::Values("cpu", "cpu:profile=bf16", "cpu:mirror=sm90", "cpu:mirror=sm120"),
                         [](const auto& tested) {
                           const std::string name = tested.param;
                           return name == "cpu" ? "f32" : name.substr(name.find('=') + 1);
                         });

TEST_P(KvCacheInFp8, TakesLessMemoryAndSaysSo) {
  const Model model = load(in_fp8(), device()), other = load(options(), device());
  EXPECT_EQ(model.info().kv_cache_dtype, "fp8");
  EXPECT_EQ(other.info().kv_cache_dtype, "auto");
  // a byte for each of 64 elements and a float for all, instead of a float each
  EXPECT_EQ(model.info().kv_bytes * 64 * 4, other.info().kv_bytes * (64 + 4));
}

// Every element is a code times its row's scale, so that the largest of a row is 448 or -448 times it.
TEST_P(KvCacheInFp8, StateHoldsCodes) {
  Model model = load(in_fp8(), device());
  const HostState state = prefill(model, long_prompt(70), 3).state;
  ASSERT_EQ(state.kv.size(), 2u);
  for (const HostState::KvLayer& layer : state.kv) {
    for (const auto* values : {&layer.k, &layer.v}) {
      for (std::size_t row = 0; row < values->size(); row += 64) {
        float most = 0.0f;
        for (std::size_t d = 0; d < 64; ++d) most = std::max(most, std::fabs((*values)[row + d]));
        const float scale = num::div(most, 448.0f);
        for (std::size_t d = 0; d < 64; ++d) {
          const float v = (*values)[row + d];
          EXPECT_NEAR(num::kv_value(num::kv_code(v, scale), scale), v, 1e-6f * most) << row << ", " << d;
        }
      }
    }
  }
}

TEST_P(KvCacheInFp8, CutsThreadsAndKernelsChangeNoBit) {
  const auto prompt = long_prompt(140);
  Model whole_model = load(in_fp8(), device());
  const Result whole = prefill(whole_model, prompt, 3);
  const auto expect_same = [&](const LoadOptions& how, const Device& on, const std::string& what) {
    Model model = load(how, on);
    const Result run = prefill(model, prompt, 3);
    EXPECT_TRUE(same_bytes(run.logits, whole.logits)) << what;
    EXPECT_EQ(run.tokens, whole.tokens) << what;
    expect_same_state(run.state, whole.state, what);
  };
  expect_same(in_fp8(options(1, 128)), device(), "steps of 128");
  expect_same(in_fp8(), device("threads=1"), "one thread");
  expect_same(in_fp8(), device("kernels=portable"), "portable kernels");
}

TEST_P(KvCacheInFp8, NeighboursChangeNoBit) {
  Model model = load(in_fp8(options(3)), device());
  const std::vector<std::vector<std::int32_t>> prompts = {long_prompt(130), ids_of("capital"), long_prompt(61)};
  std::vector<std::vector<std::int32_t>> alone;
  for (const auto& prompt : prompts) alone.push_back(prefill(model, prompt, 9).tokens);
  std::vector<Session> sessions;
  std::vector<TokenStream> streams;
  for (std::size_t i = 0; i < prompts.size(); ++i) sessions.push_back(model.new_session());
  for (std::size_t i = 0; i < prompts.size(); ++i) streams.push_back(sessions[i].generate(prompts[i], tokens(9)));
  for (std::size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(read_all(std::move(streams[i])), alone[i]) << i;
}

TEST_P(KvCacheInFp8, AMarkBringsItBack) {
  Model model = load(in_fp8(), device());
  Session session = model.new_session();
  read_all(session.generate(long_prompt(70), tokens(4)));
  const Mark mark = session.mark();
  const auto first = read_all(session.generate({}, tokens(20)));
  const HostState behind = state_of(session);
  session.rewind(mark);
  EXPECT_EQ(read_all(session.generate({}, tokens(20))), first);
  expect_same_state(state_of(session), behind, "after a mark");
}

// The golden prompts' answers and logits beside those of the operand type: printed, and how many tokens agree.
TEST_P(KvCacheInFp8, GoldenAnswers) {
  Model coded = load(in_fp8(), device()), exact = load(options(), device());
  for (const char* name : {"capital", "chat_japan", "long700"}) {
    const auto prompt = ids_of(name);
    const Result a = prefill(coded, prompt, 32), b = prefill(exact, prompt, 32);
    std::size_t same = 0;
    while (same < a.tokens.size() && a.tokens[same] == b.tokens[same]) ++same;
    const std::vector<float> first_a(a.logits.begin(), a.logits.begin() + 2048), first_b(b.logits.begin(), b.logits.begin() + 2048);
    std::printf("%s, %s: logits behind the prompt %.3g relative L2 from keys and values that are not fp8, first %zu of %zu tokens the same\n",
                GetParam(), name, relative_l2(first_a, first_b), same, b.tokens.size());
    for (const float x : a.logits) ASSERT_TRUE(std::isfinite(x)) << name;
    EXPECT_FALSE(same_bytes(a.logits, b.logits)) << name;
    EXPECT_EQ(same, b.tokens.size()) << name;
  }
}

TEST(KvCacheDtype, OthersAreRefused) {
  EXPECT_EQ(message_of([] { kv_cache_dtype_from_name("int4"); }),
            "[load options] kv_cache_dtype: expected auto or fp8, found \"int4\"");
  for (const KvCacheDtype d : {KvCacheDtype::automatic, KvCacheDtype::fp8}) {
    EXPECT_EQ(kv_cache_dtype_from_name(kv_cache_dtype_name(d)), d);
  }
  EXPECT_EQ(message_of([] { load(in_fp8(), Device::parse("cpu:mirror=sm70")); }),
            "[cpu] kv_cache_dtype: expected \"auto\" in profile sm70, whose f16 has no room for weights times small scales, "
            "found \"fp8\"");
}

}  // namespace
}  // namespace nibble::test
