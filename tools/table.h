// table.h: rows of text as an aligned table, markdown or CSV.
#pragma once

#include <string>
#include <vector>

namespace nibble::tool {

struct Column {
  std::string name;
  bool right = false;  // numbers line up at the right
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> cells);  // one for each column
  bool empty() const { return rows_.empty(); }

  std::string aligned() const;   // for a terminal: a heading, then rows, two spaces between columns
  std::string markdown() const;  // aligned as well; `|` in a cell is escaped
  std::string csv() const;       // RFC 4180

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace nibble::tool
