// step_on_device.h: a Batch as kernels see it, for tests: one host block with StepView at its front and
// every pointer a device address inside the block, one copy. Written apart from the backend's own
// builder, so that a mistake of that one cannot hide.
#pragma once

#include <cstring>
#include <vector>

#include "backends/cuda/step_view.h"
#include "core/schedule/batch.h"
#include "core/state/slot_cursors.h"
#include "tests/cuda/device_buffer.h"

namespace nibble::test {

class StepOnDevice {
 public:
  // `cursors`: where the slots stand before this step; without them half and pending are 0.
  explicit StepOnDevice(const Batch& batch, const SlotCursors* cursors = nullptr, std::int32_t experts_per_token = 0)
      : device_(block_bytes(batch)) {
    host_.assign(device_.size(), std::byte{0});
    used_ = sizeof(cuda::StepView);
    cuda::StepView& s = view_;
    s.rows = static_cast<std::int32_t>(batch.rows());
    s.outputs = static_cast<std::int32_t>(batch.output_rows.size());
    s.ranges = static_cast<std::int32_t>(batch.ranges.size());
    s.taken_back = static_cast<std::int32_t>(batch.taken_back.size());
    s.tokens = put(batch.tokens);
    s.range = put(ranges_of(batch, cursors));
    s.range_of_row = put(range_of_row(batch));
    s.pages = put(batch.pages);
    s.output_rows = put(batch.output_rows);
    s.sampling = put(sampling_of(batch));
    s.targets = put(batch.targets);
    std::vector<std::int32_t> slots, tokens;
    for (const Batch::TakenBack& t : batch.taken_back) {
      slots.push_back(t.slot);
      tokens.push_back(t.token);
    }
    s.taken_slot = put(slots);
    s.taken_token = put(tokens);
    sections(batch);
    cuda::count_rows(s, experts_per_token);
    std::memcpy(host_.data(), &s, sizeof s);
    device_.upload(host_);
  }

  const cuda::StepView* device() const {
    return reinterpret_cast<const cuda::StepView*>(device_.data());
  }
  const cuda::StepView& host() const { return view_; }  // counts are good, pointers are the device's
  std::string damage() const { return device_.damage(); }

 private:
  static constexpr std::size_t kAlign = 256;

  template <class T>
  static std::size_t room(std::size_t count) {
    return count * sizeof(T) + kAlign;
  }
  static std::size_t block_bytes(const Batch& b) {
    return sizeof(cuda::StepView) + room<std::int32_t>(2 * b.tokens.size()) +
           room<cuda::RangeView>(b.ranges.size()) + room<std::int32_t>(b.pages.size()) +
           room<std::int32_t>(b.output_rows.size()) + room<cuda::SampleView>(b.sampling.size()) +
           room<std::int32_t>(b.targets.size()) + room<std::int32_t>(2 * b.taken_back.size()) +
           3 * kAlign;
  }

  template <class T>
  const T* put(const std::vector<T>& values) {
    used_ = (used_ + kAlign - 1) / kAlign * kAlign;
    const std::size_t at = used_, bytes = values.size() * sizeof(T);
    if (at + bytes > host_.size()) throw std::logic_error("step block too small");
    if (bytes != 0) std::memcpy(host_.data() + at, values.data(), bytes);
    used_ += bytes;
    return reinterpret_cast<const T*>(device_.data() + at);
  }

  static std::vector<cuda::RangeView> ranges_of(const Batch& b, const SlotCursors* cursors) {
    std::vector<cuda::RangeView> all;
    for (const Range& r : b.ranges) {
      all.push_back({static_cast<std::int32_t>(r.section), r.slot, r.first_row, r.rows, r.position,
                     r.keep, cursors != nullptr ? cursors->half(r.slot) : 0,
                     cursors != nullptr ? cursors->pending(r.slot) : 0, r.first_page});
    }
    return all;
  }
  static std::vector<std::int32_t> range_of_row(const Batch& b) {
    std::vector<std::int32_t> all(b.tokens.size(), -1);
    for (std::size_t i = 0; i < b.ranges.size(); ++i) {
      for (std::int32_t r = 0; r < b.ranges[i].rows; ++r) {
        all.at(static_cast<std::size_t>(b.ranges[i].first_row + r)) = static_cast<std::int32_t>(i);
      }
    }
    return all;
  }
  static std::vector<cuda::SampleView> sampling_of(const Batch& b) {
    std::vector<cuda::SampleView> all;
    const std::vector<std::int32_t> range = range_of_row(b);
    for (std::size_t o = 0; o < b.sampling.size(); ++o) {
      const SampleParams& p = b.sampling[o];
      const std::int32_t row = b.output_rows.at(o);
      const std::int32_t of = range.at(static_cast<std::size_t>(row));
      std::int32_t last = row;
      if (of >= 0) {
        const Range& r = b.ranges[static_cast<std::size_t>(of)];
        last = r.first_row + r.rows - 1;
      }
      all.push_back({p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.top_k, p.slot, p.seed,
                     p.position, row, last});
    }
    return all;
  }
  // Ranges stand in section order; a section without ranges begins where the next one does.
  void sections(const Batch& b) {
    for (std::int32_t s = 0; s < 4; ++s) {
      std::int32_t first = 0, row = 0;
      while (first < view_.ranges &&
             static_cast<std::int32_t>(b.ranges[static_cast<std::size_t>(first)].section) < s) {
        row += b.ranges[static_cast<std::size_t>(first++)].rows;
      }
      view_.first_range[s] = first;
      view_.first_row[s] = s == 3 ? view_.rows : row;
    }
  }

  DeviceArray<std::byte> device_;
  std::vector<std::byte> host_;
  std::size_t used_ = 0;
  cuda::StepView view_{};
};

// A batch for ops that look at rows and tokens only: one prefill range.
inline Batch plain_batch(const std::vector<std::int32_t>& tokens) {
  Batch b;
  b.tokens = tokens;
  Range r;
  r.rows = static_cast<std::int32_t>(tokens.size());
  if (r.rows > 0) b.ranges.push_back(r);
  return b;
}

}  // namespace nibble::test
