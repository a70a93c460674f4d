// delta_gates.cu: g = neg_exp_a[h] * softplus(a + dt_bias[h]), beta = sigmoid(b)
//   a, b, g, beta [T, value_heads] f32; neg_exp_a, dt_bias [value_heads]
//   map   thread = one head of one row        parity: ordered        needs nothing; any arch
//   cost  16 bytes, two exp and ten div an element -> launch bound
#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/ops/sequence.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void gates(const StepView* steps, Rows count, int heads, TypedRows<float> a,
                      TypedRows<float> b, const float* neg_exp_a, const float* dt_bias,
                      TypedRows<float> g, TypedRows<float> beta) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = i / heads;
  if (row >= row_count(*steps, count)) return;
  const int h = static_cast<int>(i % heads);
  const float dt = num::softplus(num::add(a.row(row)[h], dt_bias[h]));
  const float open = num::sigmoid(b.row(row)[h]);
  g.row(row)[h] = num::mul(neg_exp_a[h], dt);
  beta.row(row)[h] = open;
}

}  // namespace

void delta_gates(const Launch& to, const DeltaGatesArgs& args) {
  const std::int64_t n = to.max_of(args.a.rows) * args.a.cols;
  if (n <= 0) return;
  const unsigned grid = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  gates<<<grid, kThreads, 0, to.stream>>>(to.step, args.a.rows, args.a.cols, typed<float>(args.a),
                                          typed<float>(args.b), args.neg_exp_a, args.dt_bias,
                                          typed<float>(args.g), typed<float>(args.beta));
}

}  // namespace nibble::cuda
