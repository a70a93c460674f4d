// memory.h: the arenas' allocations, and what memory the machine has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/bytes.h"

namespace nibble::cpu {

// One anonymous mapping, zero at first, aligned to a huge page so that the kernel may use them.
class Block {
 public:
  Block() = default;
  // Throws Error(out_of_memory) that says what it was for. 0 bytes: no mapping. `made` counts the
  // mappings of one backend: no arena comes to be without a place where that is seen.
  Block(std::uint64_t bytes, const std::string& purpose, std::uint64_t& made);
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  // Has the kernel supply every page now, not in the first step that touches it. One thread does it: with
  // several memory nodes the pages lie on its node, unless the program runs with an interleaving policy.
  void touch();

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Hands out consecutive pieces, each at a multiple of 64 bytes. Without a base it only adds up, so
// that planning and carving are the same code.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  std::byte* take(std::uint64_t bytes) {
    std::byte* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return piece;
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::uint64_t used_ = 0;
};

struct MachineMemory {
  std::uint64_t total = 0, available = 0;  // bytes; the container's limit where that is lower
};
MachineMemory machine_memory();

// Tells the system that these bytes of a mapped file will be read soon: it may read ahead, in the background.
void read_ahead(Bytes bytes);

}  // namespace nibble::cpu
