// rowwise.h: the ops that know no sequence and sum over one row at most; contracts: core/ops/ops.h.
// All matrices are row-major float32. An output may be its own input, row for row.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "backends/cpu/packed_weight.h"
#include "backends/cpu/parallel.h"

namespace nibble::cpu {

struct In {
  const float* data;
  std::int64_t stride;  // elements from row to row
};
struct Out {
  float* data;
  std::int64_t stride;
};

// y[t, :] = table[tokens[t], :], the operand of Linear times its block128, tensor or row scale.
void embed(Parallel& parallel, const PackedWeight& table, const std::int32_t* tokens,
           std::int64_t rows, Out y);

// y[o, :] = x[row[o], :]
void gather_rows(Parallel& parallel, In x, const std::int32_t* row, std::int64_t outputs,
                 std::int64_t cols, Out y);

void add(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, In a, In b, Out y);
void swiglu(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, In gate, In up,
            Out y);

// Head h of gate lies at columns h * gate_head_stride.
void sigmoid_gate(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t heads,
                  std::int64_t head_dim, In x, In gate, std::int64_t gate_head_stride, Out y);

void rms_norm(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, In x,
              const float* weight, float eps, Out y);
// sum = a + b, and its norm; the sum may be a.
struct SumArgs {
  In a, b;
  Out sum;
};
void add_rms_norm(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t cols, const SumArgs& sum,
                  const float* weight, float eps, Out y);
void gated_rms_norm(Isa isa, Parallel& parallel, std::int64_t rows, std::int64_t heads,
                    std::int64_t group, In x, In z, const float* weight, float eps, Out y);

}  // namespace nibble::cpu
