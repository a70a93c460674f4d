#include "backends/cpu/mirror.h"

#include <algorithm>
#include <initializer_list>

#include "backends/cpu/kernels/rounding.h"
#include "core/base/quote.h"
#include "core/program/planner.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

const RoundingKernels& kernels_of(Isa isa) {
  NIBBLE_PICK_ISA(isa, rounding_kernels());
}

template <class RowBody>
void over_rows(Parallel& parallel, std::int64_t rows, std::int64_t cols, const RowBody& body) {
  parallel(rows, std::max<std::int64_t>(1, 32768 / cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) body(r);
  });
}

}  // namespace

const char* profile_name(Profile p) {
  constexpr const char* kNames[] = {"f32", "bf16", "sm70", "sm90", "sm120"};
  return kNames[static_cast<int>(p)];
}

Profile profile_from_names(const std::string& own, const std::string& mirror) {
  const auto one_of = [](const char* what, const char* wanted, const std::string& name, std::initializer_list<Profile> all) {
    for (const Profile p : all) {
      if (name == profile_name(p)) return p;
    }
    throw Error(ErrorCode::no_device,
                std::string("[cpu] ") + what + ": expected one of the profiles " + wanted + ", found " + in_quotes(name));
  };
  if (!own.empty() && !mirror.empty()) {
    throw Error(ErrorCode::invalid_argument, "[cpu] profile: expected none beside a mirror, found " + in_quotes(own) +
                                                 " and mirror " + in_quotes(mirror));
  }
  if (!mirror.empty()) {
    return one_of("mirror", "that can be mirrored (sm70, sm90, sm120)", mirror,
                  {Profile::sm70, Profile::sm90, Profile::sm120});
  }
  return own.empty() ? Profile::f32 : one_of("profile", "of a CPU (f32, bf16)", own, {Profile::f32, Profile::bf16});
}

Widened widen(Program& program, Profile profile) {
  Widened wide;
  const DType operand = operand_type(profile);
  if (operand == DType::f32) return wide;
  for (Buffer& b : program.buffers) {
    wide.exponents.push_back(-1);
    if (b.dtype != operand) continue;
    b.dtype = DType::f32;
    b.bytes *= 2;
    if (operand != DType::f16) continue;
    wide.exponents.back() = b.bytes;
    b.bytes += program.rows_of(b.rows) * static_cast<std::int64_t>(sizeof(std::int32_t));
  }
  const auto narrow = [operand](Tensor& t) {
    const bool was = t.valid() && t.dtype == operand;
    if (was) t.dtype = DType::f32;
    return was;
  };
  for (Op& op : program.ops) {
    bool writes = false;
    visit_tensors(op.args, [&](Tensor& t) { narrow(t); }, [&](Tensor& t) { writes |= narrow(t); });
    wide.rounded.push_back(writes);
  }
  narrow(program.logits);
  // In place only what already was: an op that writes over its input would round that as well.
  plan(program, {.in_place = false});
  return wide;
}

void round_bf16(Isa isa, float* row, std::int64_t cols) {
  kernels_of(isa).bf16(row, cols);
}

std::int32_t round_f16(Isa isa, float* row, std::int64_t cols) {
  return kernels_of(isa).f16(row, cols);
}

void round_bf16(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, Out y) {
  const RoundingKernels& kernels = kernels_of(isa);
  over_rows(parallel, rows, cols, [&](std::int64_t r) { kernels.bf16(y.data + r * y.stride, cols); });
}

void round_f16(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, Out y, std::int32_t* exponents) {
  const RoundingKernels& kernels = kernels_of(isa);
  over_rows(parallel, rows, cols,
            [&](std::int64_t r) { exponents[r] = kernels.f16(y.data + r * y.stride, cols); });
}

}  // namespace nibble::cpu
