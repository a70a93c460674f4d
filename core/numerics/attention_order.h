// attention_order.h: how profiles sm90, sm120 and sm70 compute Attention (core/ops/ops.h) on matrix units, for the head
// sizes that attention_on_units() names. sm90 and sm120, for the row at position p and one head:
//
//   mma(c; a b)   as in delta_order.h: fused sums (fused_dot.h) of groups of 16, F = 25, ascending; c is +0 where none is
//                 given. q and k over all of head_dim, keys over all 64 of a tile
//   tiles         of 64 keys at absolute positions, ascending, up to the one that holds p. m, l, O start at -inf, 0, 0
//   splits        prefill rows have none. Decode and verify rows: of kAttentionSplit keys at absolute positions, up to the
//                 one that holds p; m, l, O start anew in each
//
//   x_j  = mma(q k_j) * scale                     bf16; -inf for keys beyond p
//   m'   = max(m, max over the tile's x_j)        NaN ignored
//   f    = 1 where m' == m, else num::exp(m - m') so 0 at the first tile
//   w_j  = num::exp(x_j - m')                     0 for keys beyond p; 1 where x_j == m', so that infinities leave no NaN
//   l    = fma(l, f, sum of w_j)                  four chains of additions from +0, chain c of the keys j of the tile with
//                                                 (j / 2) % 4 == c, ascending; then (0 + 1) + (2 + 3)
//   O[d] = mma(f * O[d]; bf16(w_j) v_j[d])        bf16, over the tile's 64 keys
//   splits are combined ascending as in ops.h: m = max(m_a, m_b), f = num::exp(m_a - m), h = num::exp(m_b - m),
//   l = fma(l_b, h, l_a * f), O = fma(O_b, h, O_a * f); one is taken as it is
//   y[d] = O[d] * num::div(1, l)                  behind the last tile and split
//
// Keys and values in fp8 (kv_codes.h) are codes c with scales k_j and v_j: x_j = (mma(q c_j) * k_j) * scale, and of the
// products with values, whose left operand is bf16(w_j * v_j), 0 for keys beyond p; l sums w_j.
//
// Of prefill rows, values of keys that the sequence does not have yet, beyond the rows of this batch, count as +0. A value
// that is no number makes rows no numbers that share its tile, earlier ones too: 0 * NaN. Of decode and verify rows all
// values beyond p count as +0: what lies behind a row changes nothing, and a row is the same alone and among others.
// Queries of other heads and rows change nothing.
//
// Profile sm70 computes prefill rows so, for the same head sizes, with f16 operands: mma has groups of 4, F = 23. Queries,
// keys and values are float32, as what is made of rows of f16; what is too large for f16 enters by a power of two, which is
// 1 for the values that models have. Its decode and verify rows are those of ops.h.
//
//   f16(x; e)     num::weight_to_f16(x, e): f16(x * 2^-e)
//   e_q, e_K, e_V num::activation_exponent of the largest finite magnitude of the row's query, and of the tile's keys and
//                 values, those that the sequence has with all rows of this batch
//
//   x_j  = ((mma(f16(q; e_q) f16(k_j; e_K)) * 2^e_q) * 2^e_K) * scale
//   l    as above, but chain c has the keys j of the tile with j / 2 % 2 + 2 * (j / 8 % 2) == c
//   O[d] = fma(2^e_V, mma(f16(w_j; 0) f16(v_j[d]; e_V)), f * O[d])
#pragma once

#include "core/numerics/matrix_order.h"
#include "core/ops/ops.h"

namespace nibble::num {

constexpr int kAttentionTile = 64;
constexpr int kAttentionSplit = 512;  // keys of a split of decode and verify rows

NIBBLE_HD constexpr bool attention_on_units(const AttentionShape& s) {
  return s.head_dim == 64 || s.head_dim == 128 || s.head_dim == 256;
}

}  // namespace nibble::num
