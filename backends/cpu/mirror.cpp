#include "backends/cpu/mirror.h"

#include <algorithm>

#include "core/numerics/codecs.h"
#include "core/program/planner.h"
#include "nibble/error.h"

namespace nibble::cpu {

void check_mirror(const std::string& profile) {
  if (profile.empty() || profile == "sm90") return;
  throw Error(ErrorCode::unsupported,
              "[cpu] mirror: expected one of the profiles that can be mirrored (sm90), found \"" +
                  profile + "\"");
}

std::vector<bool> widen(Program& program) {
  for (Buffer& b : program.buffers) {
    if (b.dtype != DType::bf16) continue;
    b.dtype = DType::f32;
    b.bytes *= 2;
  }
  const auto narrow = [](Tensor& t) {
    const bool was = t.valid() && t.dtype == DType::bf16;
    if (was) t.dtype = DType::f32;
    return was;
  };
  std::vector<bool> rounded;
  for (Op& op : program.ops) {
    bool writes = false;
    visit_tensors(op.args, [&](Tensor& t) { narrow(t); }, [&](Tensor& t) { writes |= narrow(t); });
    rounded.push_back(writes);
  }
  narrow(program.logits);
  // In place only what already was: an op that writes over its input would round that as well.
  plan(program, {.in_place = false});
  return rounded;
}

void round_bf16(Parallel& parallel, std::int64_t rows, std::int64_t cols, Out y) {
  parallel(rows, std::max<std::int64_t>(1, 32768 / cols),
           [&](std::int64_t begin, std::int64_t end) {
             for (std::int64_t r = begin; r < end; ++r) {
               float* const row = y.data + r * y.stride;
               for (std::int64_t c = 0; c < cols; ++c) {
                 row[c] = num::bf16_to_float(num::float_to_bf16(row[c]));
               }
             }
           });
}

}  // namespace nibble::cpu
