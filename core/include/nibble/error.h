// error.h: the one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>

#include "nibble/export.h"

namespace nibble {

enum class ErrorCode {
  invalid_argument,   // the caller passed something out of range or of the wrong kind
  not_found,          // a file, tensor or model that does not exist
  bad_file,           // a file that breaks its format, is truncated or contradicts itself
  unsupported,        // well formed, but nothing here can run it (yet)
  out_of_memory,      // does not fit; the text says what was needed for what
  context_full,       // prompt or generation longer than the context that was reserved
  cancelled,          // the caller's progress callback said stop
  internal,           // a bug in nibble
  no_device,          // this machine or build has not what was to run it: backend, card, kernels, mirror
};

// what() reads `[who] what was expected, what was found`, e.g.
// `[safetensors] model.safetensors: tensor "a": offsets end at 96, the file has 64 data bytes`.
class NIBBLE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace nibble
