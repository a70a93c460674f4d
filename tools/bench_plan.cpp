#include "tools/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr std::int64_t kPage = 64;  // positions: KV caches come in these

std::int64_t kv_tokens_of(const BenchCase& c) { return c.batch * ((c.positions() + kPage - 1) / kPage * kPage); }

}  // namespace

LoadOptions sized_for(LoadOptions how, const std::vector<BenchCase>& cases) {
  how.max_sequences = 1;
  how.kv_tokens = kPage;
  for (const BenchCase& c : cases) {
    how.max_sequences = std::max(how.max_sequences, c.batch);
    how.kv_tokens = std::max(how.kv_tokens, kv_tokens_of(c));
  }
  return how;
}

double kv_position_bytes(const ModelInfo& info, const LoadOptions& how) {
  return static_cast<double>(info.kv_bytes) / static_cast<double>((how.kv_tokens + kPage - 1) / kPage * kPage);
}

std::vector<Misfit> misfits(const LoadOptions& how, const std::vector<BenchCase>& cases,
                            const std::function<ModelInfo(const LoadOptions&)>& inspect) {
  std::vector<Misfit> all;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const BenchCase& c = cases[i];
    const LoadOptions alone = sized_for(how, {c});
    const ModelInfo info = inspect(alone);
    const std::uint64_t needed = info.total_bytes() + info.loading_bytes;
    if (needed <= info.free_bytes) continue;
    all.push_back({i, fmt::format("{} batch {}: {} are needed (weights {}, KV cache {} for {} x {} positions, recurrent state "
                                  "{}), {} are free",
                                  c.name(), c.batch, format_bytes(needed), format_bytes(info.weight_bytes),
                                  format_bytes(info.kv_bytes), c.batch, c.positions(), format_bytes(info.delta_bytes),
                                  format_bytes(info.free_bytes))});
  }
  return all;
}

}  // namespace nibble::tool
