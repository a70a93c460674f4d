// device_buffer.h: device arrays for tests: they start as NaN (every byte 0xFF), lie between canaries,
// and are freed by their scope. Needs the CUDA runtime only, no device code.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "backends/cuda/launch.h"

// First line of a test or of SetUp().
#define NIBBLE_NEEDS_DEVICE() \
  if (const std::string why = nibble::test::no_device(); !why.empty()) GTEST_SKIP() << why

namespace nibble::test {

// Why no device can be used; empty if one can.
inline std::string no_device() {
  int count = 0;
  const cudaError_t e = cudaGetDeviceCount(&count);
  if (e != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return std::string("no CUDA device: ") + cudaGetErrorString(e);
  }
  return count > 0 ? "" : "no CUDA device";
}

inline void cuda_ok(cudaError_t e, const char* what = "CUDA") {
  if (e != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(e));
}

// Waits for everything enqueued and reports errors of launches.
inline void finish_device() {
  cuda_ok(cudaGetLastError(), "launch");
  cuda_ok(cudaDeviceSynchronize(), "kernel");
}

template <class T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr std::size_t kEdge = 1024;  // bytes; keeps data() 256-byte aligned
  static constexpr unsigned char kCanary = 0xC5;

  explicit DeviceArray(std::size_t count = 0) : count_(count) {
    void* p = nullptr;
    cuda_ok(cudaMalloc(&p, bytes() + 2 * kEdge), "cudaMalloc");
    base_ = static_cast<std::byte*>(p);
    cuda_ok(cudaMemset(base_, kCanary, kEdge));
    cuda_ok(cudaMemset(base_ + kEdge, 0xFF, bytes()));
    cuda_ok(cudaMemset(base_ + kEdge + bytes(), kCanary, kEdge));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { upload(values); }
  ~DeviceArray() { cudaFree(base_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return reinterpret_cast<T*>(base_ + kEdge); }
  const T* data() const { return reinterpret_cast<const T*>(base_ + kEdge); }
  std::byte* raw() { return base_ + kEdge; }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

  void upload(const std::vector<T>& values) {
    if (values.size() != count_) throw std::logic_error("upload of another size");
    if (count_ == 0) return;
    cuda_ok(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> download() const {
    std::vector<T> values(count_);
    if (count_ == 0) return values;
    cuda_ok(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost), "download");
    return values;
  }
  void fill(unsigned char byte) { cuda_ok(cudaMemset(data(), byte, bytes())); }

  // Empty if the canaries before and behind are whole.
  std::string damage() const {
    std::vector<unsigned char> edge(kEdge);
    for (const bool behind : {false, true}) {
      const std::byte* at = behind ? base_ + kEdge + bytes() : base_;
      cuda_ok(cudaMemcpy(edge.data(), at, kEdge, cudaMemcpyDeviceToHost), "canary");
      for (std::size_t i = 0; i < kEdge; ++i) {
        if (edge[i] == kCanary) continue;
        return std::string("canary overwritten ") + std::to_string(behind ? i : kEdge - i) +
               (behind ? " bytes behind the array" : " bytes before the array");
      }
    }
    return "";
  }

 private:
  std::byte* base_ = nullptr;
  std::size_t count_ = 0;
};

// float: f32, uint16_t: bf16, uint8_t: u8.
template <class T>
constexpr DType element_dtype() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::uint16_t> ||
                std::is_same_v<T, std::uint8_t>);
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, std::uint16_t>) return DType::bf16;
  return DType::u8;
}

// [rows, cols] with `gap` more elements (0xFF bytes, checked) after each row.
template <class T>
class DeviceMatrix {
 public:
  DeviceMatrix(std::int64_t rows, std::int64_t cols, std::int64_t gap = 0)
      : rows_(rows), cols_(cols), stride_(cols + gap),
        array_(static_cast<std::size_t>(rows * stride_)) {}
  // `values`: [rows, cols], dense.
  DeviceMatrix(const std::vector<T>& values, std::int64_t rows, std::int64_t cols,
               std::int64_t gap = 0)
      : DeviceMatrix(rows, cols, gap) {
    upload(values);
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t stride() const { return stride_; }
  T* data() { return array_.data(); }

  void upload(const std::vector<T>& values) {
    if (values.size() != static_cast<std::size_t>(rows_ * cols_)) {
      throw std::logic_error("upload of another size");
    }
    if (values.empty()) return;
    cuda_ok(cudaMemcpy2D(array_.data(), pitch(stride_), values.data(), pitch(cols_), pitch(cols_),
                         static_cast<std::size_t>(rows_), cudaMemcpyHostToDevice),
            "upload");
  }
  std::vector<T> download() const {
    std::vector<T> values(static_cast<std::size_t>(rows_ * cols_));
    if (values.empty()) return values;
    cuda_ok(cudaMemcpy2D(values.data(), pitch(cols_), array_.data(), pitch(stride_), pitch(cols_),
                         static_cast<std::size_t>(rows_), cudaMemcpyDeviceToHost),
            "download");
    return values;
  }
  void fill(unsigned char byte) { array_.fill(byte); }

  cuda::View view(Rows rows = Rows::tokens) {
    return {array_.raw(), element_dtype<T>(), rows, stride_, static_cast<std::int32_t>(cols_)};
  }
  // Empty if canaries and gaps are whole.
  std::string damage() const {
    std::string what = array_.damage();
    if (!what.empty() || stride_ == cols_) return what;
    const std::vector<T> all = array_.download();
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = cols_; c < stride_; ++c) {
        unsigned char raw[sizeof(T)];
        std::memcpy(raw, &all[static_cast<std::size_t>(r * stride_ + c)], sizeof raw);
        for (const unsigned char b : raw) {
          if (b != 0xFF) return "gap overwritten in row " + std::to_string(r);
        }
      }
    }
    return "";
  }

 private:
  static std::size_t pitch(std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(T);
  }
  std::int64_t rows_, cols_, stride_;
  DeviceArray<T> array_;
};

}  // namespace nibble::test
