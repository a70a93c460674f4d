// bench_delta_report.h: results of `nibble bench ops --op delta` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

std::string delta_markdown(const DeltaBench& bench);
std::string delta_json(const DeltaBench& bench);
std::string delta_csv(const DeltaBench& bench);

}  // namespace nibble::tool
