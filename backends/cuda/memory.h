// memory.h: the backend's few allocations, each made at load and owned in one place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "backends/cuda/check.h"

namespace nibble::cuda {

constexpr std::uint64_t kArenaAlign = 256;

constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kArenaAlign - 1) / kArenaAlign * kArenaAlign;
}

enum class Place { device, pinned };

// One allocation. `made` counts those of one backend: no memory comes to be without a place where
// that is seen.
class Block {
 public:
  Block() = default;
  Block(Place place, std::uint64_t bytes, const char* what, std::uint64_t& made)
      : place_(place), bytes_(bytes) {
    if (bytes == 0) return;
    ++made;
    void* p = nullptr;
    const cudaError_t status =
        place == Place::device ? cudaMalloc(&p, bytes) : cudaMallocHost(&p, bytes);
    if (status != cudaSuccess) {
      cudaGetLastError();  // not left for the next call to find
      fail(status, std::to_string(bytes) + " bytes of " +
                       (place == Place::device ? "device" : "pinned host") + " memory for " + what);
    }
    data_ = static_cast<std::byte*>(p);
  }
  Block(Block&& o) noexcept { *this = std::move(o); }
  Block& operator=(Block&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(place_, o.place_);
    return *this;
  }
  ~Block() {
    if (data_ == nullptr) return;
    if (place_ == Place::device) {
      cudaFree(data_);
    } else {
      cudaFreeHost(data_);
    }
  }

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Place place_ = Place::device;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Hands out parts of an arena, each at a multiple of 256 bytes.
class Carver {
 public:
  explicit Carver(std::byte* from) : at_(from) {}
  std::byte* take(std::uint64_t bytes) {
    std::byte* const here = at_;
    at_ += aligned(bytes);
    return here;
  }
  template <class T>
  T* take_array(std::uint64_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }

 private:
  std::byte* at_;
};

}  // namespace nibble::cuda
