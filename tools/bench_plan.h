// bench_plan.h: what memory the rows of a bench take, and which of them a device has no room for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nibble/model.h"
#include "tools/bench_run.h"

namespace nibble::tool {

// Room for each of these rows, one at a time.
LoadOptions sized_for(LoadOptions how, const std::vector<BenchCase>& cases);
// Bytes of KV cache that a position takes, of all layers, in a model that was loaded so.
double kv_position_bytes(const ModelInfo& info, const LoadOptions& how);

struct Misfit {
  std::size_t row = 0;  // in the list
  std::string text;     // "tg128 @ d131072 batch 64: 563 GiB are needed (...), 138 GiB are free"
};
// Rows that do not fit by themselves; `inspect` says what a load takes.
std::vector<Misfit> misfits(const LoadOptions& how, const std::vector<BenchCase>& cases,
                            const std::function<ModelInfo(const LoadOptions&)>& inspect);

}  // namespace nibble::tool
