// line_reader.h: lines of standard input, interruptible.
#pragma once

#include <string>

namespace nibble::tool {

class LineReader {
 public:
  enum class Result { line, end, interrupted };
  // Without its newline. A line that ends in a backslash goes on in the next one.
  Result read(std::string& line);

 private:
  Result read_one(std::string& line);
  std::string held_;
  bool ended_ = false;
};

}  // namespace nibble::tool
