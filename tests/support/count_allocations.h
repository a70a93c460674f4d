// count_allocations.h: counts operator new and malloc of the whole process, every thread of it. It
// replaces both, so a test that links it is an executable of its own.
#pragma once

#include <cstdint>

namespace nibble::test {

void start_counting();
std::uint64_t stop_counting();

template <class Body>
std::uint64_t allocations_in(const Body& body) {
  start_counting();
  body();
  return stop_counting();
}

}  // namespace nibble::test
