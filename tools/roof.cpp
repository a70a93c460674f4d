#include "tools/roof.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "tools/failure.h"
#include "tools/roof_loops.h"

namespace nibble::tool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPasses = 7;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Runs work(thread) on all threads at once, kPasses times. Returns the median time from the common
// start to the last one's end.
double median_seconds(int threads, const std::function<void(int)>& prepare,
                    const std::function<void(int)>& work) {
  std::barrier gate(threads);
  std::vector<Clock::time_point> begin(static_cast<std::size_t>(kPasses));
  std::vector<double> seconds;  // of thread 0
  std::atomic<int> go{0};  // 1: all are there, -1: leave again
  const auto body = [&](int thread) {
    go.wait(0);
    if (go < 0) return;
    prepare(thread);
    for (std::size_t pass = 0; pass < begin.size(); ++pass) {
      gate.arrive_and_wait();
      if (thread == 0) begin[pass] = Clock::now();
      gate.arrive_and_wait();
      work(thread);
      gate.arrive_and_wait();
      if (thread == 0)
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin[pass]).count());
    }
  };
  std::vector<std::thread> pool;
  const auto release = [&](int how) {
    go = how;
    go.notify_all();
  };
  try {
    for (int t = 1; t < threads; ++t) pool.emplace_back(body, t);
  } catch (const std::system_error& e) {
    release(-1);
    for (std::thread& t : pool) t.join();
    throw Failure(kFailed, fmt::format("roofs: expected to start {} threads, found that {} start "
                                       "({}): lower --threads, or --no-roof",
                                       threads, pool.size() + 1, e.code().message()));
  }
  release(1);
  body(0);
  for (std::thread& t : pool) t.join();
  return median(std::move(seconds));
}

// 1 GiB where the machine has it to spare: more than the last-level caches of most.
std::size_t read_buffer_bytes() {
  const auto free_bytes = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                          static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return std::clamp(free_bytes / 4, std::size_t{16} << 20, std::size_t{1} << 30);
}

std::atomic<std::uint64_t> g_sink{0};  // keeps the loops' results alive

void measure_reads(Roof& roof) {
  const std::size_t words = read_buffer_bytes() / sizeof(std::uint64_t) /
                            static_cast<std::size_t>(roof.threads) / kReadWords * kReadWords;
  std::vector<std::unique_ptr<std::uint64_t[]>> parts(static_cast<std::size_t>(roof.threads));
  const auto prepare = [&](int thread) {
    // Written by the thread that reads it, so that the pages are near it.
    auto& part = parts[static_cast<std::size_t>(thread)];
    part.reset(new std::uint64_t[words]);
    for (std::size_t i = 0; i < words; ++i) part[i] = i;
  };
  const auto work = [&](int thread) {
    g_sink += read_sum(parts[static_cast<std::size_t>(thread)].get(), words);
  };
  const double seconds = median_seconds(roof.threads, prepare, work);
  roof.buffer_bytes = static_cast<double>(words * sizeof(std::uint64_t)) * roof.threads;
  roof.read_bytes_per_second = roof.buffer_bytes / seconds;
}

double flops_per_second(int threads, const FloatLoop& loop) {
  const auto work = [&](int) { g_sink += loop.run(loop.rounds) > 0 ? 1 : 0; };
  const double seconds = median_seconds(
      threads, [](int) {}, work);
  return static_cast<double>(loop.rounds) * static_cast<double>(loop.flops_per_round) * threads / seconds;
}

}  // namespace

Roof measure_roof(int threads, std::string_view kernels) {
  Roof roof;
  roof.threads = std::max(threads, 1);
  measure_reads(roof);
  const FloatLoop floats = best_float_loop(), bf16 = bf16_loop(kernels);
  roof.instructions = floats.name;
  roof.float_flops_per_second = flops_per_second(roof.threads, floats);
  if (bf16.run != nullptr) {
    roof.bf16_instructions = bf16.name;
    roof.bf16_flops_per_second = flops_per_second(roof.threads, bf16);
  }
  return roof;
}

Roof median_roof(const std::vector<Roof>& samples) {
  Roof roof = samples.at(0);
  for (double Roof::*rate : {&Roof::read_bytes_per_second, &Roof::float_flops_per_second, &Roof::bf16_flops_per_second}) {
    std::vector<double> values;
    for (const Roof& sample : samples) values.push_back(sample.*rate);
    roof.*rate = median(std::move(values));
  }
  return roof;
}

}  // namespace nibble::tool
