#include "tools/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

#include "tools/failure.h"

namespace nibble::tool {
namespace {

std::atomic<int> g_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free, "the signal handler needs it");

void on_interrupt(int) {
  if (g_interrupts.fetch_add(1) >= 1) {
    if (isatty(STDERR_FILENO) != 0) {
      [[maybe_unused]] const auto n = write(STDERR_FILENO, "\n", 1);
    }
    _exit(kInterrupted);
  }
}

}  // namespace

void prepare_process() {
  // A model file must never be opened as descriptor 0, 1 or 2.
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    const int opened = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    if (opened != fd) std::abort();
  }
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read at the prompt must return
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() {
  return g_interrupts.load() > 0;
}
void reset_interrupts() {
  g_interrupts.store(0);
}

}  // namespace nibble::tool
