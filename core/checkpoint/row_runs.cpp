#include "core/checkpoint/row_runs.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "core/base/quote.h"
#include "core/checkpoint/finite.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::int64_t kScaleRows = 128;  // of ScaleLayout::block128

std::vector<RowRun> merged(std::span<const RowRun> runs) {
  std::vector<RowRun> out;
  for (const RowRun& run : runs) {
    if (!out.empty() && out.back().first + out.back().count == run.first) {
      out.back().count += run.count;
    } else {
      out.push_back(run);
    }
  }
  return out;
}

// Blocks of scales move whole: every run begins at one, and only the last may end inside of one,
// where the whole matrix ends.
void expect_whole_blocks(const Weight& whole, const std::string& name, std::span<const RowRun> runs) {
  if (whole.scale_layout != ScaleLayout::block128) return;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::int64_t end = runs[i].first + runs[i].count;
    const bool last = i + 1 == runs.size() && end == whole.rows;
    if (runs[i].first % kScaleRows == 0 && (end % kScaleRows == 0 || last)) continue;
    throw Error(ErrorCode::unsupported,
                "[weights] " + whole.name + ": expected parts of whole 128 x 128 blocks of scales, found rows " +
                    std::to_string(runs[i].first) + " to " + std::to_string(end) + " for " + in_quotes(name));
  }
}

std::vector<float> scales_of(const Weight& whole, std::span<const RowRun> runs) {
  const bool by_row = whole.scale_layout == ScaleLayout::row;
  if (!by_row && whole.scale_layout != ScaleLayout::block128) return whole.scales;
  const std::int64_t unit = by_row ? 1 : kScaleRows;
  const std::int64_t width = by_row ? 1 : (whole.cols + kScaleRows - 1) / kScaleRows;
  std::vector<float> out;
  for (const RowRun& run : runs) {
    const std::int64_t end = (run.first + run.count + unit - 1) / unit;
    out.insert(out.end(), whole.scales.begin() + run.first / unit * width, whole.scales.begin() + end * width);
  }
  return out;
}

Bytes view_of(Bytes whole, std::int64_t rows, const RowRun& run) {
  const std::size_t width = whole.size() / static_cast<std::size_t>(rows);
  return whole.subspan(static_cast<std::size_t>(run.first) * width, static_cast<std::size_t>(run.count) * width);
}

std::byte* gather(Bytes whole, std::int64_t rows, std::span<const RowRun> runs, std::byte* to) {
  for (const RowRun& run : runs) {
    const Bytes part = view_of(whole, rows, run);
    if (!part.empty()) std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
  return to;
}

void make(const Weight& of, std::span<const RowRun> runs, Weight& made) {
  Weight whole = of;
  if (whole.materialize) whole.materialize(whole);
  const auto size = [&](Bytes all) {
    return all.size() / static_cast<std::size_t>(whole.rows) * static_cast<std::size_t>(made.rows);
  };
  const std::size_t codes = size(whole.codes), block_scales = size(whole.block_scales);
  std::shared_ptr<std::byte[]> bytes;
  try {
    bytes = std::make_shared_for_overwrite<std::byte[]>(codes + block_scales);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "[weights] " + made.name + ": " + std::to_string(codes + block_scales) +
                                              " bytes do not fit in memory");
  }
  std::byte* const end = gather(whole.codes, whole.rows, runs, bytes.get());
  gather(whole.block_scales, whole.rows, runs, end);
  made.codes = {bytes.get(), codes};
  made.block_scales = {end, block_scales};
  made.scales = scales_of(whole, runs);
  made.owner = std::move(bytes);
  if (!of.materialize) check_finite(made);  // backends look at what lies in files only
}

}  // namespace

Weight rows_of(const Weight& whole, std::string name, std::span<const RowRun> parts) {
  std::vector<RowRun> runs = merged(parts);
  Weight out = whole;
  out.name = std::move(name);
  out.rows = 0;
  for (const RowRun& run : runs) {
    if (run.first < 0 || run.count < 1 || run.first > whole.rows - run.count) {
      throw Error(ErrorCode::internal, "[weights] " + out.name + ": expected rows of the " +
                                           std::to_string(whole.rows) + " of " + whole.name + ", found " +
                                           std::to_string(run.first) + " and " + std::to_string(run.count) + " more");
    }
    out.rows += run.count;
  }
  if (out.rows == 0) throw Error(ErrorCode::internal, "[weights] " + out.name + ": expected rows, found none");
  expect_whole_blocks(whole, out.name, runs);
  out.scales = scales_of(whole, runs);
  if (!out.codes_origin.empty()) out.codes_origin += ", its rows for " + in_quotes(out.name);
  if (!out.scales_origin.empty()) out.scales_origin += ", its rows for " + in_quotes(out.name);
  if (runs.size() == 1 && !whole.materialize) {
    out.codes = view_of(whole.codes, whole.rows, runs.front());
    out.block_scales = view_of(whole.block_scales, whole.rows, runs.front());
    return out;
  }
  out.codes = {};
  out.block_scales = {};
  out.owner = nullptr;
  out.making_bytes = whole.materialize ? whole.bytes() + whole.making_bytes : 0;
  out.materialize = [whole, runs = std::move(runs)](Weight& made) { make(whole, runs, made); };
  return out;
}

}  // namespace nibble
