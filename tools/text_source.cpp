// text_source.cpp: the text that a command works on.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/quote.h"
#include "tools/args.h"
#include "tools/failure.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr std::size_t kMaxText = std::size_t{256} << 20;  // an endless pipe must not eat the memory

std::string read_descriptor(int fd, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (interrupted()) throw Interrupted{};
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw Failure(kFailed, fmt::format("cannot read {}: {}", name, std::strerror(errno)));
    if (n == 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
    if (text.size() > kMaxText) {
      throw Failure(kFailed, fmt::format("{}: expected at most {} of text, found more", name,
                                         format_bytes(kMaxText)));
    }
  }
}

std::string read_file(const std::string& path) {
  const std::string name = "file " + in_quotes(path, kShownPath);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw usage_error(fmt::format("cannot open {}: {}", name, std::strerror(errno)));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  struct stat info {};
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    throw usage_error(fmt::format("expected a text file, found the folder {}", in_quotes(path, kShownPath)));
  }
  return read_descriptor(fd, name);
}

}  // namespace

void TextArgs::add(CLI::App& app, const std::string& what) {
  app.add_option("-p,--prompt", text, what)->type_name("TEXT")->group("Text");
  not_empty(app.add_option("-f,--file", file, "read the text from a file; - is standard input"))
      ->type_name("FILE")
      ->group("Text");
}

std::string TextArgs::read(Console& console, bool strip_newline) const {
  if (text && !file.empty()) throw usage_error("expected --prompt or --file, found both");
  if (text) return *text;
  std::string read;
  if (!file.empty() && file != "-") {
    read = read_file(file);
  } else {
    if (isatty(STDIN_FILENO) == 1)
      console.note("reading the text from the terminal, Ctrl-D ends it");
    read = read_descriptor(STDIN_FILENO, "standard input");
  }
  if (strip_newline && !read.empty() && read.back() == '\n') {
    read.pop_back();
    if (!read.empty() && read.back() == '\r') read.pop_back();
  }
  return read;
}

}  // namespace nibble::tool
