// mirror.h: how programs of a 16-bit profile run on float32 kernels with that profile's bits.
//
// A buffer that holds bf16 or f16 on the device becomes float32 here, its values stay those that the
// device's can hold: after the op that writes it, its rows are rounded once. So every kernel reads the
// widened inputs that the profile promises, and only Linear and, in sm90, the delta rule's prefill rows
// have loops of their own. An f16 row has an exponent (core/numerics/row_scale.h); it lies behind the
// buffer's rows, one int32 each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/ops/rowwise.h"
#include "backends/cpu/packed_weight.h"
#include "core/program/program.h"

namespace nibble::cpu {

enum class Profile : std::uint8_t { f32, bf16, sm70, sm90, sm120 };

// The CPU's own (f32, bf16; empty: f32) or the one that it mirrors. Throws Error(no_device) for a profile that is not one
// of these, Error(invalid_argument) where both are given.
Profile profile_from_names(const std::string& own, const std::string& mirror);
const char* profile_name(Profile p);
// Of buffers between ops. Profile bf16 rounds at the linear layers only: a wider buffer costs a processor little.
constexpr DType operand_type(Profile p) {
  return p == Profile::f32 || p == Profile::bf16 ? DType::f32 : p == Profile::sm70 ? DType::f16 : DType::bf16;
}
// Of unquantised weights.
constexpr WeightOperand weight_operand(Profile p) {
  return p == Profile::f32    ? WeightOperand::stored
         : p == Profile::sm70 ? WeightOperand::f16
                              : WeightOperand::bf16;
}

struct Widened {
  std::vector<bool> rounded;            // for each op: what it writes is to be rounded; empty: none is
  std::vector<std::int64_t> exponents;  // for each buffer: where its row exponents are in it, or -1
};

// Replans a program with float32 instead of 16-bit buffers.
Widened widen(Program& program, Profile profile);

// Of one row. round_f16 returns its exponent.
void round_bf16(Isa isa, float* row, std::int64_t cols);
std::int32_t round_f16(Isa isa, float* row, std::int64_t cols);
// To bf16 and back, to nearest even.
void round_bf16(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, Out y);
// To f16 with row exponents and back.
void round_f16(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, Out y,
               std::int32_t* exponents);

}  // namespace nibble::cpu
