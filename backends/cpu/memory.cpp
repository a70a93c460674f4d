#include "backends/cpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "nibble/error.h"

namespace nibble::cpu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20, kPage = 4096;

// The number in a file of one line, or nothing where it says "max" or is absent.
bool read_number(const std::string& path, std::uint64_t& value) {
  std::ifstream in(path);
  return static_cast<bool>(in >> value);
}

}  // namespace

Block::Block(std::uint64_t bytes, const std::string& purpose, std::uint64_t& made) : bytes_(bytes) {
  if (bytes == 0) return;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  if (bytes <= std::numeric_limits<std::size_t>::max() - alignment) {
    mapped_ = static_cast<std::size_t>(bytes) + alignment;
    mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else {
    errno = ENOMEM;
    mapping_ = MAP_FAILED;
  }
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(ErrorCode::out_of_memory, "[cpu] " + purpose + ": cannot allocate " +
                                              std::to_string(bytes) +
                                              " bytes: " + std::strerror(errno));
  }
  ++made;
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  const std::uintptr_t rest = address % alignment;
  data_ = static_cast<std::byte*>(mapping_) + (rest == 0 ? 0 : alignment - rest);
#if defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) ::madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
#endif
}

Block::Block(Block&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Block::~Block() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

void Block::touch() {
  for (std::uint64_t at = 0; at < bytes_; at += kPage) {
    volatile std::byte* const byte = data_ + at;
    *byte = *byte;
  }
}

void read_ahead(Bytes bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size();
  // A hint: where it is refused, pages come when they are read.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

MachineMemory machine_memory() {
  MachineMemory memory;
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    std::uint64_t kib = 0;
    if (!(in >> kib)) break;
    std::getline(in, unit);
    if (key == "MemTotal:") memory.total = kib * 1024;
    if (key == "MemAvailable:") memory.available = kib * 1024;
  }
  // control groups: version 2, then version 1
  std::uint64_t limit = 0, used = 0;
  if ((read_number("/sys/fs/cgroup/memory.max", limit) &&
       read_number("/sys/fs/cgroup/memory.current", used)) ||
      (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", limit) &&
       read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", used))) {
    memory.total = std::min(memory.total, limit);
    memory.available = std::min(memory.available, limit > used ? limit - used : 0);
  }
  return memory;
}

}  // namespace nibble::cpu
