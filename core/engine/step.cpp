// step.cpp: the engine's step: whoever has rows and no unread token takes part.
#include <algorithm>

#include "core/engine/engine.h"
#include "nibble/error.h"

namespace nibble {

bool EngineLoop::step() {
  const std::lock_guard lock(mutex_);
  return step_locked();
}

// Every sequence that can go on does, by one token or a part of its prompt.
bool EngineLoop::step_locked() {
  const auto in_flight = [&] { return flights_.size() > 0 && !flights_[0].taken_back(); };
  if (in_flight()) {
    // Rows that are not in flight need their pages now, as they would if nothing ran ahead.
    const bool short_of_pages = std::any_of(sequences_.begin(), sequences_.end(), [&](const auto& s) {
      return s && s->ready() && s->decodes() && !pages_.grow(s->pages, s->fed + 1);
    });
    if (short_of_pages) drop_all_ahead();
  }
  bool ended = false;
  const bool started = start_scheduled(ended);
  if (!started && !in_flight()) return ended;
  for (std::size_t left = flights_.size(); left > 0; --left) {
    start_ahead();
    finish_oldest();
  }
  return true;
}

// False if nobody has rows but those in flight. `ended`: an answer has.
bool EngineLoop::start_scheduled(bool& ended) {
  views_.clear();
  for (const auto& s : sequences_) {
    if (!s || !s->ready() || s->waiting() == 0) continue;
    const bool decode = s->decodes();
    if (decode && !pages_.grow(s->pages, s->fed + 1)) {
      finish(*s, StopReason::context);  // other sessions hold the pages
      ended = true;
      continue;
    }
    views_.push_back({s->slot, s->fed, s->waiting(), decode});
  }
  std::sort(views_.begin(), views_.end(), [&](const SequenceView& a, const SequenceView& b) {
    return sequences_[static_cast<std::size_t>(a.id)]->order <
           sequences_[static_cast<std::size_t>(b.id)]->order;
  });
  schedule(views_, {config_.step_tokens}, scheduled_);
  if (scheduled_.empty()) return false;

  batch_.clear();
  output_owner_.clear();
  bool all_decode = true;
  for (const ScheduledRange& r : scheduled_) {
    append_range(*sequences_[static_cast<std::size_t>(r.id)], r);
    all_decode = all_decode && r.section == Section::decode;
  }
  start(program_for(all_decode ? batch_.rows() : -1), all_decode, /*ahead=*/false);
  return true;
}

// rows >= 0: the smallest decode program that takes them; -1: the mixed one.
std::size_t EngineLoop::program_for(std::int64_t rows) const {
  for (std::size_t i = 0; i < config_.classes.size(); ++i) {
    const ProgramClass& c = config_.classes[i];
    if (rows < 0 ? c.kind == ProgramClass::Kind::mixed
                 : c.kind == ProgramClass::Kind::decode && c.max_rows >= rows) {
      return i;
    }
  }
  throw Error(ErrorCode::internal, "[engine] no program for a step of " + std::to_string(rows) + " rows");
}

void EngineLoop::append_range(Sequence& s, const ScheduledRange& r, std::int32_t output) {
  const auto first_row = static_cast<std::int32_t>(batch_.rows());
  batch_.ranges.push_back({r.section, s.slot, first_row, static_cast<std::int32_t>(r.rows), s.fed, s.keep,
                           static_cast<std::int32_t>(batch_.pages.size())});
  if (output >= 0) {
    batch_.tokens.push_back(Batch::from_output(output));
  } else {
    const auto begin = s.tokens.begin() + s.fed;
    batch_.tokens.insert(batch_.tokens.end(), begin, begin + r.rows);
  }
  const auto pages = pages_for(s.fed + r.rows);
  batch_.pages.insert(batch_.pages.end(), s.pages.begin(), s.pages.begin() + pages);
  for (const std::int32_t token : s.taken_back) batch_.taken_back.push_back({s.slot, token});
  if (r.completes) {
    batch_.output_rows.push_back(first_row + static_cast<std::int32_t>(r.rows) - 1);
    batch_.sampling.push_back({s.how.temperature, s.how.top_p, s.how.min_p, s.how.repetition_penalty,
                               s.how.top_k, s.how.seed, s.slot, s.fed + r.rows});
    output_owner_.push_back(&s);
  }
}

// Starts the program on batch_. From here on its rows count as fed.
void EngineLoop::start(std::size_t program, bool decodes, bool ahead) {
  Flight& f = flights_.next("engine");
  f.sequences.clear();
  for (const Range& r : batch_.ranges) {
    f.sequences.push_back(sequences_[static_cast<std::size_t>(r.slot)].get());
  }
  f.owners = output_owner_;
  f.decodes = decodes;
  f.ahead = ahead;
  try {
    backend_->start(program, batch_, observer_);
  } catch (...) {
    fail(f);
    throw;
  }
  flights_.push();
  for (const Range& r : batch_.ranges) {
    Sequence& s = *sequences_[static_cast<std::size_t>(r.slot)];
    s.fed += r.rows;
    s.keep = r.section == Section::prefill ? 0 : r.rows;
    s.taken_back.clear();
  }
}

void EngineLoop::finish_oldest() {
  const Flight& f = flights_.pop("engine");
  try {
    backend_->finish(output_);
  } catch (...) {
    fail(f);
    while (flights_.size() > 0) {  // it has rows of tokens that never were
      fail(flights_.pop("engine"));
      try {
        backend_->finish(output_);
      } catch (const Error&) {
        // the first one's error is the cause
      }
    }
    throw;
  }
  for (std::size_t o = 0; o < f.owners.size(); ++o) {
    Sequence* const s = f.owners[o];
    if (s != nullptr && s->running) deliver(*s, output_.tokens[o]);
  }
}

// Its rows may be half written: these sequences can only be cleared or rewound.
void EngineLoop::fail(const Flight& flight) {
  for (Sequence* const s : flight.sequences) {
    if (s == nullptr) continue;
    s->failed = true;
    s->running = false;
  }
}

std::vector<double> EngineLoop::score(Sequence& s, std::span<const std::int32_t> tokens) {
  const std::lock_guard lock(mutex_);
  expect_usable(s);
  check_tokens(tokens);
  std::size_t program = 0;
  while (program < config_.classes.size() &&
         config_.classes[program].kind != ProgramClass::Kind::score) {
    ++program;
  }
  if (program == config_.classes.size()) throw Error(ErrorCode::internal, "[engine] no scoring program");
  reserve(s, static_cast<std::int64_t>(tokens.size()), /*spare=*/0);
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  if (!tokens.empty()) s.last_sampled = false;

  drop_all_ahead();  // whose tokens nobody asked for
  while (flights_.size() > 0) finish_oldest();
  // The last token waits: what follows it is not known yet.
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(std::max<std::int64_t>(s.waiting() - 1, 0)));
  while (s.waiting() > 1) {
    const std::int64_t to_grid = kPageTokens - s.fed % kPageTokens;
    const ScheduledRange r{s.slot, Section::prefill, std::min(to_grid, s.waiting() - 1), false};
    batch_.clear();
    output_owner_.clear();
    append_range(s, r);
    for (std::int64_t i = 0; i < r.rows; ++i) {
      batch_.output_rows.push_back(static_cast<std::int32_t>(i));
      batch_.targets.push_back(s.tokens[static_cast<std::size_t>(s.fed + i + 1)]);
    }
    start(program, /*decodes=*/false, /*ahead=*/false);
    finish_oldest();
    result.insert(result.end(), output_.logprobs.begin(), output_.logprobs.end());
  }
  return result;
}

}  // namespace nibble
