// expert_images.h: images of experts that lie at one distance from each other, so that a kernel finds each.
#pragma once

#include "backends/cuda/weight_image.h"

namespace nibble::cuda {

// Whether an expert's image is the first one's, so many bytes on.
inline bool follows(const WeightImage& first, const WeightImage& w, std::int64_t bytes) {
  const auto on = [bytes](const auto* from, const auto* to) {
    const auto *a = reinterpret_cast<const std::byte*>(from), *b = reinterpret_cast<const std::byte*>(to);
    return a == nullptr ? b == nullptr : b == a + bytes;
  };
  return w.format == first.format && w.rows == first.rows && w.cols == first.cols && w.order == first.order &&
         w.scale_code == first.scale_code && w.values == first.values && on(first.codes, w.codes) &&
         on(first.scales, w.scales) && on(first.alpha, w.alpha) && on(first.block, w.block);
}

}  // namespace nibble::cuda
