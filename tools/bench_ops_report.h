// bench_ops_report.h: results of `nibble bench ops` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

// `explain`: with every kernel that was looked at and why it served or not.
std::string ops_markdown(const LinearBench& bench, bool explain);
std::string ops_json(const LinearBench& bench, bool explain);
std::string ops_csv(const LinearBench& bench);

}  // namespace nibble::tool
