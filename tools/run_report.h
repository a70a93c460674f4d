// run_report.h: what one answer was and how long it took.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "nibble/session.h"
#include "tools/load.h"

namespace nibble::tool {

// The first token ends the prompt's time, the rest is generation.
class RunReport {
 public:
  RunReport(const Loaded& loaded, const Sampling& how) : loaded_(loaded), how_(how) {}

  void start() { begin_ = last_ = Clock::now(); }
  void piece(const Piece& piece);
  void end(const TokenStream& stream, bool stopped_by_user);

  Json::Object json() const;
  std::string text() const;        // several lines
  std::string short_text() const;  // one line

 private:
  using Clock = std::chrono::steady_clock;
  double prompt_seconds() const;
  double new_seconds() const;
  double prompt_rate() const;
  double new_rate() const;  // of the tokens after the first

  const Loaded& loaded_;
  Sampling how_;
  Clock::time_point begin_{}, first_{}, last_{};
  std::vector<std::int32_t> tokens_;
  std::int64_t prompt_tokens_ = 0;
  std::string stop_reason_ = "none";
};

}  // namespace nibble::tool
