// philox.h: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A counter-based generator: the draw is a pure function of (seed, position, draw number), so it is
// the same in any batch, step or device.
#pragma once

#include "core/numerics/scalar.h"

namespace nibble::num {

struct Philox {
  std::uint32_t v[4];
};

NIBBLE_HD Philox philox4x32_10(Philox counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * counter.v[0], p1 = 0xCD9E8D57ull * counter.v[2];
    counter = {{static_cast<std::uint32_t>(p1 >> 32) ^ counter.v[1] ^ key0,
                static_cast<std::uint32_t>(p1),
                static_cast<std::uint32_t>(p0 >> 32) ^ counter.v[3] ^ key1,
                static_cast<std::uint32_t>(p0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1): the top 24 bits, exact in float32.
NIBBLE_HD float uniform(std::uint64_t seed, std::uint64_t position, std::uint32_t draw) {
  const Philox r = philox4x32_10({{static_cast<std::uint32_t>(position),
                                   static_cast<std::uint32_t>(position >> 32), draw, 0u}},
                                 static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  return mul(static_cast<float>(r.v[0] >> 8), 0x1p-24f);
}

}  // namespace nibble::num
