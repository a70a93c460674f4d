// console.h: everything that the command writes: answers on stdout, the rest on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace nibble::tool {

enum class Verbosity { quiet, normal, verbose };

class Console {
 public:
  Console();
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void set_verbosity(Verbosity v);
  bool verbose() const { return verbosity_ == Verbosity::verbose; }
  bool out_is_terminal() const { return out_terminal_; }
  bool err_is_terminal() const { return err_terminal_; }
  // Escape sequences for stdout and stderr; empty strings where colour is off (no terminal,
  // NO_COLOR).
  std::string bold(std::string_view text) const;
  std::string dim_err(std::string_view text) const;

  // Writes to stdout at once. Throws OutputClosed when the reader has left, Failure otherwise.
  void out(std::string_view text);
  void err(std::string_view text);  // to stderr as it is

  // One line each on stderr: `nibble: ...`
  void error(std::string_view text);   // always
  void note(std::string_view text);    // not with --quiet
  void detail(std::string_view text);  // only with --verbose

  // A bar on a terminal; nothing elsewhere. `tail` follows the bar.
  void progress(std::string_view label, double fraction, std::string_view tail);
  void clear_progress();

 private:
  struct Log;
  std::unique_ptr<Log> log_;
  Verbosity verbosity_ = Verbosity::normal;
  bool out_terminal_, err_terminal_, out_colour_, err_colour_;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point bar_time_{};
};

}  // namespace nibble::tool
