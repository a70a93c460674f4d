// bench_delta_report.h: results of `nibble bench ops --op delta` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

std::string delta_markdown(const DeltaBench& bench);
std::string delta_json(const DeltaBench& bench);
std::string delta_csv(const DeltaBench& bench);
// Writes a safetensors file for each result into `folder`, which is made where there is none: q, k, v, g, beta and y, each
// [sequences, rows, heads, ..]. Throws Failure for what is no folder; what it returns throws Error where the disk refuses.
decltype(DeltaBenchOptions::on_result) delta_saver(const std::string& folder);

}  // namespace nibble::tool
