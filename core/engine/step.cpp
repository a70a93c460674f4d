// step.cpp: the engine's step: whoever has rows and no unread token takes part.
#include <algorithm>

#include "core/engine/engine.h"
#include "nibble/error.h"

namespace nibble {

bool EngineLoop::step() {
  const std::lock_guard lock(mutex_);
  return step_locked();
}

bool EngineLoop::step_locked() {
  views_.clear();
  bool ended = false;
  for (const auto& s : sequences_) {
    if (!s || !s->running || s->undelivered) continue;
    const bool decode = s->waiting() == 1 && s->last_sampled;
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
  if (scheduled_.empty()) return ended;

  batch_.clear();
  output_owner_.clear();
  bool all_decode = true;
  for (const ScheduledRange& r : scheduled_) {
    append_range(*sequences_[static_cast<std::size_t>(r.id)], r);
    all_decode = all_decode && r.section == Section::decode;
  }
  run(program_for(all_decode ? batch_.rows() : -1));
  for (std::size_t o = 0; o < output_owner_.size(); ++o) deliver(*output_owner_[o], output_.tokens[o]);
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

void EngineLoop::append_range(Sequence& s, const ScheduledRange& r) {
  const auto first_row = static_cast<std::int32_t>(batch_.rows());
  batch_.ranges.push_back({r.section, s.slot, first_row, static_cast<std::int32_t>(r.rows), s.fed, s.keep,
                           static_cast<std::int32_t>(batch_.pages.size())});
  const auto begin = s.tokens.begin() + s.fed;
  batch_.tokens.insert(batch_.tokens.end(), begin, begin + r.rows);
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

void EngineLoop::run(std::size_t program) {
  try {
    backend_->run(program, batch_, output_, observer_);
  } catch (...) {
    // The rows may be half written: these sequences can only be cleared or rewound.
    for (const Range& r : batch_.ranges) {
      Sequence& s = *sequences_[static_cast<std::size_t>(r.slot)];
      s.failed = true;
      s.running = false;
    }
    throw;
  }
  for (const Range& r : batch_.ranges) {
    Sequence& s = *sequences_[static_cast<std::size_t>(r.slot)];
    s.fed += r.rows;
    s.keep = r.section == Section::prefill ? 0 : r.rows;
    s.taken_back.clear();
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
    run(program);
    result.insert(result.end(), output_.logprobs.begin(), output_.logprobs.end());
  }
  return result;
}

}  // namespace nibble
