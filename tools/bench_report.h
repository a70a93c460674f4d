// bench_report.h: results of a bench as markdown, JSON or CSV.
#pragma once

#include <string>
#include <vector>

#include "nibble/model.h"
#include "tools/bench_run.h"
#include "tools/roof.h"

namespace nibble::tool {

struct BenchReport {
  std::string model;  // name of the folder or the shape
  ModelInfo info;
  int repetitions = 0;  // at most; a row has as many as its samples
  bool has_roof = false;
  Roof roof;
  std::vector<BenchResult> results;

  // Part of the measured roof that a row reaches: weight bytes read a second over read bandwidth
  // for decode, linear-layer operations a second over the multiply-add rate for prefill. 0: no
  // roof.
  double roof_part(const BenchResult& r) const;

  std::string markdown() const;
  std::string json() const;
  std::string csv() const;
};

}  // namespace nibble::tool
