#include "nibble/session.h"

#include <algorithm>

#include "core/api/impl.h"
#include "core/text/utf8_repair.h"
#include "nibble/error.h"

namespace nibble {
namespace {

void check(const Sampling& how) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "[sampling] " + what);
  };
  if (!(how.temperature >= 0 && how.temperature <= limits::temperature)) {
    refuse("temperature: expected 0 to 100, found " + std::to_string(how.temperature));
  }
  if (how.top_k < 0) refuse("top_k: expected 0 or more, found " + std::to_string(how.top_k));
  if (!(how.top_p > 0 && how.top_p <= 1)) {
    refuse("top_p: expected more than 0 and at most 1, found " + std::to_string(how.top_p));
  }
  if (!(how.min_p >= 0 && how.min_p <= 1)) refuse("min_p: expected 0 to 1, found " + std::to_string(how.min_p));
  if (!(how.repetition_penalty >= limits::least_repetition_penalty &&
        how.repetition_penalty <= limits::repetition_penalty)) {
    refuse("repetition_penalty: expected 0.01 to 100, found " + std::to_string(how.repetition_penalty));
  }
  if (how.max_new_tokens < 0) {
    refuse("max_new_tokens: expected 0 or more, found " + std::to_string(how.max_new_tokens));
  }
  for (const std::string& s : how.stop) {
    if (s.empty()) refuse("stop: a stop text is empty");
    if (const auto at = utf8_error(s)) {
      refuse("stop: a stop text is not UTF-8 at byte " + std::to_string(*at));
    }
  }
}

}  // namespace

const char* stop_reason_name(StopReason r) {
  constexpr const char* kNames[] = {"none", "stop_token", "stop_text", "length", "context"};
  return kNames[static_cast<int>(r)];
}

TokenStream::TokenStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&&) noexcept = default;
TokenStream::~TokenStream() = default;

bool TokenStream::next(Piece& piece) {
  if (!impl_->current() || !impl_->model->engine->next(*impl_->sequence, piece.token, impl_->text)) {
    return false;
  }
  piece.text = impl_->text;
  return true;
}

std::size_t TokenStream::next_of_each(std::span<TokenStream> streams, std::span<Piece> pieces) {
  if (streams.size() != pieces.size()) {
    throw Error(ErrorCode::invalid_argument, "[session] next_of_each: expected a piece for each of " +
                                                 std::to_string(streams.size()) + " streams, found " +
                                                 std::to_string(pieces.size()));
  }
  struct Readers {
    std::span<TokenStream> all;
    explicit Readers(std::span<TokenStream> streams) : all(streams) {
      for (const TokenStream& s : all) {
        if (s.impl_->current()) s.impl_->model->engine->arrive(*s.impl_->sequence);
      }
    }
    ~Readers() {
      for (const TokenStream& s : all) {
        if (s.impl_->current()) s.impl_->model->engine->leave(*s.impl_->sequence);
      }
    }
  } const readers{streams};
  std::size_t count = 0;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    pieces[i] = {};
    if (streams[i].next(pieces[i])) {
      ++count;
    } else {
      pieces[i] = {};
    }
    // So all are at the same token when the round ends, whoever was ahead.
    if (streams[i].impl_->current()) streams[i].impl_->model->engine->serve(*streams[i].impl_->sequence);
  }
  return count;
}

StopReason TokenStream::stop_reason() const {
  return impl_->current() ? impl_->sequence->reason : StopReason::length;
}
std::int64_t TokenStream::prompt_tokens() const { return impl_->sequence->prompt_tokens; }
std::int64_t TokenStream::new_tokens() const { return impl_->sequence->new_tokens; }

std::int64_t Mark::tokens() const { return impl_->place.tokens; }
std::uint64_t Mark::bytes() const { return impl_->place.state->bytes(); }

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

TokenStream Session::generate(std::span<const std::int32_t> prompt, const Sampling& how) {
  check(how);
  impl_->model->engine->submit(*impl_->sequence, prompt, how);
  auto stream = std::make_unique<TokenStream::Impl>();
  stream->model = impl_->model;
  stream->sequence = impl_->sequence;
  stream->order = impl_->sequence->order;
  return TokenStream(std::move(stream));
}

std::vector<double> Session::score(std::span<const std::int32_t> tokens) {
  return impl_->model->engine->score(*impl_->sequence, tokens);
}

Mark Session::mark() const {
  auto mark = std::make_shared<Mark::Impl>();
  mark->session = impl_->id;
  mark->place = impl_->model->engine->mark(*impl_->sequence);
  mark->serial = impl_->next_serial++;
  impl_->marks.emplace_back(mark->serial, mark->place.tokens);
  return Mark(std::move(mark));
}

void Session::rewind(const Mark& to) {
  const Mark::Impl& mark = to.impl();
  const auto known = [&](const auto& m) { return m.first == mark.serial; };
  if (mark.session != impl_->id) {
    throw Error(ErrorCode::invalid_argument, "[session] rewind: the mark belongs to another session");
  }
  if (std::none_of(impl_->marks.begin(), impl_->marks.end(), known)) {
    throw Error(ErrorCode::invalid_argument,
                "[session] rewind: the mark at " + std::to_string(mark.place.tokens) +
                    " tokens lies on a branch that an earlier rewind or clear left");
  }
  impl_->model->engine->rewind(*impl_->sequence, mark.place);
  std::erase_if(impl_->marks, [&](const auto& m) { return m.second > mark.place.tokens; });
}

void Session::clear() {
  impl_->model->engine->clear(*impl_->sequence);
  impl_->marks.clear();
}

const std::vector<std::int32_t>& Session::tokens() const { return impl_->sequence->tokens; }
std::int64_t Session::room() const { return impl_->model->engine->room(*impl_->sequence); }

}  // namespace nibble
