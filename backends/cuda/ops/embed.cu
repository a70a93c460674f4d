// embed.cu: y[t, c] = operand of table[token[t], c] * its tensor, row or block scale
//   table  an image as Linear reads it: an f16 or f32 table's operand was rounded to bf16 when it was packed
//   map    block = (row, 1,024 columns); 256 threads, 4 columns each, 256 apart
//   cost   operand bytes read, one write -> latency bound at few rows
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/device/weight_decode.cuh"
#include "backends/cuda/ops/linear.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 1024;

template <class Y>
__global__ __launch_bounds__(kThreads) void embed_kernel(const StepView* step, WeightImage table,
                                                         TypedRows<Y> y, Rows rows) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  if (row >= row_count(*step, rows)) return;
  const std::int64_t n = step->tokens[row];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kColumns;
  const std::int64_t across = (table.cols + 127) / 128;
  const float alpha = table.alpha[n];
  Y* out = y.row(row);
  for (std::int64_t c = first + threadIdx.x; c < first + kColumns && c < table.cols; c += kThreads) {
    const float scale = table.block == nullptr ? alpha : table.block[n / 128 * across + c / 128];
    put(out + c, num::mul(weight_value(table, n, c), scale));
  }
}

}  // namespace

void embed(const Launch& to, const EmbedArgs& args) {
  const std::int64_t rows = to.max_of(args.y.rows);
  if (rows <= 0) return;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((args.table.cols + kColumns - 1) / kColumns));
  with_type(args.y.dtype, [&](auto* type) {
    using Y = std::remove_pointer_t<decltype(type)>;
    embed_kernel<Y><<<grid, kThreads, 0, to.stream>>>(to.step, args.table, typed<Y>(args.y),
                                                      args.y.rows);
  });
}

}  // namespace nibble::cuda
