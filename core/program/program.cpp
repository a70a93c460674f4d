#include "core/program/program.h"

namespace nibble {

bool ProgramClass::has(Section s) const {
  switch (kind) {
    case Kind::decode: return s == Section::decode;
    case Kind::verify: return s == Section::verify;
    case Kind::mixed: return true;
    case Kind::score: return s == Section::prefill;
  }
  return false;
}

std::string ProgramClass::name() const {
  constexpr const char* kNames[] = {"decode", "verify", "mixed", "score"};
  return std::string(kNames[static_cast<int>(kind)]) + "(" + std::to_string(max_rows) + ")";
}

}  // namespace nibble
