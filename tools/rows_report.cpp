#include "tools/rows_report.h"

#include <fmt/format.h>

#include "tools/table.h"

namespace nibble::tool {

std::string rows_csv(const Json::Object& header, const std::vector<Json::Object>& rows) {
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> lines;
  for (const Json::Object& row : rows) {
    Json::Object all = header;
    all.insert(all.end(), row.begin(), row.end());
    columns.clear();
    lines.emplace_back();
    for (const auto& [key, value] : all) {
      columns.push_back({key});
      lines.back().push_back(value.is_null() ? "" : value.is_string() ? value.as_string() : value.dump());
    }
  }
  Table table(columns);
  for (std::vector<std::string>& line : lines) table.add(std::move(line));
  return table.csv();
}

std::string rows_json(Json::Object header, std::vector<Json::Object> rows) {
  Json::Array all;
  for (Json::Object& row : rows) all.emplace_back(std::move(row));
  return Json(Json::Object{{"header", std::move(header)}, {"rows", std::move(all)}}).dump(2) + "\n";
}

std::string micros(const LaunchTimes& times) {
  return fmt::format("{:.2f} ± {:.2f}", times.median * 1e6, times.spread * 1e6);
}

Json samples_json(const LaunchTimes& times) { return Json::Array(times.samples.begin(), times.samples.end()); }

Json choices_json(const std::vector<std::pair<std::string, std::string>>& choices) {
  Json::Array all;
  for (const auto& [kernel, why] : choices) all.emplace_back(Json::Object{{"kernel", kernel}, {"verdict", why}});
  return all;
}

}  // namespace nibble::tool
