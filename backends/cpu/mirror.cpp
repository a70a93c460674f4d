#include "backends/cpu/mirror.h"

#include <algorithm>

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

Profile profile_from_name(const std::string& name) {
  if (name.empty()) return Profile::f32;
  if (name == "sm70") return Profile::sm70;
  if (name == "sm90") return Profile::sm90;
  if (name == "sm120") return Profile::sm120;
  throw Error(ErrorCode::no_device,
              "[cpu] mirror: expected one of the profiles that can be mirrored (sm70, sm90, sm120), "
              "found " +
                  in_quotes(name));
}

Widened widen(Program& program, Profile profile) {
  Widened wide;
  if (profile == Profile::f32) return wide;
  const DType operand = operand_type(profile);
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
