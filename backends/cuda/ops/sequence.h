// sequence.h: launches of the ops that touch a sequence's state. Contracts: core/ops/ops.h. Each enqueues
// work for the ranges of one section (rope: of all); an empty section costs blocks that return at once.
#pragma once

#include <string>

#include "backends/cuda/arch_path.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/state_view.h"

namespace nibble::cuda {

struct DeltaConvArgs {
  View x;             // [T, C]
  const float* taps;  // [C, kernel], as in the checkpoint
  DeltaLayerView state;
  Section section;
  View y;
};
// Also keeps the raw rows in the state's ring. (x and y are different buffers.)
void delta_conv(const Launch& to, const DeltaConvArgs& args);

struct DeltaGatesArgs {
  View a, b;
  const float *neg_exp_a, *dt_bias;
  View g, beta;
};
void delta_gates(const Launch& to, const DeltaGatesArgs& args);

struct DeltaRuleArgs {
  View qkv, g, beta;
  DeltaLayerView state;
  Section section;
  View y;
  // Prefill rows are computed on matrix units (core/numerics/delta_order.h), through delta_records_bytes() here. Null: as
  // core/ops/ops.h says.
  std::byte* records = nullptr;
  // Whose: sm90's wgmma, each warp's mma.sync as sm120 has it, with the same bits, or sm70's m8n8k4; rows are float32
  // for the last.
  ArchPath units = ArchPath::sm90;
};
bool delta_on_units(ArchPath path, const DeltaShape& shape);
// Of an op of a class of so many rows and ranges.
std::uint64_t delta_records_bytes(ArchPath path, const DeltaShape& shape, std::int64_t rows, std::int32_t ranges);
// Which kernels serve, of prefill rows on matrix units with why those do not; for StepStats.
std::string delta_rule_kernel(const DeltaRuleArgs& args);
void delta_rule(const Launch& to, const DeltaRuleArgs& args);

struct QkNormRopeArgs {
  View q, k, v;
  std::int64_t q_head_stride;
  const float *q_norm, *k_norm;  // or null
  float eps;
  const float* rope;  // [positions, rotary_dim]
  std::int32_t rotary_dim;
  KvLayerView state;
  View q_out;
};
void qk_norm_rope(const Launch& to, const QkNormRopeArgs& args);

struct AttentionArgs {
  View q;
  float scale;
  KvLayerView state;
  Section section;
  View y;
  // Computed on matrix units (core/numerics/attention_order.h); else as core/ops/ops.h says.
  bool units = false;
  // Decode and verify rows: splits side by side, which leave attention_parts_bytes() here, aligned to 16 bytes. Null: one
  // after the other; on matrix units: no sequence has two.
  float* parts = nullptr;
  std::int64_t split_slots = 0;  // splits that the sequences of a step can have, attention_split_slots()
  std::int32_t records = 1;      // rows of a verify range at most
  ArchPath path = ArchPath::sm120;  // of `units`: sm90 has wgmma for them, with the same bits
};
// 0: no sequence can have two.
std::int64_t attention_split_slots(bool units, std::int64_t pages, std::int32_t slots);
std::uint64_t attention_parts_bytes(const AttentionShape& shape, std::int64_t split_slots, std::int32_t records);
bool attention_on_units(ArchPath path, const AttentionShape& shape);
// Which kernel serves a class, and why not one before it; for StepStats.
std::string attention_kernel(const Launch& to, const AttentionArgs& args);
void attention(const Launch& to, const AttentionArgs& args);

// State at rest. `to` is float32: S [value_heads, key_dim, value_dim] with the slot's first `keep` records of
// half `half` folded in, then conv rows [kernel - 1, channels], oldest first, zeros before position 0;
// `position` is the next one after `keep`. delta_floats() of them.
std::int64_t delta_floats(const DeltaShape& shape);
void delta_save(cudaStream_t stream, const DeltaLayerView& state, std::int32_t slot, std::int32_t half,
                std::int32_t keep, std::int64_t position, float* to);
void delta_load(cudaStream_t stream, const DeltaLayerView& state, std::int32_t slot, std::int64_t position,
                const float* from);
// A new sequence: S to zero.
void delta_reset(cudaStream_t stream, const DeltaLayerView& state, std::int32_t slot);

}  // namespace nibble::cuda
