// f16_rows.cu: f16 rows with an exponent to and from float32, and their GatherRows
//   half [rows, cols] f16, exponents [rows] int32, wide [rows, cols] f32
//   map   block = one row, 256 threads
//   cost  6 bytes an element, narrow reads twice: bandwidth bound
#include "core/numerics/row_scale.h"
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/ops/f16_rows.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

struct Task {
  const StepView* step;
  Rows rows;
  int section;  // or -1: all
  std::uint16_t* half;
  std::int32_t* exponents;
  float* wide;
  std::int64_t half_stride, wide_stride;
  std::int32_t cols;
};

// The block's row, or -1.
__device__ __forceinline__ std::int64_t row_of(const Task& t) {
  const std::int64_t i = blockIdx.x;
  if (t.section < 0) return i < row_count(*t.step, t.rows) ? i : -1;
  const std::int64_t row = t.step->first_row[t.section] + i;
  return row < t.step->first_row[t.section + 1] ? row : -1;
}

__global__ __launch_bounds__(kThreads) void widen_kernel(Task t) {
  const std::int64_t row = row_of(t);
  if (row < 0) return;
  const int e = t.exponents[row];
  for (int c = static_cast<int>(threadIdx.x); c < t.cols; c += kThreads) {
    t.wide[row * t.wide_stride + c] = num::row_f16_to_float(t.half[row * t.half_stride + c], e);
  }
}

__global__ __launch_bounds__(kThreads) void narrow_kernel(Task t) {
  __shared__ std::uint32_t most;
  const std::int64_t row = row_of(t);
  if (row < 0) return;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  const float* wide = t.wide + row * t.wide_stride;
  std::uint32_t own = 0;
  for (int c = static_cast<int>(threadIdx.x); c < t.cols; c += kThreads) {
    const std::uint32_t m = num::finite_magnitude(wide[c]);
    own = m > own ? m : own;
  }
  atomicMax(&most, own);
  __syncthreads();
  const int e = num::activation_exponent(most);
  for (int c = static_cast<int>(threadIdx.x); c < t.cols; c += kThreads) {
    t.half[row * t.half_stride + c] = num::activation_to_f16(wide[c], e);
  }
  if (threadIdx.x == 0) t.exponents[row] = e;
}

__global__ __launch_bounds__(kThreads) void gather_kernel(const StepView* step, std::int32_t cols,
                                                          TypedRows<const std::uint16_t> x,
                                                          const std::int32_t* from,
                                                          TypedRows<std::uint16_t> y, std::int32_t* to) {
  const std::int64_t o = blockIdx.x;
  if (o >= step->outputs) return;
  const std::int64_t row = step->output_rows[o];
  for (int c = static_cast<int>(threadIdx.x); c < cols; c += kThreads) y.row(o)[c] = x.row(row)[c];
  if (threadIdx.x == 0) to[o] = from[row];
}

Task task_of(const Launch& to, const F16RowsArgs& a, const Section* section) {
  return {to.step,
          a.half.rows,
          section == nullptr ? -1 : static_cast<int>(*section),
          reinterpret_cast<std::uint16_t*>(a.half.data),
          a.half.exponents,
          reinterpret_cast<float*>(a.wide.data),
          a.half.stride,
          a.wide.stride,
          a.half.cols};
}

}  // namespace

void widen_rows(const Launch& to, const F16RowsArgs& a, const Section* section) {
  const auto rows = static_cast<unsigned>(to.max_of(a.half.rows));
  if (rows > 0) widen_kernel<<<rows, kThreads, 0, to.stream>>>(task_of(to, a, section));
}

void narrow_rows(const Launch& to, const F16RowsArgs& a, const Section* section) {
  const auto rows = static_cast<unsigned>(to.max_of(a.half.rows));
  if (rows > 0) narrow_kernel<<<rows, kThreads, 0, to.stream>>>(task_of(to, a, section));
}

void gather_f16_rows(const Launch& to, const View& x, const View& y) {
  const auto rows = static_cast<unsigned>(to.max_outputs);
  if (rows == 0) return;
  gather_kernel<<<rows, kThreads, 0, to.stream>>>(to.step, x.cols, typed<const std::uint16_t>(x),
                                                  x.exponents, typed<std::uint16_t>(y), y.exponents);
}

}  // namespace nibble::cuda
