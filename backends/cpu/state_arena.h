// state_arena.h: where the CPU keeps the state of sequences, inside memory that the caller owns.
// Sizes are known before; nothing is allocated after construction.
//
// Columns lie in panels of 16 (kernels/tile.h), the last one padded with +0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "backends/cpu/kernels/sequence_kernels.h"
#include "core/schedule/batch.h"
#include "core/state/slot_cursors.h"
#include "core/state/state_layout.h"

namespace nibble::cpu {

// Delta-net layers. For each layer and slot:
//   S        [value_heads, panels, key_dim, 16]
//   conv     ring of raw inputs, [kernel - 1 + records, channels], row of a position at position
//            modulo the ring's length: taking rows back leaves it as it is
//   records  two halves of {key [records, key_heads, key_dim], u [records, value_heads, panels *
//   16],
//            decay [records, value_heads]}: a step reads one half and fills the other
class DeltaArena {
 public:
  // 64-byte aligned blocks; throws Error(out_of_memory) when the sum overflows and
  // Error(unsupported) for shapes that no kernel takes.
  static std::uint64_t bytes(const StateLayout& layout, const StateSizes& sizes);

  // Touches nothing of `memory` (64-byte aligned): a slot holds a sequence from reset() or load()
  // on.
  DeltaArena(std::span<std::byte> memory, const StateLayout& layout, const StateSizes& sizes);

  std::int32_t layers() const { return static_cast<std::int32_t>(layers_.size()); }
  std::int32_t records() const { return records_; }
  const DeltaShape& shape(std::int32_t layer) const { return layers_[index(layer)].shape; }

  float* s(std::int32_t layer, std::int32_t slot, std::int32_t value_head) const;
  float* conv_row(std::int32_t layer, std::int32_t slot, std::int64_t position) const;
  // The first `count` records of the last step, one value head, from its panel `panel` on.
  RecordView records(std::int32_t layer, std::int32_t slot, std::int32_t value_head,
                     std::int32_t panel, std::int32_t count) const;
  // Where the step's own rows are recorded; strides are those of records().
  struct RecordSlots {
    float *key, *u, *decay;
  };
  RecordSlots new_records(std::int32_t layer, std::int32_t slot, std::int32_t value_head,
                          std::int32_t panel) const;

  const SlotCursors& cursors() const { return cursors_; }
  // After all layers of a step have run.
  void end_step(std::span<const Range> ranges) { cursors_.end_step(ranges); }

  // A new sequence: zeros, position 0.
  void reset(std::int32_t slot);

  // State of a slot as flat bytes, the first `keep` pending records folded in, the others dropped.
  std::uint64_t snapshot_bytes() const;
  void save(std::int32_t slot, std::int32_t keep, const SequenceKernels& kernels,
            std::span<std::byte> to) const;
  void load(std::int32_t slot, std::span<const std::byte> from);
  std::vector<HostState::DeltaLayer> to_host(std::int32_t slot, std::int32_t keep,
                                             const SequenceKernels& kernels) const;

 private:
  struct Layer {
    DeltaShape shape{};
    std::int32_t panels = 0;
    std::int64_t head_floats = 0, conv_rows = 0, conv_stride = 0;        // S of a head; ring
    std::int64_t key_stride = 0, u_stride = 0, decay_stride = 0;         // of one record
    std::int64_t s_slot = 0, conv_slot = 0, record_half = 0, total = 0;  // floats
    float *s = nullptr, *conv = nullptr, *record = nullptr;
  };
  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  static std::vector<Layer> plan(const StateLayout& layout, const StateSizes& sizes);
  float* record_half(const Layer& layer, std::int32_t slot, std::int32_t half) const;
  void fold_head(std::int32_t layer, std::int32_t slot, std::int32_t keep, std::int32_t value_head,
                 const SequenceKernels& kernels, float* to) const;

  std::vector<Layer> layers_;
  SlotCursors cursors_;
  std::int32_t records_ = 0;
};

// Attention layers: pages of 64 positions. In each layer, page and kv head: keys [4, head_dim, 16]
// (16 positions a panel), then values [panels, 64, 16]: floats, or in fp8 codes of a byte (core/numerics/kv_codes.h), and
// behind them the scales of 64 keys and of 64 values, floats.
class KvArena {
 public:
  static std::uint64_t bytes(const StateLayout& layout, const StateSizes& sizes);
  KvArena(std::span<std::byte> memory, const StateLayout& layout, const StateSizes& sizes);

  std::int32_t layers() const { return static_cast<std::int32_t>(layers_.size()); }
  std::int64_t pages() const { return pages_; }
  bool fp8() const { return fp8_; }
  const AttentionShape& shape(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].shape;
  }
  // Page p of a kv head starts at head(layer, kv_head) + p * page_stride(layer).
  float* head(std::int32_t layer, std::int32_t kv_head) const;
  std::int64_t page_stride(std::int32_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].page_stride;
  }
  // Where a page in fp8 has what; pages start at their floats.
  static std::uint8_t* codes(float* page) { return reinterpret_cast<std::uint8_t*>(page); }
  static float* key_scales(const AttentionShape& shape, float* page) {
    return page + kv_page_elements(shape.head_dim) / static_cast<std::int64_t>(sizeof(float));
  }
  static float* value_scales(const AttentionShape& shape, float* page) { return key_scales(shape, page) + kTile; }
  // Element d of a key or value at a place (0 .. 63) of a page.
  static std::int64_t key_at(const AttentionShape& shape, std::int64_t place, std::int64_t d) {
    return (place / kPanel * shape.head_dim + d) * kPanel + place % kPanel;
  }
  static std::int64_t value_at(const AttentionShape& shape, std::int64_t place, std::int64_t d) {
    return std::int64_t{shape.head_dim} * kTile + (d / kPanel * kTile + place) * kPanel +
           d % kPanel;
  }

  // Throws Error(invalid_argument) unless the range's table has pages of the pool for all its
  // positions.
  void check(std::span<const Range> ranges, std::span<const std::int32_t> pages) const;
  std::vector<HostState::KvLayer> to_host(std::span<const std::int32_t> pages,
                                          std::int64_t positions) const;

 private:
  struct Layer {
    AttentionShape shape{};
    std::int64_t head_stride = 0, page_stride = 0;  // floats
    float* data = nullptr;
  };
  static std::vector<Layer> plan(const StateLayout& layout, const StateSizes& sizes);

  std::vector<Layer> layers_;
  std::int64_t pages_ = 0;
  bool fp8_ = false;
};

}  // namespace nibble::cpu
