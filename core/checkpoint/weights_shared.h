// weights_shared.h: what all scopes of one checkpoint share; inside of weights*.cpp only.
#pragma once

#include <map>
#include <mutex>

#include "core/checkpoint/weights.h"

namespace nibble {

struct Weights::Shared {
  struct Bound {
    int owners = 0, sharers = 0;
  };

  std::shared_ptr<const TensorSource> source;
  QuantConfig config;
  std::string model_prefix;  // what "model" is called here
  std::string outer_prefix;  // before names outside of "model": "" or "language_model."

  mutable std::mutex mutex;
  std::map<std::string, Bound, std::less<>> bound;
  std::vector<const TensorInfo*> vectors;
  std::vector<std::string> unscaled;  // modules whose inputs are declared static, without a scale

  std::string resolve(const std::string& logical) const;
};

}  // namespace nibble
