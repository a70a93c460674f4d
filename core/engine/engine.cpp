#include "core/engine/engine.h"

#include <algorithm>

#include "nibble/error.h"

namespace nibble {

EngineLoop::EngineLoop(std::unique_ptr<Backend> backend, EngineConfig config, const BpeTokenizer* tokenizer)
    : backend_(std::move(backend)),
      config_(std::move(config)),
      tokenizer_(tokenizer),
      pages_(config_.sizes.pages),
      sequences_(static_cast<std::size_t>(config_.sizes.slots)) {
  for (std::int32_t s = config_.sizes.slots; s-- > 0;) free_slots_.push_back(s);
  // Steps fill these again and again; none of them grows there.
  const std::size_t slots = sequences_.size();
  const auto page = static_cast<std::size_t>(kPageTokens);  // rows of a scoring step
  batch_.tokens.reserve(std::max(static_cast<std::size_t>(config_.step_tokens), page));
  batch_.pages.reserve(static_cast<std::size_t>(config_.sizes.pages));
  batch_.ranges.reserve(slots);
  batch_.output_rows.reserve(std::max(slots, page));
  batch_.sampling.reserve(slots);
  batch_.targets.reserve(page);
  batch_.taken_back.reserve(slots);
  for (Flight& f : flights_.places()) {
    f.sequences.reserve(slots);
    f.owners.reserve(slots);
  }
  output_.tokens.reserve(slots);
  output_.logprobs.reserve(page);
  views_.reserve(slots);
  scheduled_.reserve(slots);
  output_owner_.reserve(slots);
}

std::shared_ptr<Sequence> EngineLoop::open() {
  const std::lock_guard lock(mutex_);
  if (free_slots_.empty()) {
    throw Error(ErrorCode::out_of_memory,
                "[session] all " + std::to_string(config_.sizes.slots) +
                    " sequence slots are in use: load with a larger max_sequences or end a session");
  }
  auto s = std::make_shared<Sequence>();
  s->slot = free_slots_.back();
  backend_->reset_slot(s->slot);
  free_slots_.pop_back();
  sequences_[static_cast<std::size_t>(s->slot)] = s;
  return s;
}

void EngineLoop::close(Sequence& s) {
  const std::lock_guard lock(mutex_);
  forget(s);
  pages_.shrink(s.pages, 0);
  free_slots_.push_back(s.slot);
  s.running = false;
  s.unread_count = 0;
  s.tail_text.clear();
  sequences_[static_cast<std::size_t>(s.slot)].reset();
}

void EngineLoop::expect_usable(const Sequence& s) const {
  if (s.failed) {
    throw Error(ErrorCode::internal, "[session] an earlier step of this session failed: clear() it first");
  }
  if (s.running || s.unread_count > 0) {
    throw Error(ErrorCode::invalid_argument,
                "[session] an answer is still running: read its stream to the end or drop it first");
  }
}

void EngineLoop::check_tokens(std::span<const std::int32_t> tokens) const {
  for (const std::int32_t t : tokens) {
    if (t < 0 || t >= config_.vocab) {
      throw Error(ErrorCode::invalid_argument, "[session] token id " + std::to_string(t) +
                                                   " is out of range: the model has ids 0 to " +
                                                   std::to_string(config_.vocab - 1));
    }
  }
}

std::int64_t EngineLoop::running() const {
  const std::lock_guard lock(mutex_);
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const auto& s) { return s && s->running; });
}

std::int64_t EngineLoop::room(const Sequence& s) const {
  const std::lock_guard lock(mutex_);
  return config_.capacity - static_cast<std::int64_t>(s.tokens.size());
}

// Pages for `more` tokens beyond those held; `spare` positions must stay free behind them.
void EngineLoop::reserve(Sequence& s, std::int64_t more, std::int64_t spare) {
  const auto held = static_cast<std::int64_t>(s.tokens.size());
  if (more > config_.capacity - held - spare) {
    throw Error(ErrorCode::context_full,
                "[session] a prompt of " + std::to_string(more) + " tokens does not fit: the session holds " +
                    std::to_string(held) + " of " + std::to_string(config_.capacity) +
                    " positions" +
                    (spare > 0 ? " and one must stay free for the answer" : "") +
                    " (kv_tokens and the model's max_position_embeddings set the limit)");
  }
  s.pages.reserve(static_cast<std::size_t>(pages_for(held + more)));
  bool fits = pages_.grow(s.pages, held + more);
  if (!fits) {
    drop_all_ahead();  // a page that a row ahead took is not needed yet
    fits = pages_.grow(s.pages, held + more);
  }
  if (!fits) {
    throw Error(ErrorCode::context_full,
                "[session] a prompt of " + std::to_string(more) + " tokens does not fit: it needs " +
                    std::to_string(pages_for(held + more) - static_cast<std::int64_t>(s.pages.size())) +
                    " more KV pages of 64 tokens, " + std::to_string(pages_.free_pages()) +
                    " are free; load with a larger kv_tokens or end other sessions");
  }
}

void EngineLoop::submit(Sequence& s, std::span<const std::int32_t> prompt, const Sampling& how) {
  const std::lock_guard lock(mutex_);
  expect_usable(s);
  check_tokens(prompt);
  check_tokens(how.stop_tokens);
  if (s.waiting() + static_cast<std::int64_t>(prompt.size()) == 0) {
    throw Error(ErrorCode::invalid_argument,
                s.tokens.empty() ? "[session] the prompt is empty and so is the session"
                                 : "[session] the prompt is empty and no token waits to be run");
  }
  reserve(s, static_cast<std::int64_t>(prompt.size()), /*spare=*/1);
  // The answer's room, so that the lists do not grow while it is made.
  const std::int64_t held = static_cast<std::int64_t>(s.tokens.size() + prompt.size());
  const std::int64_t most = std::min(config_.capacity, held + how.max_new_tokens);
  s.tokens.reserve(static_cast<std::size_t>(most));
  s.pages.reserve(static_cast<std::size_t>(pages_for(most)));

  s.tokens.insert(s.tokens.end(), prompt.begin(), prompt.end());
  if (!prompt.empty()) s.last_sampled = false;
  s.order = next_order_++;
  s.how = how;
  s.stop_tokens = how.stop_tokens;
  if (!how.ignore_model_stop_tokens) {
    s.stop_tokens.insert(s.stop_tokens.end(), config_.stop_tokens.begin(), config_.stop_tokens.end());
  }
  s.prompt_tokens = s.waiting();
  s.new_tokens = 0;
  s.unread_count = 0;
  s.taken_back.reserve(static_cast<std::size_t>(config_.sizes.records));
  s.tail_text.clear();
  s.stop_text = StopText(how.stop);
  s.decoder.reset();
  if (tokenizer_ != nullptr) s.decoder.emplace(*tokenizer_, /*skip_special=*/true);
  s.reason = StopReason::none;
  s.running = true;
  if (how.max_new_tokens == 0) finish(s, StopReason::length);
}

bool EngineLoop::next(Sequence& s, std::int32_t& token, std::string& text) {
  arrive(s);
  const std::lock_guard lock(mutex_);
  struct Leave {
    Reader& reader;
    ~Leave() { reader.set(Reader::At::away); }
  } const leave{s.reader};
  while (s.running && s.unread_count == 0) {
    if (!step_locked()) throw Error(ErrorCode::internal, "[engine] a running answer has no rows to run");
  }
  text.clear();
  if (s.unread_count > 0) {
    token = s.unread[0].token;
    text.swap(s.unread[0].text);
    std::swap(s.unread[0], s.unread[1]);
    --s.unread_count;
    return true;
  }
  if (s.failed) throw Error(ErrorCode::internal, "[engine] a step of this answer failed");
  if (s.tail_text.empty()) return false;
  token = -1;
  text.swap(s.tail_text);
  return true;
}

void EngineLoop::leave(Sequence& s) {
  const std::lock_guard lock(mutex_);
  s.reader.set(Reader::At::away);
}

void EngineLoop::cancel(Sequence& s) {
  const std::lock_guard lock(mutex_);
  const bool ahead = drop_ahead(s);
  if (s.unread_count > 0) {
    // Nobody saw these tokens, so the one before them must wait to be run again. Its row is the newest that ran: the
    // first unread token's own row did not, as its reader was not there to take it.
    const auto unseen = static_cast<std::int64_t>(s.unread_count);
    s.unread_count = 0;
    s.tokens.resize(s.tokens.size() - static_cast<std::size_t>(unseen));
    s.new_tokens -= unseen;
    s.last_sampled = s.new_tokens > 0;
    if (ahead) {
      s.failed = true;  // a reader was there and left as another's step failed: two rows cannot be taken back
    } else if (s.new_tokens > 0) {
      take_back_row(s);
    }
  }
  if (s.running) finish(s, StopReason::length);
  s.tail_text.clear();
}

void EngineLoop::finish(Sequence& s, StopReason reason) {
  s.running = false;
  s.reason = reason;
  if (s.decoder && reason != StopReason::stop_text) {
    const bool stopped = s.stop_text.push(s.decoder->flush(), s.tail_text);
    if (!stopped) s.stop_text.flush(s.tail_text);
  }
}

// Adds the token's text to that of the newest piece. True where that completes a stop text.
bool EngineLoop::add_text(Sequence& s, std::int32_t token) {
  if (!s.decoder) return false;
  text_.clear();
  s.decoder->push(token, text_);
  return s.stop_text.push(text_, s.unread[s.unread_count - 1].text);
}

void EngineLoop::deliver(Sequence& s, std::int32_t token) {
  s.tokens.push_back(token);
  s.last_sampled = true;
  ++s.new_tokens;
  Sequence::Unread& piece = s.unread.at(s.unread_count++);
  piece.token = token;
  piece.text.clear();
  if (std::find(s.stop_tokens.begin(), s.stop_tokens.end(), token) != s.stop_tokens.end()) {
    finish(s, StopReason::stop_token);
  } else if (add_text(s, token)) {
    finish(s, StopReason::stop_text);
  } else if (s.new_tokens >= s.how.max_new_tokens) {
    finish(s, StopReason::length);
  } else if (static_cast<std::int64_t>(s.tokens.size()) >= config_.capacity) {
    finish(s, StopReason::context);
  }
  if (!s.running) drop_ahead(s);
}

EngineLoop::Place EngineLoop::mark(Sequence& s) {
  const std::lock_guard lock(mutex_);
  expect_usable(s);
  return {static_cast<std::int64_t>(s.tokens.size()), s.fed, s.last_sampled,
          backend_->save_slot(s.slot, s.keep)};
}

void EngineLoop::rewind(Sequence& s, const Place& to) {
  const std::lock_guard lock(mutex_);
  if (s.running || s.unread_count > 0) expect_usable(s);
  forget(s);
  backend_->load_slot(s.slot, *to.state);
  s.tokens.resize(static_cast<std::size_t>(to.tokens));
  s.fed = to.fed;
  s.last_sampled = to.last_sampled;
  s.keep = 0;
  s.taken_back.clear();
  s.failed = false;
  pages_.shrink(s.pages, to.tokens);
}

void EngineLoop::clear(Sequence& s) {
  const std::lock_guard lock(mutex_);
  if (s.running || s.unread_count > 0) expect_usable(s);
  forget(s);
  backend_->reset_slot(s.slot);
  pages_.shrink(s.pages, 0);
  const std::int32_t slot = s.slot;
  s = Sequence{};
  s.slot = slot;
}

StepStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  StepStats stats = backend_->stats();
  stats.ahead_steps = ahead_steps_;
  stats.taken_back_rows = taken_back_rows_;
  return stats;
}

void EngineLoop::start_trace() {
  const std::lock_guard lock(mutex_);
  backend_->start_trace();
}

Trace EngineLoop::stop_trace() {
  const std::lock_guard lock(mutex_);
  return backend_->stop_trace();
}

HostState EngineLoop::export_state(Sequence& s) {
  const std::lock_guard lock(mutex_);
  drop_ahead(s);  // the state behind the last token that was made, not behind a row that may go
  return backend_->export_state(s.slot, s.keep, s.pages, s.fed);
}

void EngineLoop::observe(Observer observer) {
  const std::lock_guard lock(mutex_);
  drop_all_ahead();  // they run again, observed
  observer_ = std::move(observer);
}

}  // namespace nibble
