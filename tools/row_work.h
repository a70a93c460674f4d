// row_work.h: what a row of bench must move and compute at least, and how fast a card can do that at most.
#pragma once

#include <string>
#include <vector>

#include "nibble/model.h"
#include "nibble/op_bench.h"
#include "tools/bench_run.h"

namespace nibble::tool {

// Of one step of decode rows, the mean over their steps; of a whole prompt. Not counted: activations, and operations of
// anything but linear layers and attention.
struct RowWork {
  double bytes = 0;         // packed weights of each step, keys and values that it reads, delta state read and written
  double linear_flops = 0;  // the head for rows that it serves
  double attention_flops = 0;  // a prompt's at half: what lies behind a row is not looked at
  double tokens = 0;           // made or read meanwhile
};
// `kv_position_bytes`: of all layers. Experts count as far as rows reach them, all alike likely.
RowWork work_of(const ModelInfo& info, const BenchCase& what, double kv_position_bytes, int step_tokens);

struct RowRoof {
  double tokens_per_second = 0;  // 0: there is none, `text` says why
  std::string text;              // what limits: "bytes / copies", "operations / bf16", "operations / fp8 and bf16"
};
// The larger of both times. Without a rate of products a prompt has no roof, and steps of decoding that of their bytes.
RowRoof roof_of(const ModelInfo& info, const BenchCase& what, const RowWork& work, const DeviceRoofs& rates);

// Whether linear layers multiply FP8 by FP8.
bool runs_fp8(const ModelInfo& info);
// Each rate's median over the samples that have it.
DeviceRoofs median_roofs(const std::vector<DeviceRoofs>& samples);

}  // namespace nibble::tool
