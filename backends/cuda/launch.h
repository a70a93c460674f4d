// launch.h: what every op's launch function takes. Launch functions only enqueue: no allocation, no
// synchronisation, no copy to or from the host, so that they can be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/step_view.h"
#include "core/program/tensor.h"

namespace nibble::cuda {

struct Launch {
  cudaStream_t stream = nullptr;
  const StepView* step = nullptr;  // device address, constant for the life of the program
  std::int64_t max_rows = 0;       // of the program class: grids are sized by these,
  std::int64_t max_outputs = 0;    // blocks beyond the step's own counts return at once
  std::int32_t max_ranges = 0;     // sequences of one step at most
  int multiprocessors = 0;
  // linear_sums_bytes() for partial sums, zero at first; null: none. Launches that share it follow one another: two
  // at once would mix their sums.
  std::byte* sums = nullptr;
  std::int32_t experts_per_token = 0;  // the program's
  std::int64_t max_of(Rows r) const {
    switch (r) {
      case Rows::tokens:
        return max_rows;
      case Rows::outputs:
        return max_outputs;
      case Rows::routed:
        return max_rows * experts_per_token;
      case Rows::one:
        return 1;
    }
    return 0;
  }
};

// A tensor resolved to a device address: element (r, c) at data + r * stride + c elements.
struct View {
  std::byte* data = nullptr;
  DType dtype = DType::f32;  // f32, bf16, f16 or u8
  Rows rows = Rows::tokens;
  std::int64_t stride = 0;
  std::int32_t cols = 0;
  std::int32_t* exponents = nullptr;  // of f16: row r is its elements times 2^exponents[r]
};

}  // namespace nibble::cuda
