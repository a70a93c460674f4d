#include "core/schedule/batch_check.h"

#include <algorithm>
#include <cmath>

#include "nibble/error.h"

namespace nibble {
namespace {

[[noreturn]] void fail(ErrorCode code, const ProgramLimits& program, const std::string& what) {
  throw Error(code, "[step] " + program.name + ": " + what);
}

std::string expected(const std::string& name, const std::string& wanted, std::int64_t found) {
  return name + ": expected " + wanted + ", found " + std::to_string(found);
}

std::string at(const char* list, std::size_t i) {
  return std::string(list) + "[" + std::to_string(i) + "]";
}

std::string below(std::int64_t end) {
  return "0 to " + std::to_string(end - 1);
}

// Null when good, else what is wrong with it.
const char* complaint(const SampleParams& p) {
  if (!(p.temperature >= 0) || std::isinf(p.temperature)) return "temperature: expected 0 or more";
  if (!(p.top_p >= 0 && p.top_p <= 1)) return "top_p: expected a number from 0 to 1";
  if (!(p.min_p >= 0 && p.min_p <= 1)) return "min_p: expected a number from 0 to 1";
  if (!(p.repetition_penalty > 0) || std::isinf(p.repetition_penalty)) {
    return "repetition_penalty: expected a number above 0";
  }
  if (p.top_k < 0) return "top_k: expected 0 or more";
  if (p.position < 0) return "position: expected 0 or more";
  return nullptr;
}

}  // namespace

BatchChecker::BatchChecker(const StateSizes& sizes)
    : sizes_(sizes),
      slot_seen_(static_cast<std::size_t>(sizes.slots)),
      page_written_(static_cast<std::size_t>(sizes.pages)) {}

std::uint64_t BatchChecker::bytes(const StateSizes& sizes) {
  return (static_cast<std::uint64_t>(sizes.slots) + static_cast<std::uint64_t>(sizes.pages)) *
         sizeof(std::uint32_t);
}

void BatchChecker::operator()(const ProgramLimits& program, const Batch& batch,
                              const SlotCursors& state, bool recurrent, std::int64_t sampled) {
  if (batch.rows() < 1 || batch.rows() > program.cls.max_rows) {
    fail(ErrorCode::internal, program,
         expected("rows", "1 to " + std::to_string(program.cls.max_rows), batch.rows()));
  }
  if (++round_ == 0) {
    std::fill(slot_seen_.begin(), slot_seen_.end(), 0);
    std::fill(page_written_.begin(), page_written_.end(), 0);
    round_ = 1;
  }
  check_tokens(program, batch, sampled);
  check_ranges(program, batch, state);
  if (recurrent) state.check(batch.ranges);
  check_outputs(program, batch);
  for (std::size_t i = 0; i < batch.taken_back.size(); ++i) {
    const auto& [slot, token] = batch.taken_back[i];
    if (slot < 0 || slot >= sizes_.slots) {
      fail(ErrorCode::internal, program,
           expected(at("taken_back", i) + ".slot", below(sizes_.slots), slot));
    }
    if (token < 0 || token >= sizes_.vocab) {
      fail(ErrorCode::internal, program,
           expected(at("taken_back", i) + ".token", below(sizes_.vocab), token));
    }
  }
}

void BatchChecker::check_tokens(const ProgramLimits& program, const Batch& batch,
                                std::int64_t sampled) const {
  const auto wrong = [&](const std::string& name, const std::string& wanted, std::int64_t found) {
    fail(ErrorCode::invalid_argument, program, expected(name, wanted, found));
  };
  // Decode ranges come first and have one row each.
  const auto decodes = static_cast<std::size_t>(
      std::find_if(batch.ranges.begin(), batch.ranges.end(),
                   [](const Range& r) { return r.section != Section::decode; }) -
      batch.ranges.begin());
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const std::int32_t token = batch.tokens[i];
    if (token >= sizes_.vocab) wrong(at("tokens", i), below(sizes_.vocab), token);
    if (token >= 0) continue;
    if (i >= decodes) {
      wrong(at("tokens", i), below(sizes_.vocab) + " (an output of the step before only in a decode row)", token);
    }
    if (std::int64_t{-1} - token >= sampled) {
      const std::string outputs = sampled > 0 ? " or an output of the step before, " + std::to_string(-sampled) + " to -1"
                                              : " (the step before samples nothing)";
      wrong(at("tokens", i), below(sizes_.vocab) + outputs, token);
    }
  }
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    const std::int32_t token = batch.targets[i];
    if (token < 0 || token >= sizes_.vocab) wrong(at("targets", i), below(sizes_.vocab), token);
  }
}

void BatchChecker::check_ranges(const ProgramLimits& program, const Batch& batch,
                                const SlotCursors& state) {
  std::int64_t next_row = 0;
  Section last = Section::decode;
  for (std::size_t i = 0; i < batch.ranges.size(); ++i) {
    const Range& r = batch.ranges[i];
    const auto wrong = [&](const char* field, const std::string& wanted, std::int64_t found) {
      fail(ErrorCode::internal, program, expected(at("ranges", i) + field, wanted, found));
    };
    if (!program.cls.has(r.section) || r.section < last) {
      fail(ErrorCode::internal, program,
           at("ranges", i) + ": a " + section_name(r.section) + " range does not belong here");
    }
    last = r.section;
    if (r.first_row != next_row) wrong(".first_row", std::to_string(next_row), r.first_row);
    const std::int64_t most = r.section == Section::decode   ? 1
                              : r.section == Section::verify ? sizes_.records
                                                             : program.cls.max_rows;
    if (r.rows < 1 || r.rows > most) wrong(".rows", "1 to " + std::to_string(most), r.rows);
    next_row += r.rows;
    if (r.slot < 0 || r.slot >= sizes_.slots) wrong(".slot", below(sizes_.slots), r.slot);
    std::uint32_t& seen = slot_seen_[static_cast<std::size_t>(r.slot)];
    if (seen == round_) wrong(".slot", "each slot once", r.slot);
    seen = round_;
    const std::int32_t records = state.pending(r.slot);
    if (r.keep < 0 || r.keep > records) wrong(".keep", "0 to " + std::to_string(records), r.keep);
    if (r.position < 0 || r.position > program.positions - r.rows) {
      wrong(".position", "0 to " + std::to_string(program.positions - r.rows), r.position);
    }
    if (program.attention) check_pages(program, batch, r);
  }
  if (next_row != batch.rows()) {
    fail(ErrorCode::internal, program,
         expected("rows in ranges", std::to_string(batch.rows()), next_row));
  }
}

void BatchChecker::check_pages(const ProgramLimits& program, const Batch& batch, const Range& r) {
  const auto table = static_cast<std::int64_t>(batch.pages.size());
  const std::int64_t needed = (r.position + r.rows + kPageTokens - 1) / kPageTokens;
  if (r.first_page < 0 || needed > table - r.first_page) {
    fail(ErrorCode::internal, program,
         expected(
             "pages of slot " + std::to_string(r.slot) + " from " + std::to_string(r.first_page),
             std::to_string(needed), table - r.first_page));
  }
  for (std::int64_t i = 0; i < needed; ++i) {
    const std::int32_t page = batch.pages[static_cast<std::size_t>(r.first_page + i)];
    if (page < 0 || page >= sizes_.pages) {
      fail(ErrorCode::internal, program,
           expected("page of slot " + std::to_string(r.slot), below(sizes_.pages), page));
    }
    if ((i + 1) * kPageTokens <= r.position) continue;
    // a shared page may be read by many, but written by one
    std::uint32_t& written = page_written_[static_cast<std::size_t>(page)];
    if (written == round_) {
      fail(ErrorCode::internal, program, expected("written pages", "each one once", page));
    }
    written = round_;
  }
}

void BatchChecker::check_outputs(const ProgramLimits& program, const Batch& batch) const {
  const auto wrong = [&](const std::string& name, const std::string& wanted, std::int64_t found) {
    fail(ErrorCode::internal, program, expected(name, wanted, found));
  };
  const auto outputs = static_cast<std::int64_t>(batch.output_rows.size());
  if (outputs > program.cls.max_outputs) {
    wrong("output_rows", "at most " + std::to_string(program.cls.max_outputs), outputs);
  }
  std::int64_t last = -1;
  std::size_t range = 0;
  const bool samples = program.samples;
  if (samples && static_cast<std::int64_t>(batch.sampling.size()) != outputs) {
    wrong("sampling", std::to_string(outputs) + " entries",
          static_cast<std::int64_t>(batch.sampling.size()));
  }
  if (program.scores && static_cast<std::int64_t>(batch.targets.size()) != outputs) {
    wrong("targets", std::to_string(outputs) + " entries",
          static_cast<std::int64_t>(batch.targets.size()));
  }
  for (std::size_t i = 0; i < batch.output_rows.size(); ++i) {
    const std::int32_t row = batch.output_rows[i];
    if (row <= last || row >= batch.rows()) {
      wrong(at("output_rows", i),
            std::to_string(last + 1) + " to " + std::to_string(batch.rows() - 1), row);
    }
    last = row;
    if (!samples) continue;
    while (row >= batch.ranges[range].first_row + batch.ranges[range].rows) ++range;
    const SampleParams& params = batch.sampling[i];
    if (params.slot != batch.ranges[range].slot) {
      wrong(at("sampling", i) + ".slot", std::to_string(batch.ranges[range].slot) + " of its row",
            params.slot);
    }
    if (const char* why = complaint(params)) {
      fail(ErrorCode::invalid_argument, program, at("sampling", i) + "." + why);
    }
  }
}

}  // namespace nibble
