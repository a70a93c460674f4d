// block.h: the threads of a CUDA block on one thread of the processor. A warp runs until all its lanes wait for the
// block, then another, in an order that changes: what a missing __syncthreads lets happen, happens.
#pragma once

#include <cstdint>
#include <functional>

namespace nibble::test {

struct Index3 {
  unsigned x, y, z;
};
extern Index3 threadIdx, blockIdx;

// All blocks of a grid, one after the other, in a random order.
void run_grid(Index3 grid, int threads, unsigned seed, const std::function<void()>& kernel);

void block_meets();
// v of lane `from` of this thread's warp. All lanes take part.
std::uint32_t warp_exchanges(std::uint32_t v, int from);

}  // namespace nibble::test
