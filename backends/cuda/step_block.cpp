#include "backends/cuda/step_block.h"

#include <algorithm>
#include <new>
#include <string>

#include "nibble/error.h"

namespace nibble::cuda {
namespace {

constexpr std::uint64_t kAlign = 16;

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Lays arrays out after the header, on both sides at the same offsets.
struct Writer {
  std::byte *host, *device;
  std::uint64_t bytes, used;

  template <class T>
  T* take(std::size_t count, const T** on_device) {
    const std::uint64_t size = round_up(count * sizeof(T));
    if (size > bytes - used) {
      throw Error(ErrorCode::internal, "[cuda] step block: " + std::to_string(bytes) +
                                           " bytes were planned, the batch needs more");
    }
    T* const here = reinterpret_cast<T*>(host + used);
    *on_device = reinterpret_cast<const T*>(device + used);
    used += size;
    return here;
  }
  template <class T>
  const T* copy(const std::vector<T>& from) {
    const T* on_device;
    std::copy(from.begin(), from.end(), take<T>(from.size(), &on_device));
    return on_device;
  }
};

SampleView sample_view(const SampleParams& p) {
  SampleView v{};
  v.temperature = p.temperature;
  v.top_p = p.top_p;
  v.min_p = p.min_p;
  v.repetition_penalty = p.repetition_penalty;
  v.top_k = p.top_k;
  v.slot = p.slot;
  v.seed = p.seed;
  v.position = p.position;
  return v;
}

}  // namespace

std::uint64_t StepBlock::bytes(const StepLimits& l) {
  const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  const auto slots = u(l.sizes.slots), rows = u(l.rows), outputs = u(l.outputs);
  const std::uint64_t taken = slots * u(l.sizes.records);
  std::uint64_t total = round_up(sizeof(StepView));
  total += 2 * round_up(rows * 4);                    // tokens, range_of_row
  total += round_up(slots * sizeof(RangeView));       // one range a slot
  total += round_up((u(l.sizes.pages) + slots) * 4);  // page tables
  total += 2 * round_up(outputs * 4) + round_up(outputs * sizeof(SampleView));
  return total + 2 * round_up(taken * 4);
}

std::uint64_t StepBlock::write(const Batch& batch, const SlotCursors& cursors, std::int32_t experts_per_token,
                               std::byte* host) {
  Writer w{host, device_, bytes_, round_up(sizeof(StepView))};
  StepView v{};
  v.rows = static_cast<std::int32_t>(batch.rows());
  v.outputs = static_cast<std::int32_t>(batch.output_rows.size());
  v.ranges = static_cast<std::int32_t>(batch.ranges.size());
  v.taken_back = static_cast<std::int32_t>(batch.taken_back.size());
  count_rows(v, experts_per_token);
  v.tokens = w.copy(batch.tokens);
  RangeView* const ranges = w.take<RangeView>(batch.ranges.size(), &v.range);
  std::int32_t* const range_of_row = w.take<std::int32_t>(batch.tokens.size(), &v.range_of_row);
  std::int32_t section = 0;
  for (std::int32_t i = 0; i < v.ranges; ++i) {
    const Range& r = batch.ranges[static_cast<std::size_t>(i)];
    for (; section <= static_cast<std::int32_t>(r.section); ++section) {
      v.first_range[section] = i;
      v.first_row[section] = r.first_row;
    }
    ranges[i] = {static_cast<std::int32_t>(r.section),
                 r.slot,
                 r.first_row,
                 r.rows,
                 r.position,
                 r.keep,
                 cursors.half(r.slot),
                 cursors.pending(r.slot),
                 r.first_page};
    std::fill_n(range_of_row + r.first_row, r.rows, i);
  }
  for (; section < 4; ++section) {
    v.first_range[section] = v.ranges;
    v.first_row[section] = v.rows;
  }
  v.pages = w.copy(batch.pages);
  v.output_rows = w.copy(batch.output_rows);
  SampleView* const sampling = w.take<SampleView>(batch.sampling.size(), &v.sampling);
  for (std::size_t i = 0; i < batch.sampling.size(); ++i) {
    sampling[i] = sample_view(batch.sampling[i]);
    const std::int32_t row = batch.output_rows[i];
    const RangeView& r = ranges[range_of_row[row]];
    sampling[i].row = row;
    sampling[i].last_row = r.first_row + r.rows - 1;
  }
  v.targets = w.copy(batch.targets);
  std::int32_t* const slots = w.take<std::int32_t>(batch.taken_back.size(), &v.taken_slot);
  std::int32_t* const tokens = w.take<std::int32_t>(batch.taken_back.size(), &v.taken_token);
  for (std::size_t i = 0; i < batch.taken_back.size(); ++i) {
    slots[i] = batch.taken_back[i].slot;
    tokens[i] = batch.taken_back[i].token;
  }
  new (host) StepView(v);
  return w.used;
}

}  // namespace nibble::cuda
