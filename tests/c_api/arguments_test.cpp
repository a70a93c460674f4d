// NULL and wrong arguments: a status and a text, never a crash.
#include <functional>
#include <thread>
#include <utility>

#include "fixture.h"

namespace nibble::test {
namespace {

TEST_F(CApi, NullArgumentsAreRefusedByName) {
  SessionHandle s = session();
  StreamHandle stream = generate(s.get(), ids("The"), 4);
  nibble_model* const model = model_.get();
  std::int32_t id = 0;
  std::int64_t n = 0;
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  double value = 0;
  char* text = nullptr;
  nibble_model* new_model = nullptr;
  nibble_session* new_session = nullptr;
  nibble_stream* new_stream = nullptr;
  nibble_mark* mark = nullptr;
  const char* path = kCheckpoint.c_str();
  nibble_synthetic_options synthetic;
  nibble_synthetic_options_init(&synthetic, sizeof synthetic);

  using Call = std::function<nibble_status()>;
  const std::pair<const char*, Call> calls[] = {
      {"path", [&] { return nibble_model_load(nullptr, nullptr, &new_model); }},
      {"out", [&] { return nibble_model_load(path, nullptr, nullptr); }},
      {"what", [&] { return nibble_model_synthetic(nullptr, nullptr, &new_model); }},
      {"out", [&] { return nibble_model_synthetic(&synthetic, nullptr, nullptr); }},
      {"model", [&] { return nibble_model_info(nullptr, &text, nullptr); }},
      {"json", [&] { return nibble_model_info(model, nullptr, nullptr); }},
      {"model", [&] { return nibble_model_stats(nullptr, &text, nullptr); }},
      {"json", [&] { return nibble_model_stats(model, nullptr, nullptr); }},
      {"model", [&] { return nibble_tokenize(nullptr, "x", 1, 1, &id, 1, &count); }},
      {"text", [&] { return nibble_tokenize(model, nullptr, 1, 1, &id, 1, &count); }},
      {"count", [&] { return nibble_tokenize(model, "x", 1, 1, &id, 1, nullptr); }},
      {"model", [&] { return nibble_detokenize(nullptr, &id, 1, 0, &text, nullptr); }},
      {"ids", [&] { return nibble_detokenize(model, nullptr, 1, 0, &text, nullptr); }},
      {"text", [&] { return nibble_detokenize(model, &id, 1, 0, nullptr, nullptr); }},
      {"model", [&] { return nibble_render_chat(nullptr, "[]", nullptr, 1, &text, nullptr); }},
      {"messages_json",
       [&] { return nibble_render_chat(model, nullptr, nullptr, 1, &text, nullptr); }},
      {"text", [&] { return nibble_render_chat(model, "[]", nullptr, 1, nullptr, nullptr); }},
      {"model", [&] { return nibble_session_create(nullptr, &new_session); }},
      {"out", [&] { return nibble_session_create(model, nullptr); }},
      {"session", [&] { return nibble_session_clear(nullptr); }},
      {"session", [&] { return nibble_session_tokens(nullptr, &id, 1, &count); }},
      {"count", [&] { return nibble_session_tokens(s.get(), &id, 1, nullptr); }},
      {"session", [&] { return nibble_session_room(nullptr, &n); }},
      {"tokens", [&] { return nibble_session_room(s.get(), nullptr); }},
      {"session", [&] { return nibble_generate(nullptr, &id, 1, nullptr, &new_stream); }},
      {"prompt", [&] { return nibble_generate(s.get(), nullptr, 1, nullptr, &new_stream); }},
      {"out", [&] { return nibble_generate(s.get(), &id, 1, nullptr, nullptr); }},
      {"stream", [&] { return nibble_stream_next(nullptr, nullptr, nullptr, nullptr); }},
      {"stream", [&] { return nibble_stream_counts(nullptr, &n, &n); }},
      {"session", [&] { return nibble_score(nullptr, &id, 1, &value, 1, &count); }},
      {"tokens", [&] { return nibble_score(s.get(), nullptr, 1, &value, 1, &count); }},
      {"session", [&] { return nibble_mark_create(nullptr, &mark); }},
      {"out", [&] { return nibble_mark_create(s.get(), nullptr); }},
      {"session", [&] { return nibble_session_rewind(nullptr, mark); }},
      {"mark", [&] { return nibble_session_rewind(s.get(), nullptr); }},
      {"mark", [&] { return nibble_mark_tokens(nullptr, &n); }},
      {"mark", [&] { return nibble_mark_bytes(nullptr, &bytes); }},
  };
  int i = 0;
  for (const auto& [argument, call] : calls) {
    SCOPED_TRACE("call " + std::to_string(i++));
    EXPECT_EQ(call(), NIBBLE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(nibble_last_error()).find("] " + std::string(argument) + " is NULL"),
              std::string::npos)
        << nibble_last_error();
  }
  EXPECT_EQ(new_model, nullptr);
  EXPECT_EQ(new_session, nullptr);
  EXPECT_EQ(new_stream, nullptr);
  EXPECT_EQ(mark, nullptr);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(nibble_stream_stop_reason(nullptr), NIBBLE_STOP_NONE);
}

TEST(CArguments, FreeingNullIsFine) {
  nibble_model_free(nullptr);
  nibble_session_free(nullptr);
  nibble_stream_free(nullptr);
  nibble_mark_free(nullptr);
  nibble_free_string(nullptr);
}

TEST(CArguments, EveryStatusHasAName) {
  for (const auto& [status, name] : std::vector<std::pair<nibble_status, const char*>>{
           {NIBBLE_OK, "ok"},
           {NIBBLE_INVALID_ARGUMENT, "invalid_argument"},
           {NIBBLE_NOT_FOUND, "not_found"},
           {NIBBLE_BAD_FILE, "bad_file"},
           {NIBBLE_UNSUPPORTED, "unsupported"},
           {NIBBLE_OUT_OF_MEMORY, "out_of_memory"},
           {NIBBLE_CONTEXT_FULL, "context_full"},
           {NIBBLE_CANCELLED, "cancelled"},
           {NIBBLE_INTERNAL, "internal"},
           {NIBBLE_NO_DEVICE, "no_device"},
           {NIBBLE_BUFFER_TOO_SMALL, "buffer_too_small"},
           {NIBBLE_END, "end"}}) {
    EXPECT_STREQ(nibble_status_name(status), name);
  }
  EXPECT_STREQ(nibble_status_name(static_cast<nibble_status>(99)), "unknown");
  EXPECT_STREQ(nibble_stop_reason_name(NIBBLE_STOP_TEXT), "stop_text");
  EXPECT_STREQ(nibble_stop_reason_name(static_cast<nibble_stop_reason>(64)), "unknown");
}

TEST(CArguments, TheLastErrorBelongsToItsThread) {
  nibble_model* model = nullptr;
  ASSERT_EQ(nibble_model_load("mine", nullptr, &model), NIBBLE_NOT_FOUND);
  const std::string mine = nibble_last_error();
  std::string fresh, theirs;
  std::thread([&] {
    fresh = nibble_last_error();
    nibble_model_load("theirs", nullptr, &model);
    theirs = nibble_last_error();
  }).join();
  EXPECT_EQ(fresh, "");
  EXPECT_NE(theirs.find("theirs"), std::string::npos);
  EXPECT_NE(mine.find("mine"), std::string::npos);
  EXPECT_EQ(nibble_last_error(), mine);
  EXPECT_EQ(model, nullptr);
}

}  // namespace
}  // namespace nibble::test
