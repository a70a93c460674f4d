// Sized option structs, and callbacks.
#include <cstring>
#include <limits>
#include <stdexcept>

#include "fixture.h"
#include "nibble/nibble.hpp"

namespace nibble::test {
namespace {

nibble_status load_status(const nibble_load_options* o) {
  nibble_model* model = nullptr;
  const nibble_status status = nibble_model_load(kCheckpoint.c_str(), o, &model);
  EXPECT_EQ(model != nullptr, status == NIBBLE_OK);
  nibble_model_free(model);
  return status;
}

TEST(COptions, InitGivesTheDefaultsOfTheCppApi) {
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  const LoadOptions d;
  EXPECT_EQ(o.struct_size, sizeof o);
  EXPECT_EQ(o.kv_tokens, d.kv_tokens);
  EXPECT_EQ(o.max_sequences, d.max_sequences);
  EXPECT_EQ(o.step_tokens, d.step_tokens);
  EXPECT_EQ(o.max_drafts, d.max_drafts);
  EXPECT_EQ(o.run_ahead, -1);
  EXPECT_FALSE(d.run_ahead.has_value());
  EXPECT_EQ(o.on_progress, nullptr);

  nibble_sampling s;
  nibble_sampling_init(&s, sizeof s);
  const Sampling e;
  EXPECT_EQ(s.temperature, e.temperature);
  EXPECT_EQ(s.top_k, e.top_k);
  EXPECT_EQ(s.top_p, e.top_p);
  EXPECT_EQ(s.min_p, e.min_p);
  EXPECT_EQ(s.repetition_penalty, e.repetition_penalty);
  EXPECT_EQ(s.seed, e.seed);
  EXPECT_EQ(s.max_new_tokens, e.max_new_tokens);

  nibble_synthetic_options y;
  nibble_synthetic_options_init(&y, sizeof y);
  const SyntheticOptions f;
  EXPECT_EQ(y.shape, f.shape);
  EXPECT_EQ(y.mix, f.mix);
  EXPECT_EQ(y.seed, f.seed);
  EXPECT_EQ(y.layers, f.layers);
}

TEST(COptions, InitWritesNoByteBeyondTheCallersSize) {
  unsigned char memory[sizeof(nibble_load_options)];
  std::memset(memory, 0xAB, sizeof memory);
  const std::size_t older = offsetof(nibble_load_options, on_progress);
  nibble_load_options_init(reinterpret_cast<nibble_load_options*>(memory), older);
  for (std::size_t i = older; i < sizeof memory; ++i) ASSERT_EQ(memory[i], 0xAB) << i;
  std::size_t size = 0;
  std::memcpy(&size, memory, sizeof size);
  EXPECT_EQ(size, older);
  nibble_load_options_init(nullptr, sizeof memory);
}

TEST(COptions, AStructThatNobodyInitialisedIsRefused) {
  nibble_load_options o{};
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("nibble_load_options_init"), std::string::npos);
  nibble_load_options_init(&o, sizeof o);
  o.struct_size = ~std::size_t{0};
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
}

// A program built against a later header, with a field that this library does not know.
TEST(COptions, ALongerStructIsTakenUnlessItAsksForMore) {
  struct Later {
    nibble_load_options now;
    std::uint64_t later_field;
  } o;
  nibble_load_options_init(&o.now, sizeof o);
  EXPECT_EQ(o.later_field, 0u);
  o.now.kv_tokens = 128;
  EXPECT_EQ(load_status(&o.now), NIBBLE_OK) << nibble_last_error();
  o.later_field = 7;
  EXPECT_EQ(load_status(&o.now), NIBBLE_UNSUPPORTED);
}

TEST(COptions, EveryModeOfActivationsLoads) {
  for (const int mode : {NIBBLE_ACTIVATIONS_A16, NIBBLE_ACTIVATIONS_DECLARED, NIBBLE_ACTIVATIONS_A8}) {
    nibble_load_options o;
    nibble_load_options_init(&o, sizeof o);
    o.backend = "cpu";
    o.activations = mode;
    EXPECT_EQ(load_status(&o), NIBBLE_OK) << mode << ": " << nibble_last_error();
  }
}

TEST(COptions, StepsAheadAreSwitched) {
  for (const int ahead : {-1, 0, 1}) {
    nibble_load_options o;
    nibble_load_options_init(&o, sizeof o);
    o.backend = "cpu";
    o.run_ahead = ahead;
    EXPECT_EQ(load_status(&o), NIBBLE_OK) << ahead << ": " << nibble_last_error();
  }
}

TEST(COptions, ValuesOutOfRangeAreRefused) {
  const auto with = [](auto change) {
    nibble_load_options o;
    nibble_load_options_init(&o, sizeof o);
    change(o);
    return load_status(&o);
  };
  EXPECT_EQ(with([](auto& o) { o.activations = 3; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto& o) { o.run_ahead = 2; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto& o) { o.reserved_2 = 1; }), NIBBLE_INVALID_ARGUMENT);
  for (const int other : {-1, 2}) {
    EXPECT_EQ(with([&](auto& o) { o.kv_cache_dtype = other; }), NIBBLE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(nibble_last_error()).find("kv_cache_dtype: expected 0 (auto) or 1 (fp8), found " + std::to_string(other)),
              std::string::npos)
        << nibble_last_error();
  }
  EXPECT_EQ(with([](auto& o) { o.kv_cache_dtype = NIBBLE_KV_CACHE_DTYPE_FP8; }), NIBBLE_OK);
  EXPECT_EQ(with([](auto& o) { o.kv_tokens = -1; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto& o) { o.max_sequences = 0; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto& o) { o.backend = "abacus"; }), NIBBLE_NO_DEVICE);
  EXPECT_EQ(with([](auto& o) {
              o.backend = "cpu";
              o.kernels = "abacus";
            }),
            NIBBLE_NO_DEVICE);
}

// NULL asks for the best there is; an empty text is a variable that was never set.
TEST(COptions, EmptyTextsAreRefused) {
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  o.kernels = "";
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("kernels: expected a name, or NULL"), std::string::npos)
      << nibble_last_error();
  nibble_load_options_init(&o, sizeof o);
  o.backend = "";
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
}

TEST(COptions, BackendAndItsOwnFieldsAgree) {
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  o.kv_tokens = 128;
  o.backend = "cpu:threads=1,kernels=portable";
  o.threads = 2;
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("expected what backend says, 1, found 2"), std::string::npos)
      << nibble_last_error();
  o.threads = 1;
  o.kernels = "avx2";
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("\"portable\", found \"avx2\""), std::string::npos)
      << nibble_last_error();
  o.kernels = "portable";
  EXPECT_EQ(load_status(&o), NIBBLE_OK) << nibble_last_error();
}

TEST(COptions, SizesAndSamplingOutOfRangeAreRefused) {
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  o.struct_size = 5000;
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("to 4096, found 5000"), std::string::npos)
      << nibble_last_error();
  nibble_load_options_init(&o, sizeof o);
  o.threads = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(load_status(&o), NIBBLE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(nibble_last_error()).find("threads: expected 0 (all) to"),
            std::string::npos);

  const ModelHandle model = load(128, 1);
  nibble_session* raw = nullptr;
  ASSERT_EQ(nibble_session_create(model.get(), &raw), NIBBLE_OK);
  const SessionHandle session(raw);
  const auto with = [&](auto change) {
    nibble_sampling how;
    nibble_sampling_init(&how, sizeof how);
    change(how);
    const std::int32_t token = 1;
    nibble_stream* stream = nullptr;
    const nibble_status status = nibble_generate(raw, &token, 1, &how, &stream);
    nibble_stream_free(stream);
    return status;
  };
  const float infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(with([&](auto& s) { s.temperature = infinite; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([&](auto& s) { s.repetition_penalty = infinite; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto& s) { s.ignore_model_stop_tokens = 7; }), NIBBLE_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto& s) { s.max_new_tokens = 0; }), NIBBLE_OK) << nibble_last_error();
}

struct Seen {
  std::uint64_t calls = 0, last = 0, total = 0;
  bool ordered = true;
  std::vector<std::string> messages;
  std::uint64_t stop_after = ~std::uint64_t{0};
};

int on_progress(void* user, const char* stage, std::uint64_t done, std::uint64_t total) {
  auto& seen = *static_cast<Seen*>(user);
  seen.ordered &= done >= seen.last && done <= total && *stage != '\0';
  seen.last = done;
  seen.total = total;
  return ++seen.calls < seen.stop_after;
}

void on_message(void* user, const char* message) {
  static_cast<Seen*>(user)->messages.emplace_back(message);
}

nibble_load_options watched(Seen& seen) {
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  o.kv_tokens = 128;
  o.on_progress = on_progress;
  o.on_message = on_message;
  o.user = &seen;
  return o;
}

TEST(CCallbacks, ProgressGoesToTheEndAndMessagesArrive) {
  Seen seen;
  const nibble_load_options o = watched(seen);
  ASSERT_EQ(load_status(&o), NIBBLE_OK) << nibble_last_error();
  EXPECT_TRUE(seen.ordered);
  EXPECT_GT(seen.calls, 1u);
  EXPECT_EQ(seen.last, seen.total);
  bool vision = false;
  for (const std::string& m : seen.messages) vision |= m.find("vision") != std::string::npos;
  EXPECT_TRUE(vision) << "the checkpoint holds a vision tensor: a message says that it was skipped";
}

TEST(CCallbacks, ProgressCancels) {
  Seen seen;
  seen.stop_after = 2;
  const nibble_load_options o = watched(seen);
  EXPECT_EQ(load_status(&o), NIBBLE_CANCELLED);
  EXPECT_EQ(seen.calls, 2u);
}

// A C++ caller's exception must not unwind through C; it becomes a status.
TEST(CCallbacks, AThrowingCallbackBecomesAStatus) {
  Seen seen;
  nibble_load_options o = watched(seen);
  o.on_progress = [](void*, const char*, std::uint64_t, std::uint64_t) -> int {
    throw std::runtime_error("from the callback");
  };
  EXPECT_EQ(load_status(&o), NIBBLE_INTERNAL);
  EXPECT_NE(std::string(nibble_last_error()).find("from the callback"), std::string::npos);
  o.on_progress = [](void*, const char*, std::uint64_t, std::uint64_t) -> int { throw 7; };
  EXPECT_EQ(load_status(&o), NIBBLE_INTERNAL);
}

TEST(CSynthetic, RunsWithoutATokenizer) {
  nibble_synthetic_options y;
  nibble_synthetic_options_init(&y, sizeof y);
  y.shape = "tiny";
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  o.kv_tokens = 128;
  nibble_model* raw = nullptr;
  ASSERT_EQ(nibble_model_synthetic(&y, &o, &raw), NIBBLE_OK) << nibble_last_error();
  const ModelHandle model(raw);
  std::size_t n = 0;
  EXPECT_EQ(nibble_tokenize(model.get(), "x", 1, 1, nullptr, 0, &n), NIBBLE_NOT_FOUND);
  char* text = nullptr;
  EXPECT_EQ(nibble_render_chat(model.get(), "[]", nullptr, 1, &text, nullptr), NIBBLE_NOT_FOUND);
  nibble_session* s = nullptr;
  ASSERT_EQ(nibble_session_create(model.get(), &s), NIBBLE_OK);
  const SessionHandle session(s);
  const std::int32_t prompt[] = {1, 2, 3};
  nibble_sampling how;
  nibble_sampling_init(&how, sizeof how);
  how.max_new_tokens = 5;
  nibble_stream* stream = nullptr;
  ASSERT_EQ(nibble_generate(s, prompt, 3, &how, &stream), NIBBLE_OK) << nibble_last_error();
  const StreamHandle owner(stream);
  int made = 0;
  std::int32_t token = -1;
  while (nibble_stream_next(stream, &token, nullptr, nullptr) == NIBBLE_OK) {
    EXPECT_GE(token, 0);
    ++made;
  }
  EXPECT_EQ(made, 5);
  y.shape = "no such shape";
  EXPECT_EQ(nibble_model_synthetic(&y, &o, &raw), NIBBLE_NOT_FOUND);
}

}  // namespace
}  // namespace nibble::test
