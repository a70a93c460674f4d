#include "tests/tool/run_tool.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace nibble::test {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  void close_read() { close_end(read_end); }
  void close_write() { close_end(write_end); }

 private:
  static void close_end(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
};

std::vector<char*> pointers(std::vector<std::string>& list) {
  std::vector<char*> out;
  for (std::string& s : list) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void exec_tool(const std::vector<std::string>& args,
                            const std::vector<std::string>& environment) {
  std::vector<std::string> all{NIBBLE_TOOL};
  all.insert(all.end(), args.begin(), args.end());
  for (const std::string& pair : environment) {
    const std::size_t at = pair.find('=');
    setenv(pair.substr(0, at).c_str(), pair.substr(at + 1).c_str(), 1);
  }
  execv(NIBBLE_TOOL, pointers(all).data());
  _exit(127);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// False at the end of the stream (a terminal whose other side has gone reports EIO).
bool read_some(int fd, std::string& text) {
  char buffer[4096];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  if (n <= 0) return n < 0 && errno == EINTR;
  text.append(buffer, static_cast<std::size_t>(n));
  return true;
}

}  // namespace

ToolRun run_tool(const std::vector<std::string>& args, const ToolOptions& how) {
  Pipe in, out, err;
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    dup2(in.read_end, 0);
    dup2(out.write_end, 1);
    dup2(err.write_end, 2);
    exec_tool(args, how.environment);
  }
  in.close_read();
  out.close_write();
  err.close_write();
  std::signal(SIGPIPE, SIG_IGN);

  ToolRun run;
  std::size_t sent = 0;
  bool stopped = false;
  while (out.read_end >= 0 || err.read_end >= 0) {
    if (in.write_end >= 0 && sent == how.input.size()) in.close_write();
    pollfd waits[] = {
        {out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}, {in.write_end, POLLOUT, 0}};
    if (poll(waits, 3, -1) < 0 && errno != EINTR) fail("poll");
    if (waits[0].revents != 0 && !read_some(out.read_end, run.out)) out.close_read();
    if (waits[1].revents != 0 && !read_some(err.read_end, run.err)) err.close_read();
    if (waits[2].revents != 0) {
      const ssize_t n = write(in.write_end, how.input.data() + sent, how.input.size() - sent);
      if (n < 0) in.close_write();
      sent += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    if (how.close_output_after > 0 && run.out.size() >= how.close_output_after) out.close_read();
    const bool stop =
        (how.interrupt_after > 0 && run.out.size() >= how.interrupt_after) ||
        (!how.interrupt_when.empty() && run.err.find(how.interrupt_when) != std::string::npos);
    if (stop && !stopped) {
      stopped = true;
      kill(child, SIGINT);
    }
  }
  run.code = wait_for(child);
  return run;
}

ToolRun run_on_terminal(const std::vector<std::string>& args, const std::string& typed,
                        const std::vector<std::string>& environment) {
  int terminal = -1;
  winsize size{};
  size.ws_col = 100;
  size.ws_row = 30;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) fail("forkpty");
  if (child == 0) exec_tool(args, environment);
  if (write(terminal, typed.data(), typed.size()) != static_cast<ssize_t>(typed.size()))
    fail("write");
  ToolRun run;
  while (read_some(terminal, run.out)) {
  }
  close(terminal);
  run.code = wait_for(child);
  return run;
}

std::string model_path() {
  return NIBBLE_TEST_DATA "/model/hf-nvfp4-ct";
}

Json parse_json(const std::string& text) {
  return Json::parse(text, "output of nibble");
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "nibble-tool-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) fail("mkdtemp");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::write(const std::string& name, const std::string& text) const {
  const std::filesystem::path file = path_ / name;
  std::ofstream(file, std::ios::binary) << text;
  return file.string();
}

}  // namespace nibble::test
