// failure.h: how a command ends: exit codes and the exceptions that carry them.
#pragma once

#include <stdexcept>
#include <string>

namespace nibble::tool {

enum ExitCode : int {
  kOk = 0,
  kFailed = 1,    // while running
  kUsage = 2,     // the command line
  kBadModel = 3,  // cannot be loaded
  kNoMemory = 4,
  kDiffers = 5,  // what was compared
  kInterrupted = 130,  // Ctrl-C
};

// The same as every help text has it.
inline constexpr const char* kExitCodes =
    R"(Exit codes:
  0    done (also when the reader of the output has left)
  1    an error while running
  2    the command line is wrong
  3    the model cannot be loaded
  4    out of memory
  5    a comparison found a difference (parity)
  130  interrupted with Ctrl-C)";

// Ends the command with one line on stderr.
class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

inline Failure usage_error(const std::string& what) {
  return Failure(kUsage, what);
}

struct OutputClosed {};  // the reader of stdout has left: not an error, and nothing is left to say
struct Interrupted {};

}  // namespace nibble::tool
