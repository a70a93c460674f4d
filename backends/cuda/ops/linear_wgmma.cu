// linear_wgmma.cu: which tile of linear_wgmma.cuh or linear_stream.cuh serves.
#include "backends/cuda/ops/linear_schedule.cuh"

#include <algorithm>
#include <string>
#include <vector>

#include "backends/cuda/check.h"
#include "backends/cuda/ops/linear.h"
#include "nibble/error.h"

namespace nibble::cuda {
namespace {

struct Choice {
  int tile;  // of kWgmmaTiles
  bool split;
  std::int64_t units;
};
int tile_of(int tokens, Totals totals, bool relays) {
  for (int i = 0; i < kWgmmaTileCount; ++i) {
    const WgmmaTile& t = kWgmmaTiles[i];
    if (t.tokens == tokens && t.totals == totals && t.relays == relays) return i;
  }
  throw Error(ErrorCode::internal, "[cuda] linear: no tile of " + std::to_string(tokens) + " rows");
}

// How a tile would serve a class of `rows` rows.
class Cut {
 public:
  Cut(const LinearParams& p, std::int64_t rows, int multiprocessors)
      : p_(p), rows_(rows), multiprocessors_(multiprocessors) {}
  bool scales() const { return p_.weight.block != nullptr; }
  bool one() const { return p_.segments == 1 && !scales(); }
  std::int64_t tiles(const WgmmaTile& t) const {
    return (p_.weight.padded_rows + kWgmmaTileRows - 1) / kWgmmaTileRows * ((rows_ + t.tokens - 1) / t.tokens);
  }
  // A sum of each unit lies in two areas.
  bool room(const WgmmaTile& t) const {
    const std::int64_t slot = std::int64_t{kWgmmaTileRows} * t.tokens * 4;
    return tiles(t) * p_.segments * slot <= std::int64_t{multiprocessors_} * 2 * kAreaPerProcessor;
  }
  bool can_split(const WgmmaTile& t) const {
    return !one() && !scales() && (t.tokens <= 32 || tiles(t) < multiprocessors_) && room(t);
  }
  std::int64_t units(const WgmmaTile& t, bool split) const { return tiles(t) * (split ? p_.segments : 1); }

 private:
  const LinearParams& p_;
  std::int64_t rows_;
  int multiprocessors_;
};

// Larger tiles read fewer bytes for a product, smaller ones keep every multiprocessor busy: relative times of a unit of
// K, from measurements, and how many rounds of units there are.
Choice choose(const LinearParams& p, std::int64_t rows, int multiprocessors) {
  const Cut cut(p, rows, multiprocessors);
  const auto with = [&](int tokens, Totals more) {
    const WgmmaTile any{tokens, Totals::none, false, nullptr};
    const bool split = cut.can_split(any);
    const Totals totals = tokens != 128 && (cut.one() || split) ? Totals::none : more;
    // Chains of one segment are long enough for a warp to decode 32 rows' weights between its products.
    const bool relays = totals == Totals::none && (tokens <= 16 || (tokens == 32 && split));
    return Choice{tile_of(tokens, totals, relays), split, cut.units(any, split)};
  };
  for (const int few : {8, 16, 32, 64}) {
    if (rows <= few) return with(few, Totals::registers);
  }
  if (cut.scales() || rows <= 128) return with(128, Totals::registers);
  const auto time = [&](int tokens, double unit) {
    const WgmmaTile any{tokens, Totals::none, false, nullptr};
    const bool split = cut.can_split(any);
    const double rounds = static_cast<double>(cut.units(any, split)) / multiprocessors;
    return unit / (split ? p.segments : 1) * std::max(1.0, rounds);
  };
  return time(128, 0.64) < time(256, 1) ? with(128, Totals::registers) : with(256, Totals::memory);
}

// Why a tile cannot serve; null: it can, `choice` says how.
const char* refuse_tile(int tile, const LinearParams& p, std::int64_t rows, int multiprocessors, Choice& choice) {
  const WgmmaTile& t = kWgmmaTiles[tile];
  const Cut cut(p, rows, multiprocessors);
  if (t.tokens <= 32 && rows > t.tokens) return "the class has more rows";
  if (t.totals == Totals::memory && cut.scales()) return "totals in memory take no scales of blocks";
  const bool split = t.totals == Totals::none && !cut.one();
  if (split && cut.scales()) return "scales of blocks need totals";
  if (split && !cut.room(t)) return "there is no room for the segments' sums";
  choice = {tile, split, cut.units(t, split)};
  return nullptr;
}

}  // namespace

std::uint64_t wgmma_sums_bytes(int multiprocessors) {
  return kFlagBytes + static_cast<std::uint64_t>(multiprocessors) * kSumsPerProcessor;
}

void launch_wgmma(const Launch& to, const LinearParams& l) {
  const std::int64_t rows = to.max_of(l.rows);
  Choice choice = choose(l, rows, to.multiprocessors);
  if (l.tile >= 0) {
    const char* why = l.tile < kWgmmaTileCount ? refuse_tile(l.tile, l, rows, to.multiprocessors, choice) : "no such tile";
    if (why != nullptr) throw Error(ErrorCode::internal, "[cuda] linear: tile " + std::to_string(l.tile) + ": " + why);
  }
  const WgmmaParams p{l, to.sums, choice.split, l.weight.cols % kTileCols == 0, choice.units, to.multiprocessors};
  const bool swiglu = l.weight.gate_up;
  const auto start = l.weight.format == WeightFormat::nvfp4      ? (swiglu ? start_swiglu_nvfp4 : start_wgmma_nvfp4)
                     : l.weight.format == WeightFormat::fp8_e4m3 ? (swiglu ? start_swiglu_fp8 : start_wgmma_fp8)
                     : swiglu                                    ? start_swiglu_bf16
                                                                 : start_wgmma_bf16;
  check(start(to, choice.tile, p), "linear");
}

std::string wgmma_choice(const Launch& to, const LinearParams& l) {
  const Choice c = choose(l, to.max_of(l.rows), to.multiprocessors);
  return std::string("tile ") + kWgmmaTiles[c.tile].name + ", " + std::to_string(c.units) +
         (c.split ? " units of one segment" : " units") + ", " + std::to_string(l.segments) + " segments";
}

int linear_tile_count() { return kWgmmaTileCount; }

std::vector<LinearTile> wgmma_tiles(const Launch& to, const LinearParams& l) {
  std::vector<LinearTile> all;
  for (int i = 0; i < kWgmmaTileCount; ++i) {
    Choice c{};
    const char* why = refuse_tile(i, l, to.max_of(l.rows), to.multiprocessors, c);
    all.push_back({kWgmmaTiles[i].name, why == nullptr ? "" : why});
  }
  return all;
}

}  // namespace nibble::cuda
