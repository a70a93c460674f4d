#include "backends/cuda/arch_path.h"

#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble::cuda {

const char* arch_path_name(ArchPath path) {
  switch (path) {
    case ArchPath::sm70:
      return "sm70";
    case ArchPath::sm90:
      return "sm90";
    case ArchPath::sm120:
      return "sm120";
  }
  return "";
}

ArchPath arch_path_from(const std::string& name, int major, int minor) {
  if (name.empty()) {
    if (major == 7 && minor == 0) return ArchPath::sm70;
    return major == 12 && minor == 0 ? ArchPath::sm120 : ArchPath::sm90;
  }
  for (const ArchPath path : {ArchPath::sm70, ArchPath::sm90, ArchPath::sm120}) {
    if (name == arch_path_name(path)) return path;
  }
  throw Error(ErrorCode::invalid_argument,
              "[cuda] arch-path: expected sm70, sm90 or sm120, found " + in_quotes(name));
}

}  // namespace nibble::cuda
