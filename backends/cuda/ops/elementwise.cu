// elementwise.cu: Add, SwiGlu, SigmoidGate and GatherRows of core/ops/ops.h.
//   inputs and outputs f32 or bf16, each its own; y may be one of the inputs, element for element
//   map   a block 1,024 columns of a row; 4 neighbouring columns a thread
//   cost  6 to 12 bytes an element: bandwidth bound
#include <type_traits>

#include "backends/cuda/device/pairs.cuh"
#include "backends/cuda/device/wide.cuh"
#include "backends/cuda/ops/eights.h"

namespace nibble::cuda {
namespace {

// Column c of a and y goes with column c / head_dim * b_head_stride + c % head_dim of b.
struct Shape {
  const StepView* step;
  Rows rows;
  std::int32_t cols, head_dim;
  std::int64_t b_head_stride;
  unsigned pieces;  // blocks of a row
  bool wide;
};

template <class A, class B, class Y, class F>
__global__ void __launch_bounds__(kPieceThreads)
    pairs(Shape s, TypedRows<const A> a, TypedRows<const B> b, TypedRows<Y> y, F f) {
  const std::int64_t row = blockIdx.x / s.pieces;
  const int c =
      static_cast<int>(blockIdx.x % s.pieces) * kPieceColumns + 4 * static_cast<int>(threadIdx.x);
  if (row >= row_count(*s.step, s.rows) || c >= s.cols) return;
  const int count = min(4, s.cols - c);
  float u[4], v[4], w[4];
  load_up_to_4(a.row(row) + c, count, s.wide, u);
  const B* const of_b = b.row(row);
  const int head = c / s.head_dim, at = c - head * s.head_dim;
  if (at + count <= s.head_dim) {
    load_up_to_4(of_b + head * s.b_head_stride + at, count, s.wide, v);
  } else {
    for (int i = 0; i < 4; ++i) {
      const int h = (c + i) / s.head_dim;
      v[i] = i < count ? widen(of_b[h * s.b_head_stride + (c + i - h * s.head_dim)]) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = f(u[i], v[i]);
  store_up_to_4(y.row(row) + c, count, s.wide, w);
}

template <class X, class Y>
__global__ void __launch_bounds__(kPieceThreads)
    gather(const StepView* step, std::int32_t cols, unsigned pieces, bool wide,
           TypedRows<const X> x, TypedRows<Y> y) {
  const std::int64_t o = blockIdx.x / pieces;
  const int c =
      static_cast<int>(blockIdx.x % pieces) * kPieceColumns + 4 * static_cast<int>(threadIdx.x);
  if (o >= step->outputs || c >= cols) return;
  const int count = min(4, cols - c);
  float v[4];
  load_up_to_4(x.row(step->output_rows[o]) + c, count, wide, v);
  store_up_to_4(y.row(o) + c, count, wide, v);
}

template <class F>
void run(const Launch& to, const View& a, const View& b, const View& y, std::int32_t cols,
         std::int32_t head_dim, std::int64_t b_head_stride, F f) {
  const std::int64_t blocks = to.max_of(a.rows) * pieces_of(cols);
  if (blocks <= 0) return;
  const bool one_head = head_dim == cols;
  const bool wide = is_wide(a) && is_wide(b) && is_wide(y) &&
                    (one_head || (head_dim % 4 == 0 && b_head_stride % 4 == 0));
  const Shape shape{
      to.step, a.rows, cols, head_dim, b_head_stride, static_cast<unsigned>(pieces_of(cols)), wide};
  with_type(a.dtype, [&](auto* ta) {
    with_type(b.dtype, [&](auto* tb) {
      with_type(y.dtype, [&](auto* ty) {
        using A = std::remove_pointer_t<decltype(ta)>;
        using B = std::remove_pointer_t<decltype(tb)>;
        using Y = std::remove_pointer_t<decltype(ty)>;
        pairs<<<static_cast<unsigned>(blocks), kPieceThreads, 0, to.stream>>>(
            shape, typed<const A>(a), typed<const B>(b), typed<Y>(y), f);
      });
    });
  });
}

}  // namespace

void add(const Launch& to, const AddArgs& args) {
  run(to, args.a, args.b, args.y, args.a.cols, args.a.cols, 0, Sum{});
}

void swiglu(const Launch& to, const SwiGluArgs& args) {
  if (swiglu_eights(to, args, nullptr) == nullptr) return;
  run(to, args.gate, args.up, args.y, args.gate.cols, args.gate.cols, 0, SiluTimes{});
}

void sigmoid_gate(const Launch& to, const SigmoidGateArgs& args) {
  run(to, args.x, args.gate, args.y, args.heads * args.head_dim, args.head_dim,
      args.gate_head_stride, TimesSigmoid{});
}

void gather_rows(const Launch& to, const GatherRowsArgs& args) {
  const std::int64_t pieces = pieces_of(args.x.cols), blocks = to.max_outputs * pieces;
  if (blocks <= 0) return;
  const bool wide = is_wide(args.x) && is_wide(args.y);
  with_type(args.x.dtype, [&](auto* tx) {
    with_type(args.y.dtype, [&](auto* ty) {
      using X = std::remove_pointer_t<decltype(tx)>;
      using Y = std::remove_pointer_t<decltype(ty)>;
      gather<<<static_cast<unsigned>(blocks), kPieceThreads, 0, to.stream>>>(
          to.step, args.x.cols, static_cast<unsigned>(pieces), wide, typed<const X>(args.x),
          typed<Y>(args.y));
    });
  });
}

}  // namespace nibble::cuda
