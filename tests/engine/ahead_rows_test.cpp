// What a device is told: the rows it has fed and not been told to take back are the session's tokens.
#include <optional>

#include "core/api/loader.h"
#include "tests/engine/support.h"
#include "tests/parity/passes_on.h"

namespace nibble::test {
namespace {

// Keeps the fed tokens of each slot, as counts are kept: what `taken_back` names leaves, then the rows come.
class Watching final : public PassesOn {
 public:
  struct Log {
    std::map<std::int32_t, std::vector<std::int32_t>> fed;  // by slot
    std::vector<std::pair<std::int32_t, std::size_t>> open;  // (slot, output) of rows whose token is not known yet
    int references = 0, taken_back = 0;
  };
  Watching(std::unique_ptr<Backend> inner, Log& log) : PassesOn(std::move(inner)), log_(log) {}

  void start(std::size_t index, const Batch& batch, const Observer& observer) override {
    PassesOn::start(index, batch, observer);
    for (const auto& [slot, token] : batch.taken_back) {
      auto& fed = log_.fed[slot];
      ASSERT_FALSE(fed.empty());
      EXPECT_EQ(fed.back(), token) << "only the newest row can go";
      fed.pop_back();
      ++log_.taken_back;
    }
    for (const Range& r : batch.ranges) {
      auto& fed = log_.fed[r.slot];
      EXPECT_EQ(r.position, static_cast<std::int64_t>(fed.size()));
      for (std::int32_t i = 0; i < r.rows; ++i) {
        const std::int32_t token = batch.tokens[static_cast<std::size_t>(r.first_row + i)];
        if (token < 0) log_.open.emplace_back(r.slot, -1 - token);
        log_.references += token < 0;
        fed.push_back(token);
      }
    }
  }
  void finish(StepOutput& out) override {
    PassesOn::finish(out);
    for (const auto& [slot, output] : log_.open) log_.fed[slot].back() = out.tokens.at(output);
    log_.open.clear();
  }
  void reset_slot(std::int32_t slot) override {
    log_.fed[slot].clear();
    PassesOn::reset_slot(slot);
  }

 private:
  Log& log_;
};

TEST(AheadRows, FedTokensAreTheSessions) {
  LoadOptions how = options(2);
  how.run_ahead = true;
  Draft d = draft_files(ModelFiles(data("model/hf-nvfp4-ct")), Device::cpu(1), how);
  move_weights(d, how);
  Watching::Log log;
  EngineLoop engine(std::make_unique<Watching>(std::move(d.backend), log), d.engine, nullptr);
  const auto s = engine.open(), beside = engine.open();
  const auto read = [&](Sequence& of, int most) {
    std::int32_t token;
    std::string text;
    int n = 0;
    while (n < most && engine.next(of, token, text)) ++n;
    return n;
  };
  engine.submit(*s, ids_of("capital"), tokens(12));
  read(*s, 100);
  const std::vector<std::int32_t> answer(s->tokens.end() - 12, s->tokens.end());
  int turns = 0;
  for (const std::int32_t stop : answer) {
    for (int leave = 0; leave < 6; ++leave) {
      Sampling of = tokens(12);
      if (leave % 2) of.stop_tokens = {stop};
      engine.submit(*s, ids_of("capital"), of);
      if (leave == 4) {
        engine.submit(*beside, ids_of("capital"), tokens(3));
        read(*beside, 100);
      }
      read(*s, leave < 3 ? leave : 100);
      engine.cancel(*s);
      if (++turns % 20 == 0) engine.clear(*s);
      if (leave == 5) engine.mark(*s);
    }
    // Rows that were taken back leave with the next step: one more says so.
    engine.submit(*s, ids_of("capital"), tokens(1));
    read(*s, 1);
    const auto& fed = log.fed[s->slot];
    EXPECT_EQ(fed, std::vector<std::int32_t>(s->tokens.begin(), s->tokens.begin() + s->fed));
    EXPECT_EQ(s->waiting(), 1);
    engine.cancel(*s);
  }
  EXPECT_GT(log.references, 100);
  EXPECT_GT(log.taken_back, 20);
  EXPECT_GE(engine.stats().taken_back_rows, static_cast<std::uint64_t>(log.taken_back));  // a clear() tells nobody
}

}  // namespace
}  // namespace nibble::test
