// rows_report.h: what the reports of `nibble bench ops` share: rows of named values below a header, as CSV or JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "nibble/op_bench.h"

namespace nibble::tool {

// One line for each row, the header's values in front of its own; an empty cell for null. All rows have the same names.
std::string rows_csv(const Json::Object& header, const std::vector<Json::Object>& rows);
// {"header": ..., "rows": [...]}, indented.
std::string rows_json(Json::Object header, std::vector<Json::Object> rows);

// Median and spread: "12.34 ± 0.05".
std::string micros(const LaunchTimes& times);
Json samples_json(const LaunchTimes& times);
// [{"kernel": ..., "verdict": ...}]
Json choices_json(const std::vector<std::pair<std::string, std::string>>& choices);

}  // namespace nibble::tool
