#include "models/model_type.h"

#include <algorithm>

#include "core/checkpoint/tensor_info.h"
#include "nibble/error.h"

namespace nibble {

std::string model_type_of(const JsonView& config) {
  if (!config.json().is_object()) {
    throw Error(ErrorCode::bad_file,
                config.path() + ": expected a JSON object, found " + config.json().type_name());
  }
  std::string type = config.string("model_type");
  if (type.empty()) config.fail("model_type", "expected a name, found \"\"");
  return type;
}

std::string model_type_of(const JsonView& config, std::span<const std::string_view> known) {
  std::string type = model_type_of(config);
  if (std::find(known.begin(), known.end(), type) != known.end()) return type;
  std::string names;
  for (const std::string_view name : known) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw Error(ErrorCode::unsupported, config.path() + ": model_type: expected one of " + names +
                                          ", found " + show_name(type));
}

}  // namespace nibble
