// bench_grouped_report.h: results of `nibble bench ops --op grouped` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

std::string grouped_markdown(const GroupedBench& bench, bool explain);
std::string grouped_json(const GroupedBench& bench, bool explain);
std::string grouped_csv(const GroupedBench& bench);

}  // namespace nibble::tool
