// c_session.cpp: the C ABI of sessions, streams and marks.
#include "core/api/c_support.h"

using namespace nibble::c_api;

extern "C" {

nibble_status nibble_session_create(const nibble_model* model, nibble_session** out) {
  constexpr auto who = "nibble_session_create";
  return guarded(who, [&] {
    const auto& m = need(model, who, "model").model;
    need(out, who, "out");
    *out = new nibble_session{std::make_shared<SessionBox>(SessionBox{m, m.new_session()})};
    return NIBBLE_OK;
  });
}

void nibble_session_free(nibble_session* session) {
  delete session;
}

nibble_status nibble_session_clear(nibble_session* session) {
  constexpr auto who = "nibble_session_clear";
  return guarded(who, [&] {
    need(session, who, "session").box->session.clear();
    return NIBBLE_OK;
  });
}

nibble_status nibble_session_tokens(const nibble_session* session, int32_t* out, size_t capacity,
                                    size_t* count) {
  constexpr auto who = "nibble_session_tokens";
  return guarded(who, [&] {
    const auto& tokens = need(session, who, "session").box->session.tokens();
    return give_array<std::int32_t>(tokens, out, capacity, count, who);
  });
}

nibble_status nibble_session_room(const nibble_session* session, int64_t* tokens) {
  constexpr auto who = "nibble_session_room";
  return guarded(who, [&] {
    const auto& box = *need(session, who, "session").box;
    need(tokens, who, "tokens") = box.session.room();
    return NIBBLE_OK;
  });
}

nibble_status nibble_generate(nibble_session* session, const int32_t* prompt, size_t count,
                              const nibble_sampling* sampling, nibble_stream** out) {
  constexpr auto who = "nibble_generate";
  return guarded(who, [&] {
    const auto& box = need(session, who, "session").box;
    need(out, who, "out");
    const auto ids = array(prompt, count, who, "prompt");
    const nibble::Sampling how = sampling_of(read(sampling, who), who);
    *out = new nibble_stream{box, box->session.generate(ids, how), {}};
    return NIBBLE_OK;
  });
}

nibble_status nibble_stream_next(nibble_stream* stream, int32_t* token, const char** text,
                                 size_t* length) {
  constexpr auto who = "nibble_stream_next";
  return guarded(who, [&] {
    nibble_stream& s = need(stream, who, "stream");
    nibble::Piece piece;
    if (!s.stream.next(piece)) return NIBBLE_END;
    s.text.assign(piece.text);
    if (token) *token = piece.token;
    if (text) *text = s.text.c_str();
    if (length) *length = s.text.size();
    return NIBBLE_OK;
  });
}

nibble_stop_reason nibble_stream_stop_reason(const nibble_stream* stream) {
  nibble_stop_reason reason = NIBBLE_STOP_NONE;
  guarded("nibble_stream_stop_reason", [&] {
    if (stream) reason = static_cast<nibble_stop_reason>(stream->stream.stop_reason());
    return NIBBLE_OK;
  });
  return reason;
}

nibble_status nibble_stream_counts(const nibble_stream* stream, int64_t* prompt_tokens,
                                   int64_t* new_tokens) {
  constexpr auto who = "nibble_stream_counts";
  return guarded(who, [&] {
    const auto& s = need(stream, who, "stream").stream;
    if (prompt_tokens) *prompt_tokens = s.prompt_tokens();
    if (new_tokens) *new_tokens = s.new_tokens();
    return NIBBLE_OK;
  });
}

void nibble_stream_free(nibble_stream* stream) {
  delete stream;
}

nibble_status nibble_score(nibble_session* session, const int32_t* tokens, size_t count,
                           double* out, size_t capacity, size_t* written) {
  constexpr auto who = "nibble_score";
  return guarded(who, [&] {
    auto& s = need(session, who, "session").box->session;
    const auto ids = array(tokens, count, who, "tokens");
    // Asked before anything runs: a score that does not fit would have changed the session for
    // nothing.
    const std::size_t needed = count - (s.tokens().empty() && count > 0 ? 1 : 0);
    if (capacity < needed) {
      if (written) *written = needed;
      return fail(NIBBLE_BUFFER_TOO_SMALL, who,
                  ("the array has room for " + std::to_string(capacity) + " values, " +
                   std::to_string(needed) + " are needed")
                      .c_str());
    }
    if (needed > 0) need(out, who, "out");
    const std::vector<double> values = s.score(ids);
    if (values.size() != needed) {
      throw nibble::Error(nibble::ErrorCode::internal,
                          "[nibble_score] expected " + std::to_string(needed) + " values, found " +
                              std::to_string(values.size()));
    }
    std::copy(values.begin(), values.end(), out);
    if (written) *written = needed;
    return NIBBLE_OK;
  });
}

nibble_status nibble_mark_create(const nibble_session* session, nibble_mark** out) {
  constexpr auto who = "nibble_mark_create";
  return guarded(who, [&] {
    const auto& box = *need(session, who, "session").box;
    need(out, who, "out");
    *out = new nibble_mark{box.model, box.session.mark()};
    return NIBBLE_OK;
  });
}

nibble_status nibble_session_rewind(nibble_session* session, const nibble_mark* mark) {
  constexpr auto who = "nibble_session_rewind";
  return guarded(who, [&] {
    auto& s = need(session, who, "session").box->session;
    s.rewind(need(mark, who, "mark").mark);
    return NIBBLE_OK;
  });
}

nibble_status nibble_mark_tokens(const nibble_mark* mark, int64_t* tokens) {
  constexpr auto who = "nibble_mark_tokens";
  return guarded(who, [&] {
    const auto& m = need(mark, who, "mark").mark;
    need(tokens, who, "tokens") = m.tokens();
    return NIBBLE_OK;
  });
}

nibble_status nibble_mark_bytes(const nibble_mark* mark, uint64_t* bytes) {
  constexpr auto who = "nibble_mark_bytes";
  return guarded(who, [&] {
    const auto& m = need(mark, who, "mark").mark;
    need(bytes, who, "bytes") = m.bytes();
    return NIBBLE_OK;
  });
}

void nibble_mark_free(nibble_mark* mark) {
  delete mark;
}

}  // extern "C"
