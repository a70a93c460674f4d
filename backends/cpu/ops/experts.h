// experts.h: the ops of a mixture of experts; contracts: core/ops/ops.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/cpu/ops/any_linear.h"

namespace nibble::cpu {

struct ExpertRouteArgs {
  std::int64_t rows = 0;
  std::int32_t experts = 0, per_token = 0;
  bool normalised = false;
  In logits{};
  Out weights{};                   // [rows, per_token]
  std::int32_t* ids = nullptr;     // [rows, per_token]
  std::int32_t* order = nullptr;   // [rows * per_token]
  std::int32_t* place = nullptr;   // [rows, per_token]
  std::int32_t* starts = nullptr;  // [experts + 1]
};
void expert_route(Isa isa, Parallel& parallel, const ExpertRouteArgs& args);

struct GroupedLinearArgs {
  LinearArgs linear;                      // weight and rows stay empty; y: a row for each sorted place
  std::span<const PackedWeight> weights;  // of the experts
  const std::int32_t* order = nullptr;
  const std::int32_t* starts = nullptr;
  std::int32_t per_token = 0;  // sorted place i reads row order[i] / per_token; 0: row i
  std::byte* gather = nullptr;  // grouped_gather_bytes(), aligned to 64; unused for per_token 0
};
// Of rows of x that an expert's tokens bring together, a few at a time.
std::int64_t grouped_gather_bytes(std::int64_t cols);
// Each expert in turn by any_linear().
void grouped_linear(Profile profile, const Kernels& kernels, Parallel& parallel, const GroupedLinearArgs& args);

struct ExpertCombineArgs {
  std::int64_t rows = 0, cols = 0;
  std::int32_t per_token = 0;
  In x{}, weights{};
  const std::int32_t* place = nullptr;  // [rows, per_token]
  In shared{}, shared_gate{};           // data null: no shared expert
  Out y{};
};
void expert_combine(Isa isa, Parallel& parallel, const ExpertCombineArgs& args);

}  // namespace nibble::cpu
