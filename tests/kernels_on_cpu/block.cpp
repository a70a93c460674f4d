#include "tests/kernels_on_cpu/block.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

namespace nibble::test {

Index3 threadIdx, blockIdx;

namespace {

constexpr std::size_t kStackBytes = 1 << 17;
constexpr unsigned kLanes = 32;

struct Thread {
  ucontext_t at;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool done = false, waits_for_block = false;
};
struct Warp {
  unsigned arrived = 0;
  std::uint64_t turn = 0;
  std::uint32_t values[2][kLanes];  // of this exchange and of the one before, which some lane may not have read yet
};

struct Block {
  ucontext_t outside;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  unsigned arrived = 0;
  std::uint64_t turn = 0;
  const std::function<void()>* kernel = nullptr;
} block;

Thread& own() { return block.threads[threadIdx.x]; }
void let_others() {
  Thread& t = own();
  swapcontext(&t.at, &block.outside);
}
void begin() {
  (*block.kernel)();
  own().done = true;  // and on to `outside`
}
void go_on(unsigned i) {
  threadIdx = {i, 0, 0};
  swapcontext(&block.outside, &block.threads[i].at);
}

}  // namespace

void block_meets() {
  const std::uint64_t turn = block.turn;
  if (++block.arrived == block.threads.size()) {
    block.arrived = 0;
    ++block.turn;
    return;
  }
  own().waits_for_block = true;
  while (block.turn == turn) let_others();
  own().waits_for_block = false;
}

std::uint32_t warp_exchanges(std::uint32_t v, int from) {
  Warp& w = block.warps[threadIdx.x / kLanes];
  const std::uint64_t turn = w.turn;
  w.values[turn % 2][threadIdx.x % kLanes] = v;
  if (++w.arrived == kLanes) {
    w.arrived = 0;
    ++w.turn;
  } else {
    while (w.turn == turn) let_others();
  }
  return w.values[turn % 2][from];
}

void run_grid(Index3 grid, int threads, unsigned seed, const std::function<void()>& kernel) {
  std::mt19937 random(seed);
  block.threads.resize(static_cast<std::size_t>(threads));
  block.kernel = &kernel;
  std::vector<unsigned> blocks(grid.x * grid.y * grid.z), warps(static_cast<unsigned>(threads) / kLanes);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::iota(warps.begin(), warps.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const unsigned b : blocks) {
    blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    block.warps.assign(warps.size(), {});
    block.arrived = 0;
    for (Thread& t : block.threads) {
      t.done = t.waits_for_block = false;
      getcontext(&t.at);
      t.at.uc_stack.ss_sp = t.stack.data();
      t.at.uc_stack.ss_size = t.stack.size();
      t.at.uc_link = &block.outside;
      makecontext(&t.at, begin, 0);
    }
    const auto all_done = [] { return std::all_of(block.threads.begin(), block.threads.end(), [](const Thread& t) { return t.done; }); };
    while (!all_done()) {
      std::shuffle(warps.begin(), warps.end(), random);
      for (const unsigned w : warps) {
        bool goes_on = true;
        while (goes_on) {
          goes_on = false;
          for (unsigned i = w * kLanes; i < (w + 1) * kLanes; ++i) {
            Thread& t = block.threads[i];
            if (!t.done) go_on(i);
            goes_on = goes_on || (!t.done && !t.waits_for_block);
          }
        }
      }
    }
  }
}

}  // namespace nibble::test
