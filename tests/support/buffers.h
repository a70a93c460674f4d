// buffers.h: outputs that start as NaN between canaries, and comparison by bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

namespace nibble::test {

// [rows, cols] with `gap` more elements after each row, and a canary row's worth before and behind.
class Guarded {
 public:
  static constexpr std::size_t kEdge = 64;
  static constexpr std::uint32_t kCanary = 0xC0FFEE42u;

  Guarded(std::int64_t rows, std::int64_t cols, std::int64_t gap = 3)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        data_(2 * kEdge + static_cast<std::size_t>(rows * stride_)) {
    float canary;
    std::memcpy(&canary, &kCanary, sizeof canary);
    for (float& v : data_) v = canary;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c)
        data()[r * stride_ + c] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  float* data() { return data_.data() + kEdge; }
  const float* data() const { return data_.data() + kEdge; }
  std::int64_t stride() const { return stride_; }
  float at(std::int64_t r, std::int64_t c) const { return data()[r * stride_ + c]; }

  // Empty if nothing outside the rows was written.
  std::string damage() const {
    for (std::size_t i = 0; i < data_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kEdge);
      const bool inside = at >= 0 && at < rows_ * stride_ && at % stride_ < cols_;
      std::uint32_t bits;
      std::memcpy(&bits, &data_[i], sizeof bits);
      if (!inside && bits != kCanary) return "canary overwritten at element " + std::to_string(at);
    }
    return "";
  }

 private:
  std::int64_t rows_, cols_, stride_;
  std::vector<float> data_;
};

// NaNs are one value; everything else is compared as bits.
inline bool same_bits(float a, float b) {
  if (a != a || b != b) return a != a && b != b;
  return std::memcmp(&a, &b, sizeof a) == 0;
}

struct Aligned {
  explicit Aligned(std::uint64_t n)
      : data(static_cast<std::byte*>(::operator new (n, std::align_val_t{64}))) {}
  ~Aligned() { ::operator delete (data, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::byte* data;
};

}  // namespace nibble::test
