#include "tools/table.h"

#include <algorithm>
#include <functional>

#include "nibble/error.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

// Columns of a terminal: bytes that do not continue a UTF-8 sequence.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string pad(const std::string& text, std::size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
}

std::string markdown_cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  if (cells.size() != columns_.size()) {
    throw Error(ErrorCode::internal, "[table] expected " + std::to_string(columns_.size()) +
                                         " cells, found " + std::to_string(cells.size()));
  }
  for (std::string& cell : cells) cell = one_line(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::aligned() const {
  std::vector<std::size_t> width;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    width.push_back(width_of(columns_[c].name));
    for (const auto& row : rows_) width[c] = std::max(width[c], width_of(row[c]));
  }
  std::string out;
  const auto line = [&](const std::function<const std::string&(std::size_t)>& cell) {
    std::string text;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) text += "  ";
      text += pad(cell(c), width[c], columns_[c].right);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + '\n';
  };
  line([&](std::size_t c) -> const std::string& { return columns_[c].name; });
  for (const auto& row : rows_) line([&](std::size_t c) -> const std::string& { return row[c]; });
  return out;
}

std::string Table::markdown() const {
  std::vector<std::vector<std::string>> cells(1);
  for (const Column& c : columns_) cells[0].push_back(markdown_cell(c.name));
  for (const auto& row : rows_) {
    auto& line = cells.emplace_back();
    for (const auto& cell : row) line.push_back(markdown_cell(cell));
  }
  std::vector<std::size_t> width(columns_.size(), 3);
  for (const auto& row : cells) {
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], width_of(row[c]));
  }
  std::string out;
  for (std::size_t r = 0; r < cells.size(); ++r) {
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      out += "| " + pad(cells[r][c], width[c], columns_[c].right) + ' ';
    }
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      out += columns_[c].right ? "| " + std::string(width[c] - 1, '-') + ": "
                               : "| " + std::string(width[c], '-') + ' ';
    }
    out += "|\n";
  }
  return out;
}

std::string Table::csv() const {
  std::string out;
  for (std::size_t c = 0; c < columns_.size(); ++c) out += (c > 0 ? "," : "") + csv_cell(columns_[c].name);
  out += '\n';
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) out += (c > 0 ? "," : "") + csv_cell(row[c]);
    out += '\n';
  }
  return out;
}

}  // namespace nibble::tool
