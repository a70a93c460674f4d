// engine.h: the one loop of a model: schedule, batch, run, deliver. Sessions are handles on it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/in_flight.h"
#include "core/engine/sequence.h"
#include "core/schedule/scheduler.h"
#include "core/state/page_pool.h"

namespace nibble {

struct EngineConfig {
  std::vector<ProgramClass> classes;  // in the order of the backend's programs
  StateSizes sizes;
  std::int64_t step_tokens = 2048;
  std::int64_t capacity = 0;  // positions that one sequence may have
  std::int64_t vocab = 0;
  std::vector<std::int32_t> stop_tokens;
  bool run_ahead = false;  // start a step of decode rows before the tokens of the one before are known
};

// Thread-safe: every public call takes the engine's lock.
class EngineLoop {
 public:
  EngineLoop(std::unique_ptr<Backend> backend, EngineConfig config, const BpeTokenizer* tokenizer);

  std::shared_ptr<Sequence> open();
  void close(Sequence& s);

  void submit(Sequence& s, std::span<const std::int32_t> prompt, const Sampling& how);
  // Steps until the sequence has a piece or its answer has ended. False at the end.
  bool next(Sequence& s, std::int32_t& token, std::string& text);
  // For a reader that calls next() for one sequence after another: it says of all that it waits, of each that it was
  // served, and of all that it leaves. next() alone says the first and the last by itself.
  void arrive(Sequence& s) { s.reader.set(Reader::At::waiting); }
  void serve(Sequence& s) { s.reader.set(Reader::At::served); }
  void leave(Sequence& s);
  // Ends the answer at the last piece that was taken.
  void cancel(Sequence& s);
  // One step for whoever has rows. False if nobody has.
  bool step();

  std::vector<double> score(Sequence& s, std::span<const std::int32_t> tokens);

  struct Place {  // what Session::mark keeps
    std::int64_t tokens = 0, fed = 0;
    bool last_sampled = false;
    std::shared_ptr<const Backend::Snapshot> state;
  };
  Place mark(Sequence& s);
  void rewind(Sequence& s, const Place& to);
  void clear(Sequence& s);

  std::int64_t running() const;  // answers that have not ended
  std::int64_t room(const Sequence& s) const;
  StepStats stats() const;
  void start_trace();
  Trace stop_trace();
  HostState export_state(Sequence& s);
  void observe(Observer observer);  // of every op of every later step; empty: none
  const EngineConfig& config() const { return config_; }

 private:
  // A step that the backend has in flight.
  struct Flight {
    std::vector<Sequence*> sequences;  // whose rows it has; null: no longer to be told if it fails
    std::vector<Sequence*> owners;     // of its outputs; null: the row was taken back
    bool decodes = false;              // decode rows only
    bool ahead = false;                // started before the tokens of the step before were known
    bool taken_back() const;           // every row
    bool has(const Sequence& s) const;
  };

  bool step_locked();
  std::size_t program_for(std::int64_t rows) const;  // of the ranges in scheduled_
  // output >= 0: the row's token is that of this output of the step in flight.
  void append_range(Sequence& s, const ScheduledRange& r, std::int32_t output = -1);
  bool start_scheduled(bool& ended);
  bool goes_on(const Sequence& s) const;
  bool may_run_ahead() const;
  bool grow_for_ahead();
  void start_ahead();
  void start(std::size_t program, bool decodes, bool ahead);
  void finish_oldest();
  void fail(const Flight& flight);
  void take_back_row(Sequence& s);
  bool drop_ahead(Sequence& s);  // whether it had one
  void drop_all_ahead();
  void forget(Sequence& s);
  void deliver(Sequence& s, std::int32_t token);
  bool add_text(Sequence& s, std::int32_t token);
  void finish(Sequence& s, StopReason reason);
  void expect_usable(const Sequence& s) const;
  void check_tokens(std::span<const std::int32_t> tokens) const;
  void reserve(Sequence& s, std::int64_t more, std::int64_t spare);

  mutable std::mutex mutex_;
  std::unique_ptr<Backend> backend_;
  EngineConfig config_;
  const BpeTokenizer* tokenizer_;
  PagePool pages_;
  std::vector<std::int32_t> free_slots_;
  std::vector<std::shared_ptr<Sequence>> sequences_;  // by slot
  std::uint64_t next_order_ = 0;
  Observer observer_;
  InFlight<Flight> flights_;  // one at most between calls
  std::uint64_t ahead_steps_ = 0, taken_back_rows_ = 0;

  // Reused from step to step.
  std::vector<SequenceView> views_;
  std::vector<ScheduledRange> scheduled_;
  std::vector<Sequence*> output_owner_;
  Batch batch_;
  StepOutput output_;
  std::string text_;
};

}  // namespace nibble
