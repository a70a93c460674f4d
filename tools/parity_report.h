// parity_report.h: what `nibble parity` prints.
#pragma once

#include <string>

#include "core/base/json.h"
#include "nibble/parity.h"
#include "tools/console.h"

namespace nibble::tool {

std::string parity_text(const Console& console, const ParityReport& report);
std::string parity_text(const Console& console, const Float64Report& report);
Json parity_json(const ParityReport& report);
Json parity_json(const Float64Report& report);

}  // namespace nibble::tool
