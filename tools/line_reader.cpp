#include "tools/line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tools/failure.h"
#include "tools/signals.h"

namespace nibble::tool {
namespace {
constexpr std::size_t kMaxLine = std::size_t{16} << 20;
}

LineReader::Result LineReader::read_one(std::string& line) {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = held_.find('\n', searched);
    if (end != std::string::npos || ended_) {
      if (end == std::string::npos && held_.empty()) return Result::end;
      line = held_.substr(0, end);
      held_.erase(0, end == std::string::npos ? end : end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return Result::line;
    }
    searched = held_.size();
    if (searched > kMaxLine)
      throw Failure(kFailed, "standard input: expected lines of at most 16 MiB");
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (interrupted()) return Result::interrupted;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw Failure(kFailed, std::string("cannot read standard input: ") + std::strerror(errno));
    if (n == 0) ended_ = true;
    held_.append(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
}

LineReader::Result LineReader::read(std::string& line) {
  line.clear();
  for (;;) {
    std::string part;
    const Result result = read_one(part);
    if (result == Result::interrupted || (result == Result::end && line.empty())) return result;
    line += part;
    if (result == Result::end || part.empty() || part.back() != '\\') return Result::line;
    line.back() = '\n';
  }
}

}  // namespace nibble::tool
