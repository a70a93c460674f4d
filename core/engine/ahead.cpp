// ahead.cpp: steps that start before the tokens of the step before are known, and how their rows are taken back.
//
// A step ahead has a decode row for every sequence of the step in flight, the row's token being the one that this step
// samples. When such a token ends its answer, or its reader leaves, the row is taken back: `keep` drops its record, the
// counts lose its token, its page goes back to the pool, and what it samples is ignored. The state is then that of a run
// that stopped there, so whether steps run ahead changes no answer.
#include <algorithm>

#include "core/engine/engine.h"

namespace nibble {

bool EngineLoop::Flight::taken_back() const {
  return ahead && std::all_of(owners.begin(), owners.end(), [](const Sequence* s) { return s == nullptr; });
}

bool EngineLoop::Flight::has(const Sequence& s) const {
  return std::find(owners.begin(), owners.end(), &s) != owners.end();
}

// Behind the token that is to come, unless that is a stop token or ends a stop text; and its reader takes it.
bool EngineLoop::goes_on(const Sequence& s) const {
  return s.running && s.unread_count == 0 && s.reader.waits() && s.new_tokens + 1 < s.how.max_new_tokens &&
         static_cast<std::int64_t>(s.tokens.size()) + 1 < config_.capacity;
}

// Rows of others that are not in flight go first: the next step has them all.
bool EngineLoop::may_run_ahead() const {
  if (!config_.run_ahead || observer_ || flights_.size() != 1 || !flights_[0].decodes) return false;
  const Flight& f = flights_[0];
  return std::all_of(f.owners.begin(), f.owners.end(),
                     [&](const Sequence* s) { return s == nullptr || goes_on(*s); }) &&
         std::none_of(sequences_.begin(), sequences_.end(),
                      [&](const auto& s) { return s && s->ready() && !f.has(*s); });
}

// A page for one more position of each; all or none.
bool EngineLoop::grow_for_ahead() {
  const Flight& f = flights_[0];
  for (std::size_t o = 0; o < f.owners.size(); ++o) {
    Sequence* const s = f.owners[o];
    if (s == nullptr || pages_.grow(s->pages, s->fed + 1)) continue;
    for (std::size_t i = o; i-- > 0;) {
      if (f.owners[i] != nullptr) pages_.shrink(f.owners[i]->pages, f.owners[i]->fed);
    }
    return false;
  }
  return true;
}

void EngineLoop::start_ahead() {
  if (!may_run_ahead() || !grow_for_ahead()) return;
  const Flight& f = flights_[0];
  batch_.clear();
  output_owner_.clear();
  for (std::size_t o = 0; o < f.owners.size(); ++o) {
    if (Sequence* const s = f.owners[o]) {
      append_range(*s, {s->slot, Section::decode, 1, true}, static_cast<std::int32_t>(o));
    }
  }
  start(program_for(batch_.rows()), /*decodes=*/true, /*ahead=*/true);
  ++ahead_steps_;
}

// The newest decode row of a sequence; its token is known by now.
void EngineLoop::take_back_row(Sequence& s) {
  --s.fed;
  s.keep = 0;
  s.taken_back.push_back(s.tokens[static_cast<std::size_t>(s.fed)]);
  pages_.shrink(s.pages, s.fed);
  ++taken_back_rows_;
}

// Takes back the sequence's row of the step in flight. That step goes on for the others.
bool EngineLoop::drop_ahead(Sequence& s) {
  bool had = false;
  for (std::size_t i = 0; i < flights_.size(); ++i) {
    std::vector<Sequence*>& owners = flights_[i].owners;
    const auto at = std::find(owners.begin(), owners.end(), &s);
    if (at == owners.end()) continue;
    *at = nullptr;
    had = true;
    if (!s.failed) take_back_row(s);
  }
  return had;
}

void EngineLoop::drop_all_ahead() {
  for (const auto& s : sequences_) {
    if (s) drop_ahead(*s);
  }
}

// The sequence's state is about to be replaced: what a step in flight makes of it does not matter.
void EngineLoop::forget(Sequence& s) {
  for (std::size_t i = 0; i < flights_.size(); ++i) {
    Flight& f = flights_[i];
    std::replace(f.sequences.begin(), f.sequences.end(), &s, static_cast<Sequence*>(nullptr));
    std::replace(f.owners.begin(), f.owners.end(), &s, static_cast<Sequence*>(nullptr));
  }
}

}  // namespace nibble
