#include "core/state/state_layout.h"

#include <string>

#include "nibble/error.h"

namespace nibble {

void check_sizes(const StateSizes& s) {
  if (s.slots >= 1 && s.pages >= 0 && s.records >= 1 && s.vocab >= 1) return;
  throw Error(ErrorCode::invalid_argument,
              "[state] expected slots >= 1, pages >= 0, records >= 1 and vocab >= 1, found " +
                  std::to_string(s.slots) + ", " + std::to_string(s.pages) + ", " +
                  std::to_string(s.records) + ", " + std::to_string(s.vocab));
}

}  // namespace nibble
