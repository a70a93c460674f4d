// engine.h: the one loop behind all sessions of a model.
#pragma once

#include <cstdint>
#include <memory>

#include "nibble/export.h"
#include "nibble/model.h"
#include "nibble/stats.h"

namespace nibble {

// A handle on a model's engine; copies share it. Safe from any thread.
//
// Reading a TokenStream steps the engine as far as that stream needs, and every step serves all
// answers whose newest token has been read. An application with a thread of its own may step ahead of
// its readers: each answer is kept at most one token ahead.
class NIBBLE_API Engine {
 public:
  explicit Engine(const Model& model);

  bool step();                   // false when no answer has rows to run
  std::int64_t running() const;  // answers that have not ended
  StepStats stats() const;

 private:
  std::shared_ptr<Model::Impl> model_;
};

}  // namespace nibble
