// bench_data.h: what the benches of linear layers run on (random rows, packed random weights) and the roofs they are
// held against.
#pragma once

#include <string>

#include "backends/cuda/bench/cublas_peer.h"
#include "backends/cuda/bench/launch_timer.h"
#include "backends/cuda/memory.h"
#include "backends/cuda/weight_image.h"
#include "core/checkpoint/weight.h"

namespace nibble::cuda {

// Throws Error(out_of_memory) with what is needed and what is free.
Block allot(std::uint64_t bytes, const std::string& what);
// `count` bf16 or f16 numbers near normal, of variance scale^2.
void fill_random(cudaStream_t stream, int multiprocessors, const Block& block, std::uint64_t count, std::uint64_t seed,
                 float scale, bool f16);
// "nvfp4", "fp8" and "a8" with row scales, "bf16"; without its values.
Weight random_weight(const std::string& format, const LinearShape& shape);
// Makes the values, packs and drops them.
WeightImage pack_random(Weight& w, std::byte* arena, ArchPath path, cudaStream_t stream, bool fp8_unit = false);
// The same for one image of two weights.
WeightImage pack_random_gate_up(Weight& gate, Weight& up, std::byte* arena, ArchPath path, cudaStream_t stream);
// Where the same image lies `bytes` (a multiple of 256) further on.
WeightImage moved(WeightImage image, std::uint64_t bytes);

// Bytes a second that a copy on the device reads and writes.
double copy_rate(LaunchTimer& timer, int multiprocessors);
// Operations a second of a large product of the peer. `workspace` is the peer's from here on. Throws Error(unsupported)
// where it has no bf16.
double product_rate(CublasPeer& peer, LaunchTimer& timer, int multiprocessors, Block& workspace);

}  // namespace nibble::cuda
