// delta_sm70_maps.h: which element of which matrix a lane of delta_sm70_prepare.cuh and delta_sm70_pass.cuh has, and where
// operands lie in shared memory and in the records. A warp's four quad-pairs are two by two: bit 3 of the lane says which
// eight of 16 rows, bit 2 which eight of 16 columns. Sums: index i of a lane's eight, as mma_f16.cuh has them.
//
//   turned (bit 1 of i and of the lane change places)   a lane has all eight columns of a row: operands, k = column
//   turned (bit 0 of both)                              four neighbouring rows of two columns: 16 bytes of a token
//   x of S^T     16 at a time to a quad-pair, in two tiles, so that 16 bytes of a key are columns of both; k of P is
//                ascending if of each eight the first tile's four come first
//   keys         rows of 16-byte chunks, chunk c at c with bits turned by the row: the eight lanes that a load serves at
//                once find different banks, rows as columns (P, Q) and rows as k (S) alike
//   squares      A, M: columns 0 .. 31 of all rows, then 32 .. 63 of rows 32 .. 63; the rest is above the diagonal
#pragma once

#include "core/numerics/scalar.h"

namespace nibble::cuda::sm70 {

constexpr int kChunk = 64;
constexpr int kTokenTiles = 4;  // of a lane: eight tokens each
constexpr int kDownBit = 8, kAcrossBit = 4;

NIBBLE_HD constexpr int down_of(int lane) { return lane >> 3 & 1; }
NIBBLE_HD constexpr int across_of(int lane) { return lane >> 2 & 1; }
NIBBLE_HD constexpr int upper_of(int lane) { return lane >> 4 & 1; }
// Of an operand with k along the register: a lane's row of 16 (A) or column of eight (B).
NIBBLE_HD constexpr int eighth_of(int lane) { return lane % 4 + upper_of(lane) * 4; }
NIBBLE_HD constexpr int operand_row(int lane) { return down_of(lane) * 8 + eighth_of(lane); }
// Of sums: row of 16, column of eight.
NIBBLE_HD constexpr int sum_row(int lane, int i) { return down_of(lane) * 8 + upper_of(lane) * 4 + (i & 2) + (lane & 1); }
NIBBLE_HD constexpr int sum_col(int lane, int i) { return (i & 4) + (lane & 2) + (i & 1); }
// Columns that are tokens, tile m of four.
NIBBLE_HD constexpr int first_token(int lane, int m) { return 16 * m + across_of(lane) * 8; }
NIBBLE_HD constexpr int sum_token(int lane, int m, int i) { return first_token(lane, m) + sum_col(lane, i); }
// After bit 0 was turned: row and token of i.
NIBBLE_HD constexpr int four_row(int lane) { return down_of(lane) * 8 + upper_of(lane) * 4; }  // + i % 4
NIBBLE_HD constexpr int four_token(int lane, int m, int half) { return first_token(lane, m) + lane % 4 + 4 * half; }
// Columns that are x: tiles 0 and 1 of 16 x of group 2 n + across.
NIBBLE_HD constexpr int first_x(int lane, int n) { return 32 * n + across_of(lane) * 16; }
NIBBLE_HD constexpr int sum_x(int lane, int n, int tile, int i) {
  return first_x(lane, n) + (i & 4) * 2 + tile * 4 + (lane & 2) + (i & 1);
}

// Places are in units of 16 bytes.
template <int KeyDim>
NIBBLE_HD constexpr int key_place(int row, int eight) {
  if (KeyDim == 32) return row * 4 + (eight ^ ((row >> 1 & 1) | (row >> 3 & 1) << 1));
  return row * (KeyDim / 8) + (eight ^ ((row & 1) | (row >> 3 & 1) << 1 | (row & 2) << 1));
}
template <int KeyDim>
constexpr int kKeyPlaces = kChunk * KeyDim / 8;
// Not of columns from 32 on in rows below 32.
NIBBLE_HD constexpr int square_place(int row, int eight) {
  const int turned = (eight % 4) ^ ((row >> 1 & 1) | (row >> 3 & 1) << 1);
  return eight < 4 ? row * 4 + turned : kChunk * 4 + (row - kChunk / 2) * 4 + turned;
}
constexpr int kSquarePlaces = kChunk * 4 + kChunk / 2 * 4;
// The block of 16 by 16 that this chunk of a tile's rows is in lies above the diagonal: zeros, which lie nowhere.
NIBBLE_HD constexpr bool above_diagonal(int m, int eight) { return eight / 2 > m; }

// A record: A, M, then d(G_i), d(G_last - G_i) and beta_i of the chunk's rows.
constexpr int kMAt = kSquarePlaces * 16, kGrownAt = 2 * kMAt, kRestAt = kGrownAt + kChunk * 4, kBetaAt = kRestAt + kChunk * 4;
constexpr int kRecordBytes = kBetaAt + kChunk * 4;
constexpr int kRecordPlaces = kRecordBytes / 16;
// Keys, then queries, of a chunk and key head.
template <int KeyDim>
constexpr int kKeysBytes = 2 * kKeyPlaces<KeyDim> * 16;

}  // namespace nibble::cuda::sm70
