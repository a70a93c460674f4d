#include "backends/cpu/thread_probe.h"

#include <oneapi/tbb/global_control.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::cpu {
namespace {

// A worker's first allocation may reserve address space for its own heap: these do the same, and the
// allocator hands the heaps on.
void* wait_for(void* gate) {
  void* volatile held = std::malloc(64);
  std::free(held);
  auto& mutex = *static_cast<std::mutex*>(gate);
  const std::lock_guard lock(mutex);
  return nullptr;
}

// Threads of this process as the kernel counts them; 0 where it does not say.
std::ptrdiff_t counted() {
  std::error_code failed;
  std::ptrdiff_t count = 0;
  std::filesystem::directory_iterator at("/proc/self/task", failed);
  for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) ++count;
  return failed ? 0 : count;
}

}  // namespace

int threads_that_start(int wanted) {
  using oneapi::tbb::global_control;
  const std::ptrdiff_t before = counted();
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return 0;
  pthread_attr_setstacksize(&attributes,
                            global_control::active_value(global_control::thread_stack_size));
  // TBB needs memory of its own beside the stacks, and others may start threads before it does.
  const int spare = 2 + wanted / 8;
  std::vector<pthread_t> started;
  started.reserve(static_cast<std::size_t>(wanted + spare));
  std::mutex gate;
  {
    const std::lock_guard closed(gate);
    pthread_t thread;
    while (static_cast<int>(started.size()) < wanted + spare &&
           pthread_create(&thread, &attributes, wait_for, &gate) == 0) {
      started.push_back(thread);
    }
  }
  pthread_attr_destroy(&attributes);
  for (const pthread_t thread : started) pthread_join(thread, nullptr);
  // A joined thread still counts against the limits for a moment.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (counted() > before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  return std::clamp(static_cast<int>(started.size()) - spare, 0, wanted);
}

}  // namespace nibble::cpu
