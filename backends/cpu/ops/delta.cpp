#include <algorithm>
#include <cmath>

#include "backends/cpu/ops/sequence_ops.h"
#include "backends/cpu/ops/work.h"
#include "core/numerics/delta_order.h"
#include "nibble/error.h"

namespace nibble::cpu {
namespace {

constexpr std::int64_t kConvRows = 8;          // rows of an item
constexpr std::int64_t kConvGrain = 8 * 1024;  // elements worth a task

// Of the delta rule's workspace, whichever way prefill rows go.
std::int64_t thread_floats(const DeltaShape& shape) {
  const std::int64_t chunks = delta_work_floats(shape.key_dim);
  const std::int64_t units = num::delta_on_units(shape) ? delta_units_work_floats(shape.key_dim) : 0;
  return round_up(std::max(chunks, units), kPanel);
}

}  // namespace

void pack_conv_taps(const float* weight, std::int64_t channels, std::int32_t kernel, float* taps) {
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int32_t j = 0; j < kernel; ++j) taps[j * channels + c] = weight[c * kernel + j];
  }
}

void delta_conv(SequenceContext& context, const DeltaArena& arena, const DeltaConvArgs& a) {
  if (a.ranges.empty()) return;
  arena.cursors().check(a.ranges);
  const DeltaShape& d = arena.shape(a.layer);
  const std::int64_t first = a.ranges.front().first_row, rows = row_count(a.ranges);
  const std::int64_t heads = 2 * std::int64_t{d.key_heads} + d.value_heads;
  const std::int64_t history = d.conv_kernel - 1;
  const float q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d.key_dim)));

  const auto convolve = [&](std::int64_t row, std::int64_t head) {
    const Range& r = range_of(a.ranges, row);
    const bool value = head >= 2 * d.key_heads;
    const std::int64_t channel =
        value ? 2 * d.key_channels() + (head - 2 * d.key_heads) * d.value_dim : head * d.key_dim;
    const float* raw[kMaxConvKernel];
    for (std::int64_t j = 0; j <= history; ++j) {
      const std::int64_t at = row - history + j;  // in the batch, or before it
      const std::int64_t position = r.position + (at - r.first_row);
      raw[j] = at >= r.first_row ? a.x.data + at * a.x.stride + channel
               : position >= 0   ? arena.conv_row(a.layer, r.slot, position) + channel
                                 : nullptr;
    }
    context.kernels.conv(
        {raw, a.taps + channel, d.channels(), d.conv_kernel, value ? d.value_dim : d.key_dim,
         !value, head < d.key_heads ? q_scale : 1.0f, a.y.data + row * a.y.stride + channel});
  };
  const std::int64_t blocks = (rows + kConvRows - 1) / kConvRows;
  const std::int64_t item = std::min(rows, kConvRows) * std::max(d.key_dim, d.value_dim);
  context.parallel(blocks * heads, std::max<std::int64_t>(1, kConvGrain / item),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const std::int64_t from = i / heads * kConvRows;
                       for (std::int64_t row = from; row < std::min(from + kConvRows, rows);
                            ++row) {
                         convolve(first + row, i % heads);
                       }
                     }
                   });

  // Only now: rows of a long range may take the places of those that its first rows have read.
  context.parallel(
      static_cast<std::int64_t>(a.ranges.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (const Range& r : a.ranges.subspan(static_cast<std::size_t>(begin),
                                               static_cast<std::size_t>(end - begin))) {
          // prefill is never taken back: its last rows are enough
          const std::int64_t kept =
              r.section == Section::prefill ? std::min<std::int64_t>(r.rows, history) : r.rows;
          for (std::int64_t i = r.rows - kept; i < r.rows; ++i) {
            std::copy_n(a.x.data + (r.first_row + i) * a.x.stride, d.channels(),
                        arena.conv_row(a.layer, r.slot, r.position + i));
          }
        }
      });
}

void delta_gates(SequenceContext& context, const DeltaGatesArgs& a) {
  context.parallel(
      a.rows, std::max<std::int64_t>(1, 2048 / std::max<std::int64_t>(1, a.heads)),
      [&](std::int64_t begin, std::int64_t end) {
        context.kernels.gates({a.a.data + begin * a.a.stride, a.b.data + begin * a.b.stride,
                               a.neg_exp_a, a.dt_bias, a.g.data + begin * a.g.stride,
                               a.beta.data + begin * a.beta.stride, a.a.stride, a.b.stride,
                               a.g.stride, a.beta.stride, end - begin, a.heads});
      });
}

std::uint64_t delta_rule_workspace(const DeltaShape& shape, int threads) {
  return static_cast<std::uint64_t>(thread_floats(shape)) * sizeof(float) * static_cast<std::uint64_t>(threads);
}

void delta_rule(SequenceContext& context, const DeltaArena& arena, const DeltaRuleArgs& a) {
  if (a.ranges.empty()) return;
  arena.cursors().check(a.ranges);
  const DeltaShape& d = arena.shape(a.layer);
  if (a.units != PrefillUnits::none && !num::delta_on_units(d)) {
    throw Error(ErrorCode::invalid_argument, "[delta_rule] key_dim: expected 32 or 128 for matrix units, got " +
                                                 std::to_string(d.key_dim));
  }
  const int threads = context.parallel.threads();
  check_workspace(context.workspace, delta_rule_workspace(d, threads), "delta_rule");
  float* work = reinterpret_cast<float*>(context.workspace.data());
  const std::int64_t work_stride = thread_floats(d);
  const auto prefill_kernel = a.units == PrefillUnits::sm90   ? context.kernels.delta_units_sm90
                              : a.units == PrefillUnits::sm70 ? context.kernels.delta_units_sm70
                                                            : context.kernels.delta_chunks;

  const bool prefill = a.ranges.front().section == Section::prefill;
  const std::int32_t panels = static_cast<std::int32_t>(round_up(d.value_dim, kPanel) / kPanel);
  const std::int64_t heads = static_cast<std::int64_t>(a.ranges.size()) * d.value_heads;
  // With few heads a head is cut by columns, which know nothing of each other.
  std::int32_t width = panels;
  const std::int32_t least = prefill ? 4 : 2;
  while (width > least && heads * ((panels + width - 1) / width) < 2 * threads) {
    width = std::max(least, (width + 1) / 2);
  }
  const std::int32_t parts = (panels + width - 1) / width;
  const std::int32_t group = d.value_heads / d.key_heads;

  for_each_item(
      context.parallel, heads * parts, threads, [&](std::int64_t item, std::int64_t worker) {
        const std::int32_t panel = static_cast<std::int32_t>(item % parts) * width;
        const std::int32_t head = static_cast<std::int32_t>(item / parts % d.value_heads);
        const Range& r = a.ranges[static_cast<std::size_t>(item / parts / d.value_heads)];
        if (r.rows <= 0) return;
        const std::int32_t key_head = head / group;
        const float* qkv = a.qkv.data + r.first_row * a.qkv.stride;
        const DeltaArena::RecordSlots own = arena.new_records(a.layer, r.slot, head, panel);
        DeltaTask t{};
        t.s = arena.s(a.layer, r.slot, head) + std::int64_t{panel} * d.key_dim * kPanel;
        t.panels = std::min(width, panels - panel);
        t.key_dim = d.key_dim;
        t.columns = std::min(d.value_dim - panel * kPanel, t.panels * kPanel);
        t.records = arena.records(a.layer, r.slot, head, panel, r.keep);
        t.rows = r.rows;
        t.position = r.position;
        t.q = qkv + std::int64_t{key_head} * d.key_dim;
        t.k = t.q + d.key_channels();
        t.v = qkv + 2 * d.key_channels() + std::int64_t{head} * d.value_dim + panel * kPanel;
        t.g = a.g.data + r.first_row * a.g.stride + head;
        t.beta = a.beta.data + r.first_row * a.beta.stride + head;
        t.qkv_stride = a.qkv.stride;
        t.g_stride = a.g.stride;
        t.beta_stride = a.beta.stride;
        t.y =
            a.y.data + r.first_row * a.y.stride + std::int64_t{head} * d.value_dim + panel * kPanel;
        t.y_stride = a.y.stride;
        t.work = work + worker * work_stride;
        if (prefill) {
          prefill_kernel(t);
        } else {
          t.new_key = panel == 0 && head % group == 0 ? own.key : nullptr;
          t.new_decay = panel == 0 ? own.decay : nullptr;
          t.new_u = own.u;
          context.kernels.delta_step(t);
        }
      });
}

}  // namespace nibble::cpu
