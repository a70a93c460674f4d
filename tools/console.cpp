#include "tools/console.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tools/failure.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

// 0 or the errno of the write that failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

bool terminal(int fd) {
  return isatty(fd) == 1;
}

bool colour_wanted() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::strcmp(term, "dumb") != 0);
}

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// Raw writes, so that a closed stderr never raises and nothing is buffered twice.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_all(STDERR_FILENO, {line.data(), line.size()});
  }
  void flush_() override {}
};

}  // namespace

struct Console::Log {
  Log() : logger("nibble", std::make_shared<StderrSink>()) {
    logger.set_pattern("%n: %v");
    logger.set_level(spdlog::level::info);
  }
  spdlog::logger logger;
};

Console::Console()
    : log_(std::make_unique<Log>()),
      out_terminal_(terminal(STDOUT_FILENO)),
      err_terminal_(terminal(STDERR_FILENO)),
      out_colour_(out_terminal_ && colour_wanted()),
      err_colour_(err_terminal_ && colour_wanted()) {}

Console::~Console() {
  clear_progress();
}

void Console::set_verbosity(Verbosity v) {
  verbosity_ = v;
  log_->logger.set_level(v == Verbosity::quiet     ? spdlog::level::err
                         : v == Verbosity::verbose ? spdlog::level::debug
                                                   : spdlog::level::info);
}

std::string Console::bold(std::string_view text) const {
  return out_colour_ ? fmt::format("\033[1m{}\033[0m", text) : std::string(text);
}

std::string Console::dim_err(std::string_view text) const {
  return err_colour_ ? fmt::format("\033[2m{}\033[0m", text) : std::string(text);
}

void Console::out(std::string_view text) {
  clear_progress();
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) throw OutputClosed{};
  if (error != 0) {
    throw Failure(kFailed,
                  fmt::format("cannot write to standard output: {}", std::strerror(error)));
  }
}

void Console::err(std::string_view text) {
  clear_progress();
  write_all(STDERR_FILENO, text);
}

void Console::error(std::string_view text) {
  clear_progress();
  log_->logger.error(
      "{}", err_colour_ ? fmt::format("\033[31m{}\033[0m", one_line(text)) : one_line(text));
}

void Console::note(std::string_view text) {
  clear_progress();
  log_->logger.info("{}", one_line(text));
}

void Console::detail(std::string_view text) {
  if (!verbose()) return;
  clear_progress();
  log_->logger.debug("{}", one_line(text));
}

void Console::progress(std::string_view label, double fraction, std::string_view tail) {
  if (!err_terminal_ || verbosity_ == Verbosity::quiet) return;
  const auto now = std::chrono::steady_clock::now();
  if (bar_shown_ && fraction < 1 && now - bar_time_ < std::chrono::milliseconds(50)) return;
  bar_time_ = now;

  const double part = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  const std::string head = fmt::format("{:<10} ", one_line(label));
  const std::string foot = fmt::format(" {:3.0f}%  {}", std::floor(part * 100), one_line(tail));
  const std::size_t taken = head.size() + foot.size() + 3;
  const std::size_t columns = terminal_width();
  const std::size_t room = columns > taken + 8 ? std::min<std::size_t>(columns - taken, 40) : 8;
  const auto filled = static_cast<std::size_t>(part * static_cast<double>(room));
  const std::string bar =
      fmt::format("[{}{}]", std::string(filled, '='), std::string(room - filled, ' '));
  write_all(STDERR_FILENO, fmt::format("\r\033[K{}{}{}", head, bar, foot));
  bar_shown_ = true;
}

void Console::clear_progress() {
  if (!bar_shown_) return;
  bar_shown_ = false;
  write_all(STDERR_FILENO, "\r\033[K");
}

}  // namespace nibble::tool
