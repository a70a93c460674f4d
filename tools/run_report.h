// run_report.h: what one answer was and how long it took.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "nibble/session.h"
#include "tools/load.h"
#include "tools/trace_summary.h"

namespace nibble::tool {

// The first token ends the prompt's time, the rest is generation.
class RunReport {
 public:
  RunReport(const Loaded& loaded, const Sampling& how) : loaded_(loaded), how_(how) {}

  // Also looks at what the device does, for busy shares; a device that cannot be looked at says why. To be called before
  // start().
  void trace();
  void start() { begin_ = last_ = Clock::now(); }
  void piece(const Piece& piece);
  void end(const TokenStream& stream, bool stopped_by_user);

  Json::Object json() const;
  Json::Object stats_json() const;  // of text()'s times, launches, bytes and busy shares
  std::string text() const;        // several lines
  std::string short_text() const;  // one line

 private:
  using Clock = std::chrono::steady_clock;
  double prompt_seconds() const;
  double new_seconds() const;
  double prompt_rate() const;
  double new_rate() const;  // of the tokens after the first
  void stop_tracing();
  std::string busy_text() const;

  const Loaded& loaded_;
  Sampling how_;
  Clock::time_point begin_{}, first_{}, last_{};
  std::vector<std::int32_t> tokens_;
  std::int64_t prompt_tokens_ = 0;
  std::string stop_reason_ = "none";
  bool tracing_ = false;
  double untimed_ = 0;  // reading the trace, after the first token
  std::string not_traced_;
  std::optional<TraceSummary> prompt_trace_, new_trace_;
};

}  // namespace nibble::tool
