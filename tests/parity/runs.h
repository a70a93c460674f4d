// runs.h: which checkpoint and prompt the tests of parity run.
#pragma once

#include <string>

#include "nibble/parity.h"
#include "tests/models/folder.h"

namespace nibble::test {

inline std::string model() { return data("model/hf-nvfp4-ct"); }
inline ParityOptions options(int rows = 70, int decode = 3) {
  ParityOptions how;
  for (int i = 0; i < rows; ++i) how.prompt.push_back((i * 37 + 11) % 4000);
  how.decode = decode;
  how.chunk = 64;
  return how;
}

}  // namespace nibble::test
