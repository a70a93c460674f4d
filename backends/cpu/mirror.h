// mirror.h: how programs of a 16-bit profile run on float32 kernels with that profile's bits.
//
// A buffer that holds bf16 on the device becomes float32 here, its values stay those that bf16 can
// hold: after the op that writes it, its rows are rounded once. So every kernel reads the widened
// inputs that the profile promises, and only Linear has loops of its own.
#pragma once

#include <string>
#include <vector>

#include "backends/cpu/ops/rowwise.h"
#include "core/program/program.h"

namespace nibble::cpu {

// Throws Error(unsupported) for a profile that cannot be mirrored; empty: none wanted.
void check_mirror(const std::string& profile);

// Replans a program with float32 instead of bf16 buffers; for each op: its output is to be rounded.
std::vector<bool> widen(Program& program);

// To bf16 and back, to nearest even.
void round_bf16(Parallel& parallel, std::int64_t rows, std::int64_t cols, Out y);

}  // namespace nibble::cpu
