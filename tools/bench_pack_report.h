// bench_pack_report.h: results of `nibble bench ops --op pack` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

std::string pack_markdown(const PackBench& bench);
std::string pack_json(const PackBench& bench);
std::string pack_csv(const PackBench& bench);

}  // namespace nibble::tool
