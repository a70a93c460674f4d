// complaint.h: what an Error says.
#pragma once

#include <string>

#include "nibble/error.h"

namespace nibble::test {

// Empty where nothing is thrown.
template <class F>
std::string complaint(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace nibble::test
