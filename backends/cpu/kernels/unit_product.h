// unit_product.h: products of small matrices as a profile's matrix unit adds them (core/numerics/fused_dot.h), 16
// columns at a time. Min: the least exponent of the operands' format.
#pragma once

#include "backends/cpu/kernels/fused_group.h"
#include "backends/cpu/kernels/sequence_kernels.h"

namespace nibble::cpu::NIBBLE_ISA {

template <int Min>
struct Left {  // [rows, stride]
  float* values;
  std::int32_t* exponents;
  int rows, stride;
  bool ordinary;

  void finish() {
    const int count = rows * stride;
    std::int32_t others = 0;
    for (int i = 0; i < count; ++i) {
      exponents[i] = row_exponent<Min>(values[i]);
      others |= is_ordinary<Min>(values[i]) ? 0 : 1;
    }
    ordinary = others == 0;
  }
};

template <int Min>
struct Right {  // [rows, 16]
  float* values;
  std::int16_t* exponents;
  int rows;
  bool ordinary;

  void finish() { ordinary = panel_exponents<Min>(values, rows, exponents); }
};

template <int G, int F, int Min, int Rows>
__attribute__((noinline)) void unit_row_chains(const Left<Min>& a, const Right<Min>& b, int row, float* c) {
  const int at = row * a.stride;
  fused_chain<G, F, Min, 24, Rows>(a.values + at, a.exponents + at, a.stride, b.values, b.exponents, b.rows,
                                   a.ordinary && b.ordinary, c + row * kPanel);
}

// c [.., 16] of rows begin .. end. Not inlined: what is computed around it rounds to nearest.
template <int G, int F, int Min>
__attribute__((noinline)) void unit_mma(const Left<Min>& a, const Right<Min>& b, int begin, int end, float* c) {
  const TowardZero mode;
  int row = begin;
  for (; row + 2 <= end; row += 2) unit_row_chains<G, F, Min, 2>(a, b, row, c);
  if (row < end) unit_row_chains<G, F, Min, 1>(a, b, row, c);
}

}  // namespace nibble::cpu::NIBBLE_ISA
