#include "tools/run_report.h"

#include <fmt/format.h>

#include "nibble/error.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr std::size_t kTracedTokens = 512;  // a trace grows by some hundred kernels with each

double rate(double count, double seconds) {
  return seconds > 0 ? count / seconds : 0;
}

}  // namespace

void RunReport::piece(const Piece& piece) {
  if (piece.token < 0) return;  // text that was held back
  last_ = Clock::now();
  if (tokens_.empty()) first_ = last_;
  tokens_.push_back(piece.token);
  if (!tracing_ || tokens_.size() <= kTracedTokens) return;
  stop_tracing();
  untimed_ = std::chrono::duration<double>(Clock::now() - last_).count();
}

void RunReport::trace() {
  try {
    loaded_.model.start_trace();
    tracing_ = true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported && e.code() != ErrorCode::invalid_argument) throw;
    not_traced_ = e.what();
  }
}

void RunReport::stop_tracing() {
  if (!tracing_) return;
  tracing_ = false;
  const Trace trace = loaded_.model.stop_trace();
  const std::size_t prompts = prompt_steps(trace);
  if (prompts > 0) prompt_trace_ = summary_of(trace.of_steps(0, prompts));
  if (prompts < trace.steps.size()) new_trace_ = summary_of(trace.of_steps(prompts, trace.steps.size()));
}

void RunReport::end(const TokenStream& stream, bool stopped_by_user) {
  stop_tracing();
  prompt_tokens_ = stream.prompt_tokens();
  stop_reason_ = stopped_by_user ? "interrupted" : stop_reason_name(stream.stop_reason());
}

double RunReport::prompt_seconds() const {
  return tokens_.empty() ? 0 : std::chrono::duration<double>(first_ - begin_).count();
}
double RunReport::new_seconds() const {
  if (tokens_.empty()) return 0;
  const double seconds = std::chrono::duration<double>(last_ - first_).count();
  return tokens_.size() > kTracedTokens + 1 ? seconds - untimed_ : seconds;
}
double RunReport::prompt_rate() const {
  return rate(static_cast<double>(prompt_tokens_), prompt_seconds());
}
double RunReport::new_rate() const {
  return tokens_.empty() ? 0 : rate(static_cast<double>(tokens_.size() - 1), new_seconds());
}

Json::Object RunReport::json() const {
  Json::Array ids(tokens_.begin(), tokens_.end());
  const ModelInfo& info = loaded_.model.info();
  Json::Object out;
  out.emplace_back("tokens", std::move(ids));
  out.emplace_back("prompt_tokens", prompt_tokens_);
  out.emplace_back("new_tokens", static_cast<std::int64_t>(tokens_.size()));
  out.emplace_back("stop_reason", stop_reason_);
  out.emplace_back("seed", how_.seed);
  out.emplace_back("timings", Json::Object{{"load_seconds", loaded_.seconds},
                                           {"prompt_seconds", prompt_seconds()},
                                           {"prompt_tokens_per_second", prompt_rate()},
                                           {"new_seconds", new_seconds()},
                                           {"new_tokens_per_second", new_rate()}});
  out.emplace_back("model", Json::Object{{"architecture", info.architecture},
                                         {"backend", info.backend},
                                         {"device", info.device},
                                         {"kernels", info.kernels},
                                         {"profile", info.profile},
                                         {"activations", info.activations},
                                         {"kv_cache_dtype", info.kv_cache_dtype},
                                         {"threads", info.threads},
                                         {"packing", info.packing},
                                         {"weight_bytes", info.weight_bytes},
                                         {"mapped_bytes", info.mapped_bytes}});
  return out;
}

Json::Object RunReport::stats_json() const {
  const StepStats stats = loaded_.model.stats();
  Json::Object out{{"time_to_first_token_seconds", prompt_seconds()},
                   {"prompt_tokens_per_second", prompt_rate()},
                   {"new_tokens_per_second", new_rate()},
                   {"steps", stats.steps},
                   {"launches", stats.launches},
                   {"host_to_device_bytes", stats.host_to_device_bytes},
                   {"device_to_host_bytes", stats.device_to_host_bytes}};
  if (!not_traced_.empty()) out.emplace_back("not_traced", not_traced_);
  out.emplace_back("prompt_trace", prompt_trace_ ? Json(summary_json(*prompt_trace_)) : Json());
  out.emplace_back("new_trace", new_trace_ ? Json(summary_json(*new_trace_)) : Json());
  return out;
}

std::string RunReport::busy_text() const {
  if (!not_traced_.empty()) return fmt::format("busy share not measured: {}\n", not_traced_);
  const auto share = [](const std::optional<TraceSummary>& of) {
    return of ? fmt::format("{:.1f} % in {} steps", 100 * of->busy_share, of->steps) : std::string("no step");
  };
  std::string out = fmt::format("busy       prompt {}, new {}", share(prompt_trace_), share(new_trace_));
  if (tokens_.size() > kTracedTokens) out += fmt::format(" (of the first {} tokens)", kTracedTokens);
  return out + "; times are those of a traced run\n";
}

std::string RunReport::short_text() const {
  return fmt::format("{} prompt tokens in {} ({}/s), {} new in {} ({}/s), stop: {}", prompt_tokens_,
                     format_seconds(prompt_seconds()), format_rate(prompt_rate()), tokens_.size(),
                     format_seconds(new_seconds()), format_rate(new_rate()), stop_reason_);
}

std::string RunReport::text() const {
  const ModelInfo& info = loaded_.model.info();
  const StepStats stats = loaded_.model.stats();
  std::string out = fmt::format(
      "model      {}, weights {}, loaded in {}\n"
      "device     {} ({}), {}kernels {}, profile {}, activations {}{}\n"
      "prompt     {} tokens in {}, {} tokens/s\n"
      "new        {} tokens, {} after the first, {} tokens/s\n"
      "stop       {}\n"
      "seed       {}\n"
      "steps      {} ({} ahead, {} rows taken back) with {} launches, {} arena allocations inside\n",
      info.architecture, weights_text(info), format_seconds(loaded_.seconds),
      info.backend, info.device, info.threads > 0 ? fmt::format("{} threads, ", info.threads) : "",
      info.kernels, info.profile, info.activations, info.kv_cache_dtype == "fp8" ? ", keys and values in fp8" : "", prompt_tokens_,
      format_seconds(prompt_seconds()), format_rate(prompt_rate()), tokens_.size(),
      format_seconds(new_seconds()), format_rate(new_rate()), stop_reason_, how_.seed, stats.steps,
      stats.ahead_steps, stats.taken_back_rows, stats.launches, stats.allocations);
  if (info.backend != "cpu") {
    out += fmt::format("bus        {} to the device, {} back\n",
                       format_bytes(stats.host_to_device_bytes),
                       format_bytes(stats.device_to_host_bytes));
  }
  if (tokens_.size() > 0) out += fmt::format("first      token after {}\n", format_seconds(prompt_seconds()));
  out += busy_text();
  for (const auto& [op, kernel] : stats.kernels)
    out += fmt::format("kernel     {}: {}\n", op, kernel);
  return out;
}

}  // namespace nibble::tool
