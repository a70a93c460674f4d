// activation_kind.h: the format of quantised activations that a name means.
#pragma once

#include <optional>
#include <string_view>

#include "core/checkpoint/weight.h"

namespace nibble {

inline std::optional<ActivationFormat::Kind> activation_format_kind(std::string_view name) {
  using Kind = ActivationFormat::Kind;
  for (const Kind k : {Kind::nvfp4_static, Kind::fp8_tensor_static, Kind::fp8_token, Kind::fp8_token_group128}) {
    if (name == activation_format_name(k)) return k;
  }
  return std::nullopt;
}

}  // namespace nibble
