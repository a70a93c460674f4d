// bench_attention_report.h: results of `nibble bench ops --op attention` as markdown, JSON or CSV.
#pragma once

#include <string>

#include "nibble/op_bench.h"

namespace nibble::tool {

std::string attention_markdown(const AttentionBench& bench);
std::string attention_json(const AttentionBench& bench);
std::string attention_csv(const AttentionBench& bench);

}  // namespace nibble::tool
