// bench_gate_up_report.h: results of `nibble bench ops --op gate-up` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

std::string gate_up_markdown(const GateUpBench& bench);
std::string gate_up_json(const GateUpBench& bench);
std::string gate_up_csv(const GateUpBench& bench);

}  // namespace nibble::tool
