// sequence_cases.h: what the ops that touch a sequence are led through: shapes, and scripts over a world that runs one
// layer (tests/cases/sequence_on_cpu.h, tests/cuda/sequence_worlds.h).
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cases/sequence_on_cpu.h"

namespace nibble::test {

constexpr std::int32_t kRowCounts[] = {1, 2, 3, 5, 8, 16, 17, 31, 63, 64, 65, 127, 128, 129, 255, 257, 1024};

struct DeltaCase {
  const char* name;
  DeltaShape shape;  // key heads, value heads, key_dim, value_dim, taps
  std::int32_t records;
};
constexpr DeltaCase kDelta[] = {
    {"model", {2, 6, 128, 128, 4}, 4}, {"small", {1, 1, 32, 32, 4}, 1},
    {"odd", {2, 2, 33, 17, 3}, 3},     {"mixed", {1, 4, 48, 80, 2}, 6},
    {"wide", {1, 2, 130, 40, 8}, 2},   {"no_history", {2, 4, 16, 48, 1}, 5},
};
constexpr int kRaggedDelta[] = {2, 3, 5};  // of kDelta
// Those that matrix units take.
constexpr DeltaCase kDeltaUnits[] = {
    {"model", {2, 6, 128, 128, 4}, 4}, {"small", {1, 1, 32, 32, 4}, 3},      {"narrow", {1, 3, 128, 24, 4}, 3},
    {"wide", {1, 2, 128, 200, 2}, 3},  {"small_wide", {2, 2, 32, 72, 3}, 3},
};  // at least three records, for delta_ragged()

struct AttentionRow {
  const char* name;
  AttentionCase c;  // heads, kv heads, head_dim; rotary; norms
};
constexpr AttentionRow kAttention[] = {
    {"model", {{6, 1, 256}, 64, true}},  {"small", {{4, 2, 64}, 16, true}},
    {"odd", {{3, 3, 37}, 10, true}},     {"bare", {{5, 1, 96}, 96, false}},
    {"many_heads", {{40, 2, 33}, 2, true}}, {"long_head", {{2, 1, 320}, 64, true}},
};
constexpr int kRaggedAttention[] = {1, 2, 3};  // of kAttention
// Those that matrix units take.
constexpr AttentionRow kAttentionUnits[] = {
    {"model", {{6, 1, 256}, 64, true}},   {"small", {{4, 2, 64}, 16, true}},  {"middle", {{3, 1, 128}, 96, true}},
    {"many_heads", {{10, 1, 64}, 64, false}}, {"pairs", {{4, 2, 256}, 2, false}},
};

// f(E{}) for the element type of the case.
template <class F>
void with_element(bool bf16, F f) {
  if (bf16) {
    f(std::uint16_t{});
  } else {
    f(float{});
  }
}

// A prompt of `rows` cut at multiples of 64, then every way to go on from it. Two slots.
template <class World>
void delta_sequence(World& w, std::int32_t records, std::int32_t rows) {
  for (std::int32_t done = 0; done < rows;) {
    const std::int32_t next = std::min(done == 0 ? 64 : 128, rows - done);
    w.step({{Section::prefill, 0, next}}, "prompt from " + std::to_string(done));
    done += next;
  }
  w.expect_state(0, 0, "after the prompt");
  w.step({{Section::decode, 0, 1}}, "first decode");
  w.step({{Section::decode, 0, 1, 0}}, "decode, taken back");
  w.step({{Section::decode, 0, 1, 1}}, "decode, kept");
  std::int32_t pending = 1;
  for (std::int32_t keep = 0; keep <= records; ++keep) {
    w.step({{Section::verify, 0, records, std::min(keep, pending)}}, "verify before");
    pending = records;
    for (std::int32_t k = 0; k <= pending; ++k) w.expect_state(0, k, "verify");
    w.copy(0, keep, 1);
    w.expect_state(1, 0, "copied");
    w.step({{Section::decode, 1, 1}}, "decode of the copy");
    w.step({{Section::decode, 0, 1, keep}}, "decode after " + std::to_string(keep));
    pending = 1;
    w.expect_state(0, 1, "decode");
    w.expect_state(1, 1, "decode of the copy");
  }
  w.reset(1);
  // prefill takes records too, and goes on in the middle of a chunk
  w.step({{Section::prefill, 1, 3}, {Section::prefill, 0, rows, 1}}, "prompt behind a decode");
  w.expect_state(0, 0, "second prompt");
  w.expect_state(1, 0, "fresh slot");
}

// All sections in one batch, several ranges in each, rows of one range on both sides of the grid. Six slots.
template <class World>
void delta_ragged(World& w) {
  w.step({{Section::prefill, 4, 65}, {Section::prefill, 0, 64}, {Section::prefill, 5, 1}}, "three prompts");
  w.step({{Section::decode, 5, 1}, {Section::verify, 0, 3}, {Section::verify, 4, 2}, {Section::prefill, 2, 130},
          {Section::prefill, 1, 7}},
         "all sections");
  w.step({{Section::decode, 1, 1}, {Section::decode, 4, 1, 2}, {Section::decode, 2, 1}, {Section::verify, 5, 2, 1},
          {Section::prefill, 3, 63}, {Section::prefill, 0, 64, 3}},
         "all sections again");
  const std::int32_t pending[] = {0, 1, 1, 0, 1, 2};
  for (std::int32_t slot = 0; slot < 6; ++slot) {
    for (std::int32_t keep = 0; keep <= pending[slot]; ++keep) w.expect_state(slot, keep, "ragged");
  }
}

constexpr DeltaShape kWideKeys{1, 1, 520, 5, 4};  // over the tree's switch; three records
template <class World>
void delta_wide_keys(World& w) {
  w.step({{Section::prefill, 0, 70}}, "prompt");
  w.step({{Section::verify, 0, 3}}, "verify");
  w.step({{Section::decode, 0, 1, 2}}, "decode");
  w.expect_state(0, 1, "wide keys");
}

// Two slots of rows + 128 positions.
template <class World>
void attention_sequence(World& w, std::int32_t rows) {
  w.step({{Section::prefill, 0, rows}}, "prompt");
  w.step({{Section::decode, 0, 1}, {Section::prefill, 1, std::min(rows, 64)}}, "decode");
  w.step({{Section::verify, 0, 5}, {Section::verify, 1, World::kRows}}, "verify");
  w.set_position(0, rows + 3);  // two rows are taken back
  w.step({{Section::decode, 0, 1}, {Section::decode, 1, 1}}, "decode of both");
  w.step({{Section::verify, 0, 2}, {Section::prefill, 1, 41}}, "all but decode");
}

// Five slots of 320 positions.
template <class World>
void attention_ragged(World& w) {
  w.step({{Section::prefill, 4, 65}, {Section::prefill, 0, 64}, {Section::prefill, 3, 1}}, "three prompts");
  w.step({{Section::decode, 3, 1}, {Section::verify, 0, 3}, {Section::verify, 4, 9}, {Section::prefill, 2, 130},
          {Section::prefill, 1, 7}},
         "all sections");
  w.step({{Section::decode, 1, 1}, {Section::decode, 4, 1}, {Section::decode, 2, 1}, {Section::verify, 3, 2},
          {Section::prefill, 0, 66}},
         "all sections again");
}

// Splits of 1,024 keys: rows that see none, some or all of the last one. Two slots of 2,300 positions.
constexpr AttentionCase kAcrossSplits{{3, 1, 40}, 8, true};
template <class World>
void attention_across_splits(World& w) {
  w.step({{Section::prefill, 0, 1016}, {Section::prefill, 1, 2110}}, "prompts");
  w.step({{Section::decode, 1, 1}, {Section::verify, 0, 9}}, "over the border");
  w.step({{Section::decode, 0, 1}, {Section::verify, 1, 4}}, "behind it");
}

// Splits of 512 keys, as matrix units have them. Two slots of 2,300 positions.
template <class World>
void attention_across_unit_splits(World& w) {
  w.step({{Section::prefill, 0, 507}, {Section::prefill, 1, 2041}}, "prompts");
  w.step({{Section::decode, 1, 1}, {Section::verify, 0, 9}}, "over the border");
  w.step({{Section::decode, 0, 1}, {Section::verify, 1, 9}}, "the other one");
  w.set_position(0, 512);  // four rows are taken back: the border's first is decoded
  w.step({{Section::decode, 0, 1}, {Section::decode, 1, 1}}, "behind it");
}

constexpr AttentionCase kWideHead{{2, 1, 516}, 6, true};  // over the tree's switch; 192 positions
template <class World>
void attention_wide_head(World& w) {
  w.step({{Section::prefill, 0, 70}}, "prompt");
  w.step({{Section::decode, 0, 1}}, "decode");
}

}  // namespace nibble::test
