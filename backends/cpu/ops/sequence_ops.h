// sequence_ops.h: the ops that touch a sequence's state. Contracts: core/ops/ops.h.
//
// `ranges` are those of the op's section (for qk_norm_rope: of the whole batch), their rows
// consecutive; row numbers count from the batch's first row, as do the pointers. An empty span
// returns at once. Nothing is allocated; every op throws Error(invalid_argument) for a range that
// the state cannot take, before it has written anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/cpu/parallel.h"
#include "backends/cpu/state_arena.h"

namespace nibble::cpu {

constexpr std::int32_t kMaxConvKernel = 32;

struct SequenceContext {
  Parallel& parallel;
  const SequenceKernels& kernels;
  std::span<std::byte>
      workspace;  // 64-byte aligned, at least what the ..._workspace() functions say
};

struct ConstRows {
  const float* data = nullptr;  // [rows of the batch, stride]
  std::int64_t stride = 0;
};
struct MutableRows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

// taps [channels, kernel] of the checkpoint to [kernel, channels]: once, at load.
void pack_conv_taps(const float* weight, std::int64_t channels, std::int32_t kernel, float* taps);

struct DeltaConvArgs {
  ConstRows x;        // [T, C]
  const float* taps;  // [kernel, C]
  std::int32_t layer;
  std::span<const Range> ranges;
  MutableRows y;  // [T, C]; not x
};
void delta_conv(SequenceContext& context, const DeltaArena& arena, const DeltaConvArgs& args);

struct DeltaGatesArgs {
  ConstRows a, b;                    // [rows, heads]
  const float *neg_exp_a, *dt_bias;  // [heads]
  std::int64_t rows, heads;
  MutableRows g, beta;  // [rows, heads]
};
void delta_gates(SequenceContext& context, const DeltaGatesArgs& args);

// The profile whose matrix units (core/numerics/delta_order.h) compute prefill rows; sm120 does it as sm90.
enum class PrefillUnits : std::uint8_t { none, sm90, sm70 };

struct DeltaRuleArgs {
  ConstRows qkv;      // [T, C]
  ConstRows g, beta;  // [T, value_heads]
  std::int32_t layer;
  std::span<const Range> ranges;
  MutableRows y;  // [T, value_heads * value_dim]
  PrefillUnits units = PrefillUnits::none;  // for sm90 qkv holds bf16 values
};
std::uint64_t delta_rule_workspace(const DeltaShape& shape, int threads);  // bytes
// Arena cursors stay: DeltaArena::end_step after the last layer.
void delta_rule(SequenceContext& context, const DeltaArena& arena, const DeltaRuleArgs& args);

struct QkNormRopeArgs {
  ConstRows q;
  std::int64_t q_head_stride;
  ConstRows k, v;                // [T, kv_heads * head_dim]
  const float *q_norm, *k_norm;  // [head_dim] or nullptr
  float eps;
  const float* rope;  // [rope_positions, rotary_dim]
  std::int64_t rope_positions;
  std::int32_t rotary_dim;
  std::int32_t layer;
  std::span<const Range> ranges;
  std::span<const std::int32_t> pages;
  MutableRows q_out;  // [T, heads * head_dim]
  bool round_keys = false;  // to bf16, as the mirrors of sm90 and sm120 keep them
};
void qk_norm_rope(SequenceContext& context, const KvArena& arena, const QkNormRopeArgs& args);

struct AttentionArgs {
  ConstRows q;  // [T, heads * head_dim]
  float scale;
  std::int32_t layer;
  std::span<const Range> ranges;  // all of one section
  std::span<const std::int32_t> pages;
  MutableRows y;  // [T, heads * head_dim]
  bool units = false;  // as core/numerics/attention_order.h has it; q and the pages hold bf16 values
  bool sm70 = false;   // of `units`, prefill rows only: as profile sm70 has them; q and the pages hold any values
};
// `rows`: the most rows that a decode or verify range has (StateSizes::records).
// For qk_norm_rope() too, where keys and values are kept in fp8.
std::uint64_t attention_workspace(const AttentionShape& shape, std::int32_t rows, int threads,
                                  KvFormat kv = KvFormat::operand);
void attention(SequenceContext& context, const KvArena& arena, const AttentionArgs& args);

}  // namespace nibble::cpu
