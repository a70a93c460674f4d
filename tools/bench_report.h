// bench_report.h: results of a bench as markdown, JSON or CSV.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nibble/model.h"
#include "nibble/op_bench.h"
#include "tools/bench_run.h"
#include "tools/roof.h"
#include "tools/row_work.h"

namespace nibble::tool {

struct BenchReport {
  std::string model;  // name of the folder or the shape
  std::string mix;    // of a shape's weights; empty: a checkpoint's own
  ModelInfo info;
  int repetitions = 0;  // at most; a row has as many as its samples
  bool has_roof = false;  // of a CPU
  Roof roof;
  std::optional<DeviceRoofs> card;
  int roof_samples = 0;
  double kv_position_bytes = 0;  // of all layers
  int step_tokens = 0;
  std::vector<BenchResult> results;
  std::vector<std::string> left_out;  // rows that do not fit, a line each

  // What a row could reach by the measured roofs. A CPU: weight bytes read a second over read bandwidth for decode,
  // linear-layer operations a second over the multiply-add rate for prefill. A card: row_work.h.
  RowRoof roof_of(const BenchResult& r) const;
  // The part of that which it reaches; 0: no roof.
  double roof_part(const BenchResult& r) const;

  std::string markdown() const;
  std::string json() const;
  std::string csv() const;
};

}  // namespace nibble::tool
