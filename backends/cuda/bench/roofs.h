// roofs.h: what a card does at most.
#pragma once

#include <string>

#include "backends/backend.h"
#include "backends/cuda/bench/launch_timer.h"

namespace nibble::cuda {

struct PeerRate {
  double flops_per_second = 0;  // of a large product in bf16; 0: it cannot be had
  std::string text;             // the peer's name, or why
};
PeerRate peer_rate(LaunchTimer& timer, int multiprocessors);

DeviceRoofs measure_roofs(const BackendOptions& options, const RoofOptions& how);

}  // namespace nibble::cuda
