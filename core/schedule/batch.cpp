#include "core/schedule/batch.h"

namespace nibble {

void Batch::clear() {
  tokens.clear();
  ranges.clear();
  pages.clear();
  output_rows.clear();
  sampling.clear();
  targets.clear();
  taken_back.clear();
}

}  // namespace nibble
