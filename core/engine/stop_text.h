// stop_text.h: finds stop texts in a stream of text, holding back what might become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class StopText {
 public:
  StopText() = default;
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Appends to `out` what is certain not to be part of a stop text. True when a stop text is complete:
  // it and what follows it are dropped.
  bool push(std::string_view text, std::string& out);
  // The end of the stream: what was held back is ordinary text.
  void flush(std::string& out);

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace nibble
