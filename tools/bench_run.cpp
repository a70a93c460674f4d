#include "tools/bench_run.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <random>

#include "nibble/error.h"
#include "tools/failure.h"

namespace nibble::tool {
namespace {

using Clock = std::chrono::steady_clock;
using Alive = std::function<bool()>;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::int32_t> random_prompt(std::int64_t vocab, std::int64_t count,
                                        std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
  return ids;
}

Sampling greedy(std::int64_t tokens) {
  Sampling how;
  how.max_new_tokens = static_cast<int>(tokens);
  how.ignore_model_stop_tokens = true;
  return how;
}

// One token from each stream; they share the steps.
void advance(std::vector<TokenStream>& streams, const Alive& alive) {
  if (!alive()) throw Interrupted{};
  std::vector<Piece> pieces(streams.size());
  TokenStream::next_of_each(streams, pieces);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (pieces[i].token < 0) {
      throw Failure(kFailed, fmt::format("bench: expected another token, the stream ended ({})",
                                         stop_reason_name(streams[i].stop_reason())));
    }
  }
}

// The prompts' rows up to each sequence's first token. `ready` is called before what is timed.
double time_prefill(std::vector<Session>& sessions,
                    const std::vector<std::vector<std::int32_t>>& prompts, const Alive& alive,
                    const std::function<void()>& ready) {
  for (Session& session : sessions) session.clear();
  ready();
  const auto start = Clock::now();
  std::vector<TokenStream> streams;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    streams.push_back(sessions[i].generate(prompts[i], greedy(1)));
  }
  advance(streams, alive);
  return since(start);
}

// `steps` further tokens of each sequence, after the prompt's rows and the first token.
double time_decode(std::vector<Session>& sessions,
                   const std::vector<std::vector<std::int32_t>>& prompts,
                   const std::vector<Mark>& marks, std::int64_t steps, const Alive& alive,
                   const std::function<void()>& ready) {
  std::vector<TokenStream> streams;
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    if (marks.empty()) {
      sessions[i].clear();
    } else {
      sessions[i].rewind(marks[i]);
    }
    streams.push_back(sessions[i].generate(prompts[i], greedy(steps + 1)));
  }
  advance(streams, alive);
  ready();
  const auto start = Clock::now();
  for (std::int64_t s = 0; s < steps; ++s) advance(streams, alive);
  return since(start);
}

}  // namespace

std::string BenchCase::name() const {
  std::string out =
      kind == Kind::prefill ? fmt::format("pp{}", tokens) : fmt::format("tg{}", tokens);
  if (depth > 0) out += fmt::format(" @ d{}", depth);
  return out;
}

std::int64_t BenchCase::positions() const {
  // A depth ends with one generated token; one position stays free behind a prompt.
  return kind == Kind::prefill ? tokens + 1 : depth + 1 + 1 + tokens + 1;
}

BenchResult run_case(const Model& model, const BenchCase& what, const Repetitions& repetitions,
                     const Alive& alive, Trace* trace) {
  const std::int64_t vocab = model.info().vocab;
  const bool prefill = what.kind == BenchCase::Kind::prefill;
  std::vector<Session> sessions;
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Mark> marks;
  for (int b = 0; b < what.batch; ++b) {
    const auto seed = static_cast<std::uint64_t>(b) + 1;
    sessions.push_back(model.new_session());
    prompts.push_back(random_prompt(vocab, prefill ? what.tokens : 1, seed));
  }
  if (what.depth > 0) {
    // Filled once: each repetition comes back to the mark instead of reading the depth again.
    for (std::size_t b = 0; b < sessions.size(); ++b) {
      const auto held = random_prompt(vocab, what.depth, 1000 + b);
      {
        TokenStream stream = sessions[b].generate(held, greedy(1));
        Piece piece;
        stream.next(piece);
      }
      if (!alive()) throw Interrupted{};
      marks.push_back(sessions[b].mark());
    }
  }
  const auto once = [&](const std::function<void()>& ready = [] {}) {
    return prefill ? time_prefill(sessions, prompts, alive, ready)
                   : time_decode(sessions, prompts, marks, what.tokens, alive, ready);
  };
  once();

  BenchResult result;
  result.what = what;
  const auto start = Clock::now();
  for (int r = 0; r < repetitions.most && (r == 0 || since(start) < repetitions.seconds); ++r) {
    result.samples.push_back(static_cast<double>(what.tokens * what.batch) / once());
  }
  const auto count = static_cast<double>(result.samples.size());
  for (const double s : result.samples) result.mean += s / count;
  double squares = 0;
  for (const double s : result.samples) squares += (s - result.mean) * (s - result.mean);
  if (count > 1) result.deviation = std::sqrt(squares / (count - 1));
  if (trace != nullptr) {
    once([&] { model.start_trace(); });
    *trace = model.stop_trace();
    // A step that had begun before is of no prompt either.
    result.traced = summary_of(trace->of_steps(prefill ? 0 : prompt_steps(*trace), trace->steps.size()));
  }
  return result;
}

}  // namespace nibble::tool
