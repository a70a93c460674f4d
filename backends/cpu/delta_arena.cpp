#include <algorithm>
#include <cstring>

#include "backends/cpu/arena_floats.h"
#include "backends/cpu/ops/sequence_ops.h"
#include "backends/cpu/state_arena.h"

namespace nibble::cpu {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "[cpu state] " + what);
}

std::string text(std::int64_t v) {
  return std::to_string(v);
}

struct SnapshotHeader {
  std::int64_t position = 0, bytes = 0;
};

}  // namespace

std::vector<DeltaArena::Layer> DeltaArena::plan(const StateLayout& layout,
                                                const StateSizes& sizes) {
  if (sizes.slots < 0 || sizes.records < 1) {
    refuse("expected slots >= 0 and records >= 1, got " + text(sizes.slots) + " and " +
           text(sizes.records));
  }
  std::vector<Layer> layers;
  for (const DeltaShape& d : layout.delta) {
    if (d.key_heads < 1 || d.value_heads < 1 || d.key_dim < 1 || d.value_dim < 1 ||
        d.value_heads % d.key_heads != 0 || d.conv_kernel < 1 || d.conv_kernel > kMaxConvKernel) {
      throw Error(ErrorCode::unsupported,
                  "[cpu state] delta net: expected heads and sizes >= 1, value heads a multiple of "
                  "key heads and a convolution of 1 to " +
                      text(kMaxConvKernel) + " taps, got " + text(d.key_heads) + " key heads of " +
                      text(d.key_dim) + ", " + text(d.value_heads) + " value heads of " +
                      text(d.value_dim) + ", " + text(d.conv_kernel) + " taps");
    }
    const char* what = "delta-net state";
    Layer l;
    l.shape = d;
    l.panels = static_cast<std::int32_t>(round_up(d.value_dim, kPanel) / kPanel);
    l.head_floats = block_floats({l.panels, d.key_dim, kPanel}, what);
    l.s_slot = block_floats({l.head_floats, d.value_heads}, what);
    l.conv_rows = std::int64_t{d.conv_kernel} - 1 + sizes.records;
    l.conv_stride = block_floats({d.channels()}, what);
    l.conv_slot = block_floats({l.conv_rows, l.conv_stride}, what);
    l.key_stride = block_floats({d.key_heads, d.key_dim}, what);
    l.u_stride = block_floats({d.value_heads, l.panels, kPanel}, what);
    l.decay_stride = block_floats({d.value_heads}, what);
    l.record_half =
        block_floats({sizes.records,
                      sum_floats(sum_floats(l.key_stride, l.u_stride, what), l.decay_stride, what)},
                     what);
    const std::int64_t slot = sum_floats(sum_floats(l.s_slot, l.conv_slot, what),
                                         block_floats({2, l.record_half}, what), what);
    l.total = block_floats({sizes.slots, slot}, what);
    layers.push_back(l);
  }
  return layers;
}

std::uint64_t DeltaArena::bytes(const StateLayout& layout, const StateSizes& sizes) {
  std::int64_t total = 0;
  for (const Layer& l : plan(layout, sizes)) total = sum_floats(total, l.total, "delta-net states");
  return static_cast<std::uint64_t>(total) * sizeof(float);
}

DeltaArena::DeltaArena(std::span<std::byte> memory, const StateLayout& layout,
                       const StateSizes& sizes)
    : layers_(plan(layout, sizes)), cursors_(sizes.slots, sizes.records), records_(sizes.records) {
  float* at = arena_start(memory, bytes(layout, sizes), "delta-net states");
  for (Layer& l : layers_) {
    l.s = at;
    l.conv = l.s + l.s_slot * sizes.slots;
    l.record = l.conv + l.conv_slot * sizes.slots;
    at += l.total;
  }
}

float* DeltaArena::s(std::int32_t layer, std::int32_t slot, std::int32_t value_head) const {
  const Layer& l = layers_[index(layer)];
  return l.s + slot * l.s_slot + value_head * l.head_floats;
}

float* DeltaArena::conv_row(std::int32_t layer, std::int32_t slot, std::int64_t position) const {
  const Layer& l = layers_[index(layer)];
  return l.conv + slot * l.conv_slot + position % l.conv_rows * l.conv_stride;
}

float* DeltaArena::record_half(const Layer& l, std::int32_t slot, std::int32_t half) const {
  return l.record + (std::int64_t{slot} * 2 + half) * l.record_half;
}

DeltaArena::RecordSlots DeltaArena::new_records(std::int32_t layer, std::int32_t slot,
                                                std::int32_t value_head, std::int32_t panel) const {
  const Layer& l = layers_[index(layer)];
  float* key = record_half(l, slot, 1 - cursors_.half(slot));
  float* u = key + records_ * l.key_stride;
  float* decay = u + records_ * l.u_stride;
  const std::int32_t key_head = value_head / (l.shape.value_heads / l.shape.key_heads);
  return {key + std::int64_t{key_head} * l.shape.key_dim,
          u + (std::int64_t{value_head} * l.panels + panel) * kPanel, decay + value_head};
}

RecordView DeltaArena::records(std::int32_t layer, std::int32_t slot, std::int32_t value_head,
                               std::int32_t panel, std::int32_t count) const {
  const Layer& l = layers_[index(layer)];
  const float* key = record_half(l, slot, cursors_.half(slot));
  const float* u = key + records_ * l.key_stride;
  const float* decay = u + records_ * l.u_stride;
  const std::int32_t key_head = value_head / (l.shape.value_heads / l.shape.key_heads);
  return {key + std::int64_t{key_head} * l.shape.key_dim,
          u + (std::int64_t{value_head} * l.panels + panel) * kPanel,
          decay + value_head,
          l.key_stride,
          l.u_stride,
          l.decay_stride,
          count};
}

void DeltaArena::reset(std::int32_t slot) {
  cursors_.check_slot(slot, 0);
  for (const Layer& l : layers_) {
    // records and conv rows are written before they are read
    std::fill_n(l.s + slot * l.s_slot, l.s_slot, 0.0f);
  }
  cursors_.reset(slot);
}

void DeltaArena::fold_head(std::int32_t layer, std::int32_t slot, std::int32_t keep,
                           std::int32_t value_head, const SequenceKernels& kernels,
                           float* to) const {
  const Layer& l = layers_[index(layer)];
  kernels.fold({s(layer, slot, value_head), to, l.panels, l.shape.key_dim,
                records(layer, slot, value_head, 0, keep)});
}

std::uint64_t DeltaArena::snapshot_bytes() const {
  std::uint64_t floats = 0;
  for (const Layer& l : layers_) {
    floats += static_cast<std::uint64_t>(l.s_slot + (l.shape.conv_kernel - 1) * l.conv_stride);
  }
  return sizeof(SnapshotHeader) + floats * sizeof(float);
}

void DeltaArena::save(std::int32_t slot, std::int32_t keep, const SequenceKernels& kernels,
                      std::span<std::byte> to) const {
  cursors_.check_slot(slot, keep);
  if (to.size() != snapshot_bytes()) {
    refuse("snapshot: expected " + std::to_string(snapshot_bytes()) + " bytes, got " +
           std::to_string(to.size()));
  }
  const FloatEnv env;
  const SnapshotHeader header = {cursors_.position(slot, keep), static_cast<std::int64_t>(to.size())};
  std::memcpy(to.data(), &header, sizeof header);
  float* at = reinterpret_cast<float*>(to.data() + sizeof header);
  for (std::int32_t layer = 0; layer < layers(); ++layer) {
    const Layer& l = layers_[index(layer)];
    for (std::int32_t h = 0; h < l.shape.value_heads; ++h, at += l.head_floats) {
      fold_head(layer, slot, keep, h, kernels, at);
    }
    for (std::int64_t p = header.position - (l.shape.conv_kernel - 1); p < header.position; ++p) {
      if (p < 0) {
        std::fill_n(at, l.conv_stride, 0.0f);
      } else {
        std::copy_n(conv_row(layer, slot, p), l.shape.channels(), at);
        std::fill(at + l.shape.channels(), at + l.conv_stride, 0.0f);
      }
      at += l.conv_stride;
    }
  }
}

void DeltaArena::load(std::int32_t slot, std::span<const std::byte> from) {
  cursors_.check_slot(slot, 0);
  SnapshotHeader header;
  if (from.size() == snapshot_bytes()) std::memcpy(&header, from.data(), sizeof header);
  if (from.size() != snapshot_bytes() || header.bytes != static_cast<std::int64_t>(from.size()) ||
      header.position < 0) {
    refuse("snapshot: not one of this state (expected " + std::to_string(snapshot_bytes()) +
           " bytes, got " + std::to_string(from.size()) + ")");
  }
  const float* at = reinterpret_cast<const float*>(from.data() + sizeof header);
  for (std::int32_t layer = 0; layer < layers(); ++layer) {
    const Layer& l = layers_[index(layer)];
    std::copy_n(at, l.s_slot, l.s + slot * l.s_slot);
    at += l.s_slot;
    for (std::int64_t p = header.position - (l.shape.conv_kernel - 1); p < header.position; ++p) {
      if (p >= 0) std::copy_n(at, l.conv_stride, conv_row(layer, slot, p));
      at += l.conv_stride;
    }
  }
  cursors_.reset(slot, header.position);
}

std::vector<HostState::DeltaLayer> DeltaArena::to_host(std::int32_t slot, std::int32_t keep,
                                                       const SequenceKernels& kernels) const {
  cursors_.check_slot(slot, keep);
  const FloatEnv env;
  const std::int64_t end = cursors_.position(slot, keep);
  std::vector<HostState::DeltaLayer> out(layers_.size());
  for (std::int32_t layer = 0; layer < layers(); ++layer) {
    const Layer& l = layers_[index(layer)];
    const DeltaShape& d = l.shape;
    HostState::DeltaLayer& host = out[index(layer)];
    std::vector<float> head(static_cast<std::size_t>(l.head_floats));
    for (std::int32_t h = 0; h < d.value_heads; ++h) {
      fold_head(layer, slot, keep, h, kernels, head.data());
      for (std::int32_t k = 0; k < d.key_dim; ++k) {
        for (std::int32_t v = 0; v < d.value_dim; ++v) {
          host.s.push_back(head[index((v / kPanel * d.key_dim + k) * kPanel + v % kPanel)]);
        }
      }
    }
    for (std::int64_t c = 0; c < d.channels(); ++c) {
      for (std::int64_t p = end - (d.conv_kernel - 1); p < end; ++p) {
        host.conv.push_back(p < 0 ? 0.0f : conv_row(layer, slot, p)[c]);
      }
    }
  }
  return out;
}

}  // namespace nibble::cpu
