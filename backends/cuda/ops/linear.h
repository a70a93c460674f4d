// linear.h: launches of Linear and Embed. Contracts: core/ops/ops.h, core/numerics/matrix_order.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/arch_path.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/weight_image.h"

namespace nibble::cuda {

constexpr int kPlainTile = -2;  // for benches and tests: GroupedLinear without its tuned kernel

struct LinearArgs {
  View x;         // [T, K] bf16, or f16 with exponents (sm70), or codes (u8) of `format`
  View x_scales;  // data null where the format has none
  ActivationFormat format;
  WeightImage weight;
  View y;  // [T, N] f32 or bf16; of a gate_up image [T, N / 2] bf16
  ArchPath path = ArchPath::sm90;
  int tile = -1;  // of linear_tiles(): for benches and tests; -1: as the class's rows ask
  // For benches: after its first lap the ring of a kernel with one is announced without being filled, so that products
  // run on what lies there. y is of no use then.
  bool unfed = false;
};
// Throws Error(internal) with each kernel's reason where none serves. With an image of gate and up it is LinearSwiGlu.
void linear(const Launch& to, const LinearArgs& args);
// Layers of one input in one launch: the bytes of linear() for each. Why they cannot be; null: they can.
const char* refuse_joined(const Launch& to, std::span<const LinearArgs> all);
void joined_linears(const Launch& to, std::span<const LinearArgs> all);
// Which kernel serves: "wgmma.m64k16", "mma.m8n8k4, emulated"; for StepStats.
const char* linear_kernel(const Launch& to, const LinearArgs& args);
// Every kernel in the order of the table with "served" (and the tile) or why not.
std::vector<std::pair<std::string, std::string>> linear_choices(const Launch& to, const LinearArgs& args);
// Tiles of the kernel that serves, which give the same bits; empty where it has one only.
struct LinearTile {
  std::string name;     // "128x256": rows of the weight by rows of x, and how
  std::string refusal;  // why it cannot serve here; empty: it can
};
int linear_tile_count();
std::vector<LinearTile> linear_tiles(const Launch& to, const LinearArgs& args);
// What Launch::sums holds on the current card, which has that many; 0: no kernel there uses it.
std::uint64_t linear_sums_bytes(ArchPath path, int multiprocessors);

// Linear with an expert for each row: GroupedLinear's contract.
struct GroupedLinearArgs {
  LinearArgs linear;  // weight: of expert 0, `plain` where all are; x: rows of tokens, or routed ones, as y
  const std::int32_t* order = nullptr;   // [T * k]
  const std::int32_t* starts = nullptr;  // [experts + 1]
  std::int32_t experts = 0;
  std::int64_t expert_bytes = 0;  // from an expert's image to the next one's
};
void grouped_linear(const Launch& to, const GroupedLinearArgs& args);
const char* grouped_linear_kernel(const Launch& to, const GroupedLinearArgs& args);
// As linear_choices() and linear_tiles().
std::vector<std::pair<std::string, std::string>> grouped_linear_choices(const Launch& to, const GroupedLinearArgs& args);
int grouped_linear_tile_count();
std::vector<LinearTile> grouped_linear_tiles(const Launch& to, const GroupedLinearArgs& args);

struct EmbedArgs {
  WeightImage table;
  View y;  // [T, H]
};
void embed(const Launch& to, const EmbedArgs& args);

}  // namespace nibble::cuda
