// delta_order.h: how profiles sm90, sm120 and sm70 compute prefill rows of the gated delta rule (DeltaRule in core/ops/ops.h)
// on matrix units, for the head sizes that delta_on_units() names. Chunks and G are those of ops.h; rows beyond a chunk's C
// are rows of zeros with beta 0, and G_i = G_last there.
//
//   mma(c; a b)    c and the products a_x b_x as a matrix instruction adds them: fused sums (fused_dot.h) of groups,
//                  ascending, the result of one is the accumulator of the next. bf16: groups of 16, F = 25; tf32: of 8,
//                  F = 25. c is +0 where none is given. Sums over j or x run over all 64 rows or all of key_dim
//   d(x)           num::exp(x)
//   bf16, tf32     the operand as rounded: num::float_to_bf16, delta_tf32
//
//   Z[i, j] = mma(k_i k_j),  W[i, j] = mma(q_i k_j)                                    bf16, over key_dim
//   L[i, j] = (beta_i * Z[i, j]) * d(G_i - G_j)    j < i, else 0; all four factors in float32
//   X = (I + L)^-1 in blocks of 16, float32, block (r, c) of rows 16 r .. and columns 16 c ..:
//     r = c   X[j, j] = 1; X[i, j] = -(chain over the block's m < i of L[i, m] X[m, j]), i > j; 0 above
//     r > c   Y = chain over m = 16 c .. 16 r - 1 of L[i, m] X[m, j], then
//             X[i, j] = -(chain over the 16 m of block r of X[i, m] Y[m, j]); nearer blocks first (r - c = 1, 2, 3)
//   A[i, j] = tf32(X[i, j] * beta_j),   M[i, j] = bf16(W[i, j] * d(G_i - G_j))         j <= i, else 0
//   P[i, v] = mma(k_i[x] bf16(S[x, v])),  Q[i, v] = mma(q_i[x] bf16(S[x, v]))
//   R[i, v] = tf32(fma(-d(G_i), P[i, v], value_i[v]))
//   U[i, v] = mma(A[i, j] R[j, v])                                                      tf32, over j
//   o_i[v]  = mma(d(G_i) * Q[i, v]; M[i, j] bf16(U[j, v]))                              bf16, over j
//   S[x, v] = mma(d(G_last) * S[x, v]; k_j[x] bf16(d(G_last - G_j) * U[j, v]))          bf16, over j
//
// Profile sm70 has f16 operands only (groups of 4, F = 23), and no range to spare in them. Keys and queries are exact in
// f16; what may be large enters scaled, each column v by a power of two of its own, and beta leaves A, whose elements
// then are 1 at most:
//
//   f16(x)         num::float_to_f16
//   e_Y(v)         num::weight_exponent of the largest finite magnitude of column v of Y: of S over all x, of R and U over
//                  the chunk's 64 rows
//   f16(x; e)      num::weight_to_f16(x, e): f16(x * 2^-e)
//
//   Z, W, L, X     as above, of f16(k), f16(q)
//   A[i, j] = f16(X[i, j]),   M[i, j] = f16(W[i, j] * d(G_i - G_j))                       j <= i, else 0
//   P[i, v] = mma(f16(k_i)[x] f16(S[x, v]; e_S)) * 2^e_S,   Q[i, v] likewise of q_i
//   R[i, v] = beta_i * fma(-d(G_i), P[i, v], value_i[v])
//   U[i, v] = mma(A[i, j] f16(R[j, v]; e_R)) * 2^e_R                                      over j
//   o_i[v]  = fma(2^e_U, mma(M[i, j] f16(U[j, v]; e_U)), d(G_i) * Q[i, v])                over j
//   S[x, v] = fma(2^e_U, mma(f16(k_j)[x] f16(d(G_last - G_j) * U[j, v]; e_U)), d(G_last) * S[x, v])
//
// So U are u of ops.h by A = (I + L)^-1 diag(beta), as in "Gated Delta Networks" (arXiv 2412.06464), and S stays float32.
// A row that is no number makes its chunk's rows no numbers, earlier ones too; other sequences do not see it.
#pragma once

#include "core/numerics/matrix_order.h"
#include "core/ops/ops.h"

namespace nibble::num {

constexpr MatrixOrder kSm90Tf32Order{8, 25};
constexpr int kDeltaBlock = 16;  // of the inverse

// Values come in eights: rows of qkv are then whole multiples of 16 bytes, as the copy engine wants them.
NIBBLE_HD constexpr bool delta_on_units(const DeltaShape& d) {
  return (d.key_dim == 32 || d.key_dim == 128) && d.value_dim % 8 == 0;
}

// To nearest, ties away from zero; NaN is 0x7FFFFFFF.
NIBBLE_HD float delta_tf32(float x) {
  const std::uint32_t bits = bit_cast<std::uint32_t>(x), size = bits & 0x7FFFFFFFu;
  return bit_cast<float>(size > 0x7F800000u ? 0x7FFFFFFFu : (bits + 0x1000u) & ~0x1FFFu);
}

}  // namespace nibble::num
