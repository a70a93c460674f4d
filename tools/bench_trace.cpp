#include "tools/bench_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/base/quote.h"
#include "tools/failure.h"
#include "tools/table.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

bool computes(const TraceEvent& e) {
  return e.kind == TraceEvent::Kind::op || e.kind == TraceEvent::Kind::kernel;
}

// A kernel's name without its template arguments.
std::string class_of(const TraceEvent& e) {
  std::string name = e.name.substr(0, e.name.find('<'));
  const std::size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

std::string copies_of(const Trace& trace) {
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> kinds;  // count, bytes
  for (const TraceEvent& e : trace.events) {
    if (e.kind != TraceEvent::Kind::copy || e.step < 0) continue;
    auto& [count, bytes] = kinds[e.name];
    ++count;
    bytes += e.bytes;
  }
  std::string text;
  for (const auto& [name, sums] : kinds) {
    text += fmt::format("{}{} {} of {}", text.empty() ? "" : ", ", sums.first, name,
                        format_bytes(sums.second));
  }
  return text.empty() ? "-" : text;
}

}  // namespace

std::string trace_text(const std::vector<TracedRow>& rows) {
  Table runs({{"traced"},
              {"batch", true},
              {"steps", true},
              {"their time", true},
              {"busy", true},
              {"kernels a step", true},
              {"longest stall", true},
              {"stalls > 2 ms", true},
              {"copies"}});
  std::vector<Column> by_class = {{"traced"}, {"batch", true}};
  for (const std::string_view name : op_classes()) by_class.push_back({std::string(name), true});
  Table classes(std::move(by_class));
  Table shares({{"traced"},
                {"batch", true},
                {"kernel or op"},
                {"runs", true},
                {"time", true},
                {"share", true}});
  for (const TracedRow& row : rows) {
    struct Sum {
      std::uint64_t runs = 0;
      double seconds = 0;
    };
    std::map<std::string, Sum> sums;
    double all = 0;
    for (const TraceEvent& e : row.trace.events) {
      if (!computes(e) || e.step < 0) continue;
      Sum& sum = sums[class_of(e)];
      const double seconds = static_cast<double>(e.end_ns - e.start_ns) * 1e-9;
      ++sum.runs;
      sum.seconds += seconds;
      all += seconds;
    }
    const TraceSummary& s = row.summary;
    runs.add({row.what.name(), std::to_string(row.what.batch), std::to_string(s.steps), format_seconds(s.seconds),
              fmt::format("{:.1f} %", 100 * s.busy_share), fmt::format("{:.6g}", s.kernels_per_step),
              format_seconds(s.longest_stall_seconds), std::to_string(s.stalls), copies_of(row.trace)});
    std::vector<std::string> cells = {row.what.name(), std::to_string(row.what.batch)};
    for (const auto& [name, share] : s.class_shares) cells.push_back(fmt::format("{:.1f} %", 100 * share));
    classes.add(std::move(cells));
    std::vector<std::pair<std::string, Sum>> order(sums.begin(), sums.end());
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    for (const auto& [name, sum] : order) {
      shares.add({row.what.name(), std::to_string(row.what.batch), name, std::to_string(sum.runs),
                  format_seconds(sum.seconds),
                  fmt::format("{:.1f} %", all > 0 ? 100 * sum.seconds / all : 0.0)});
    }
  }
  return runs.markdown() + "\n" + classes.markdown() + "\n" + shares.markdown();
}

void expect_writable(const std::string& path) {
  std::error_code why;
  const auto there = std::filesystem::status(path, why);
  // A pipe or a device is somebody's to read from the moment it is opened.
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there) &&
      !std::filesystem::is_directory(there)) {
    return;
  }
  const bool fresh = !std::filesystem::exists(there);
  errno = 0;
  const bool good = std::ofstream(path, std::ios::binary | std::ios::app).good();
  const int reason = errno;
  if (fresh && good) {  // also what a dangling link points to
    const auto real = std::filesystem::canonical(path, why);
    std::filesystem::remove(why ? std::filesystem::path(path) : real, why);
  }
  if (!good) {
    throw Failure(kFailed, fmt::format("--trace {}: the file cannot be written{}", in_quotes(path, kShownPath),
                                       reason == 0 ? "" : fmt::format(" ({})", std::strerror(reason))));
  }
}

void write_trace(const std::string& path, const std::vector<TracedRow>& rows) {
  Trace all;
  for (const TracedRow& row : rows) {
    if (all.events.empty()) all.start_ns = row.trace.start_ns;
    all.end_ns = row.trace.end_ns;
    all.events.insert(all.events.end(), row.trace.events.begin(), row.trace.events.end());
  }
  std::ofstream file(path, std::ios::binary);
  file << all.chrome_json();
  file.close();
  if (!file) throw Failure(kFailed, fmt::format("--trace {}: the file cannot be written", path));
}

}  // namespace nibble::tool
