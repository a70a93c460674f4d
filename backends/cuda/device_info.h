// device_info.h: which cards there are and whether this build can use them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace nibble::cuda {

struct CardInfo {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  std::uint64_t memory = 0, free_memory = 0;
};

// Empty when at least one card can be used, else why none can: no driver, a driver too old, no
// card.
std::string refusal();
// The same of what counting cards gave (status, cards) and the driver's version, 0 for none.
std::string refusal_of(cudaError_t status, int driver, int cards);
// What use_card() says where asking for a kernel's attributes gave `status`.
std::string no_code(const std::string& card, int major, int minor, cudaError_t status);

// Makes card `index` the calling thread's. Throws Error(no_device) for a number that is not there
// and for a card for which this build holds no code.
CardInfo use_card(int index);

// "sm_90", "sm_90 by emulation": what runs on a card of this compute capability, and how.
std::string architecture_of(int major, int minor);

}  // namespace nibble::cuda
