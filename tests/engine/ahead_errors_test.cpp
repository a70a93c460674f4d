// A device that fails while steps are in flight.
#include <functional>

#include "core/api/loader.h"
#include "tests/engine/support.h"
#include "tests/parity/passes_on.h"

namespace nibble::test {
namespace {

// Fails at the start or finish that a countdown reaches.
class Failing final : public PassesOn {
 public:
  struct Plan {
    int starts = -1, finishes = -1;
  };
  Failing(std::unique_ptr<Backend> inner, Plan& plan) : PassesOn(std::move(inner)), plan_(plan) {}

  void start(std::size_t index, const Batch& batch, const Observer& observer) override {
    if (plan_.starts-- == 0) throw Error(ErrorCode::internal, "[test] the start failed");
    PassesOn::start(index, batch, observer);
  }
  void finish(StepOutput& out) override {
    PassesOn::finish(out);
    if (plan_.finishes-- == 0) throw Error(ErrorCode::internal, "[test] the step failed");
  }

 private:
  Plan& plan_;
};

struct Loop {
  Loop() {
    LoadOptions how = options(3);
    how.run_ahead = true;
    Draft d = draft_files(ModelFiles(data("model/hf-nvfp4-ct")), Device::cpu(1), how);
    move_weights(d, how);
    engine = std::make_unique<EngineLoop>(std::make_unique<Failing>(std::move(d.backend), plan), d.engine, nullptr);
  }
  std::vector<std::int32_t> read(Sequence& s, int most = 1 << 20) {
    std::vector<std::int32_t> out;
    std::int32_t token;
    std::string text;
    while (most-- > 0 && engine->next(s, token, text)) out.push_back(token);
    return out;
  }
  // As it would go if nothing had failed.
  void expect_sound(Sequence& s) {
    engine->clear(s);
    engine->submit(s, ids_of("capital"), tokens(9));
    const auto first = read(s);
    EXPECT_EQ(first.size(), 9u);
    const auto other = engine->open();
    engine->submit(*other, ids_of("capital"), tokens(9));
    EXPECT_EQ(read(*other), first);
    expect_same_state(engine->export_state(s), engine->export_state(*other), "after a failure");
    engine->close(*other);
  }

  Failing::Plan plan;
  std::unique_ptr<EngineLoop> engine;
};

TEST(AheadErrors, AStepThatFailsTakesTheOneBehindItWithIt) {
  Loop loop;
  const auto s = loop.engine->open(), beside = loop.engine->open();
  loop.engine->submit(*beside, ids_of("capital"), tokens(1));
  EXPECT_EQ(loop.read(*beside).size(), 1u);
  loop.engine->submit(*s, ids_of("capital"), tokens(50));
  EXPECT_EQ(loop.read(*s, 4).size(), 4u);
  ASSERT_GT(loop.engine->stats().ahead_steps, 0u);
  loop.plan.finishes = 0;
  EXPECT_NE(message_of([&] { loop.read(*s, 1); }).find("the step failed"), std::string::npos);
  EXPECT_EQ(loop.engine->running(), 0);
  EXPECT_NE(message_of([&] { loop.read(*s, 1); }).find("a step of this answer failed"), std::string::npos);
  EXPECT_NE(message_of([&] { loop.engine->submit(*s, ids_of("capital"), tokens(1)); }).find("clear() it first"),
            std::string::npos);
  loop.engine->cancel(*s);
  loop.engine->submit(*beside, {}, tokens(3));  // it had no rows there
  EXPECT_EQ(loop.read(*beside).size(), 3u);
  loop.expect_sound(*s);
}

TEST(AheadErrors, AStepAheadThatCannotStart) {
  Loop loop;
  const auto s = loop.engine->open();
  loop.engine->submit(*s, ids_of("capital"), tokens(50));
  EXPECT_EQ(loop.read(*s, 4).size(), 4u);
  loop.plan.starts = 0;
  EXPECT_NE(message_of([&] { loop.read(*s, 1); }).find("the start failed"), std::string::npos);
  EXPECT_NE(message_of([&] { loop.read(*s, 1); }).find("a step of this answer failed"), std::string::npos);
  loop.engine->cancel(*s);
  const auto other = loop.engine->open();
  loop.engine->submit(*other, ids_of("capital"), tokens(5));
  EXPECT_EQ(loop.read(*other).size(), 5u);
  loop.expect_sound(*s);
}

TEST(AheadErrors, WhatIsInFlightDoesNotOutliveItsSession) {
  Loop loop;
  auto s = loop.engine->open();
  loop.engine->submit(*s, ids_of("capital"), tokens(50));
  EXPECT_EQ(loop.read(*s, 4).size(), 4u);
  loop.engine->close(*s);
  s.reset();
  const auto next = loop.engine->open();  // in the same slot
  loop.plan.finishes = 0;                 // what is left of the closed one
  loop.engine->submit(*next, ids_of("capital"), tokens(5));
  EXPECT_NE(message_of([&] { loop.read(*next, 1); }).find("the step failed"), std::string::npos);
  loop.expect_sound(*next);
  loop.engine->submit(*next, {}, tokens(50));
  EXPECT_EQ(loop.read(*next, 4).size(), 4u);
  loop.engine.reset();  // with a step in flight
}

}  // namespace
}  // namespace nibble::test
