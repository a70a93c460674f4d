// in_flight.h: steps that were started and are not finished, in their order; places are used in turns.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "nibble/error.h"

namespace nibble {

// A step and the one that was started before the first one's tokens were known.
constexpr std::size_t kStepsInFlight = 2;

template <class T>
class InFlight {
 public:
  std::size_t size() const { return count_; }
  bool full() const { return count_ == kStepsInFlight; }
  // 0: the oldest.
  T& operator[](std::size_t i) { return places_[(first_ + i) % kStepsInFlight]; }
  const T& operator[](std::size_t i) const { return places_[(first_ + i) % kStepsInFlight]; }

  // Where the next step goes; it is in flight after push(). Throws Error(internal) when there is no room.
  T& next(const char* who) {
    if (full()) {
      throw Error(ErrorCode::internal, "[" + std::string(who) + "] start: expected at most " +
                                           std::to_string(kStepsInFlight) +
                                           " steps in flight, found another: finish the oldest first");
    }
    return (*this)[count_];
  }
  void push() { ++count_; }

  // The oldest, in flight no more: its place is good until a step is started there.
  T& pop(const char* who) {
    if (count_ == 0) {
      throw Error(ErrorCode::internal,
                  "[" + std::string(who) + "] finish: expected a step in flight, found none");
    }
    T& oldest = places_[first_];
    first_ = (first_ + 1) % kStepsInFlight;
    --count_;
    return oldest;
  }

  // All places, whatever is in them.
  std::array<T, kStepsInFlight>& places() { return places_; }

 private:
  std::array<T, kStepsInFlight> places_{};
  std::size_t first_ = 0, count_ = 0;
};

}  // namespace nibble
