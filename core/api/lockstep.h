// lockstep.h: two devices run the same step at once; what both show of an op is looked at together, so
// that no output is copied or kept (a step of a large model shows gigabytes).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>

#include "backends/backend.h"

namespace nibble {

struct Shown {
  const Op* op = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::span<const float> data;
};

class Lockstep {
 public:
  using Run = std::function<void(const Observer&)>;
  using Look = std::function<void(const Shown& a, const Shown& b)>;

  // Runs `b` here and `a` on a thread of its own; `look` is called here. Throws what `a`, `b` or `look`
  // threw, Error(unsupported) when one shows more ops than the other.
  static void run(const Run& a, const Run& b, const Look& look);

 private:
  bool offer(const Shown& shown);  // by A: returns when B has looked; false: B has gone
  void leave_a();
  void meet(const Shown& b, const Look& look);  // by B
  void finish_b();                              // B has shown all: so must A have
  void leave_b();

  std::mutex mutex_;
  std::condition_variable changed_;
  const Shown* offered_ = nullptr;
  bool a_gone_ = false, b_gone_ = false;
};

}  // namespace nibble
