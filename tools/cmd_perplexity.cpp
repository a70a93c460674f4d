// cmd_perplexity.cpp: `nibble perplexity`: how well a model predicts a text.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "tools/args.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(The text is cut into windows of --context tokens, one every --stride tokens; each window starts with
an empty state. A token counts once, in the first window that has it; the first token of the text has
nothing before it and does not count (nor, when stride = context, the first of each window).
perplexity = exp(mean of -log p). The ± is the standard error over the tokens that count.
--against DEVICE scores the text there too, with --against-activations, and prints how much higher (%) the first perplexity is
and of how many tokens the log-probability differs in any bit; keys and values there are what --against-kv-cache-dtype says.

Examples:
  nibble perplexity models/qwen -f wiki.test.txt
  nibble perplexity models/qwen -f wiki.test.txt --context 4096 --stride 2048 --json
  nibble perplexity models/qwen -f wiki.test.txt --device cuda --activations a8 --against cpu
  nibble perplexity models/qwen -f wiki.test.txt --device cuda --against cpu:mirror=sm90)";

// Mean and variance as values come (Welford).
class Moments {
 public:
  void add(double v) {
    ++count_;
    const double before = v - mean_;
    mean_ += before / static_cast<double>(count_);
    squares_ += before * (v - mean_);
  }
  std::int64_t count() const { return count_; }
  double mean() const { return mean_; }
  double standard_error() const {
    if (count_ < 2) return 0;
    const auto n = static_cast<double>(count_);
    return std::sqrt(squares_ / (n - 1) / n);
  }

 private:
  std::int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

struct Scored {
  Moments nll;
  std::vector<double> logs;  // of the tokens that count
  std::int64_t windows = 0;
};

// The same text elsewhere.
struct Compared {
  std::string device, activations, kv_cache_dtype;
  double perplexity = 0, percent = 0;  // how much higher the first one is
  std::int64_t differing = 0;          // tokens whose log-probability is not the same number
};

class Perplexity final : public Command {
 public:
  explicit Perplexity(CLI::App& root)
      : Command(root, "perplexity", "how well a model predicts a text", kFooter) {
    model_.add_path(app());
    text_.add(app(), "the text (default: standard input)");
    context_option_ = add_int64(app(), "--context", context_, 2, std::int64_t{1} << 31,
                                "tokens of a window (if not given: less where the model has fewer positions)");
    add_int64(app(), "--stride", stride_, 0, std::int64_t{1} << 31,
              "from one window to the next; 0: --context");
    app().add_flag("--json", json_, "one JSON object");
    against_option_ = not_empty(app().add_option("--against", against_, "a device that scores the text too, to compare with"))
                          ->type_name("DEVICE");
    against_activations_option_ = add_choice(app(), "--against-activations", against_activations_,
                                             {"a16", "declared", "a8"}, "activations there");
    against_kv_option_ = add_choice(app(), "--against-kv-cache-dtype", against_kv_, {"auto", "fp8"}, "keys and values there");
    model_.add_device(app());
    model_.add_step_tokens(app());
    model_.output.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(model_.output.verbosity());
    if (stride_ > context_) {
      throw usage_error(
          fmt::format("--stride: expected at most --context ({}), found {}", context_, stride_));
    }
    for (const CLI::Option* option : {against_activations_option_, against_kv_option_}) {
      if (option->count() == 0 || against_option_->count() > 0) continue;
      throw usage_error(fmt::format("{}: expected --against beside it, found none", option->get_name()));
    }
    if (against_option_->count() > 0) as_load_failure([&] { static_cast<void>(Device::parse(against_)); });  // refused now
    const std::string text = text_.read(console, /*strip_newline=*/false);
    if (context_option_->count() > 0) expect_context();  // before memory is asked for
    model_.kv_tokens = context_ + 1;
    std::vector<std::int32_t> ids;
    Scored scored;
    double seconds = 0;
    {
      const Loaded loaded = load_model(console, model_);
      const std::int64_t positions = loaded.model.info().max_positions;
      if (positions > 0) context_ = std::min(context_, positions);
      stride_ = stride_ > 0 ? std::min(stride_, context_) : context_;
      ids = tokenizer_of(loaded.model).encode(text);
      if (ids.size() < 2) {
        throw usage_error(fmt::format("expected a text of at least 2 tokens, found {}", ids.size()));
      }
      const auto start = std::chrono::steady_clock::now();
      scored = measure(console, loaded.model, ids);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    expect_finite(scored.nll);
    // Whether all was scored, not whether Ctrl-C came: it may come after the last window.
    const bool complete = counted_ == static_cast<std::int64_t>(ids.size());
    if (!complete) {
      console.error(fmt::format("interrupted: the result is of the first {} of {} tokens", counted_,
                                ids.size()));
    }
    std::optional<Compared> compared;
    if (complete && against_option_->count() > 0) compared = compare(console, ids, scored);
    report(console, ids.size(), scored, seconds, !complete, compared);
    return complete ? kOk : kInterrupted;
  }

 private:
  void expect_context() {
    ModelInfo info;
    as_load_failure([&] {
      info = Model::inspect(model_path(model_.path), nullptr, model_.device(), model_.load_options());
    });
    if (info.max_positions > 0 && context_ > info.max_positions) {
      throw usage_error(fmt::format("--context: expected at most the model's {} positions, found {}",
                                    info.max_positions, context_));
    }
  }

  static void expect_finite(const Moments& nll) {
    if (nll.count() == 0) throw Interrupted{};
    if (std::isfinite(nll.mean())) return;
    throw Failure(kFailed, fmt::format("perplexity: expected finite probabilities of the model, found a mean of {} over {} tokens",
                                       nll.mean(), nll.count()));
  }

  Compared compare(Console& console, const std::vector<std::int32_t>& ids, const Scored& first) {
    ModelArgs there;
    there.path = model_.path;
    there.on = against_;
    there.activations = against_activations_;
    there.kv_cache_dtype = against_kv_;
    there.step_tokens = model_.step_tokens;
    there.kv_tokens = model_.kv_tokens;
    const Loaded loaded = load_model(console, there);
    const Scored other = measure(console, loaded.model, ids);
    if (other.logs.size() != first.logs.size()) throw Interrupted{};
    expect_finite(other.nll);
    Compared c;
    c.device = against_;
    c.activations = against_activations_;
    c.kv_cache_dtype = against_kv_;
    c.perplexity = std::exp(other.nll.mean());
    c.percent = 100 * std::expm1(first.nll.mean() - other.nll.mean());
    for (std::size_t i = 0; i < first.logs.size(); ++i) c.differing += first.logs[i] != other.logs[i] ? 1 : 0;
    return c;
  }

  Scored measure(Console& console, const Model& model, const std::vector<std::int32_t>& ids) {
    const auto total = static_cast<std::int64_t>(ids.size());
    Session session = model.new_session();
    Scored scored;
    Moments& nll = scored.nll;
    counted_ = 1;
    auto said = std::chrono::steady_clock::now();
    for (std::int64_t begin = 0; counted_ < total && !interrupted(); begin += stride_) {
      const std::int64_t end = std::min(begin + context_, total);
      if (end - begin < 2) {
        counted_ = total;  // a last token alone has nothing before it
        break;
      }
      session.clear();
      const std::vector<double> logs = session.score(std::span(ids).subspan(
          static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
      for (std::int64_t t = std::max(counted_, begin + 1); t < end; ++t) {
        scored.logs.push_back(logs.at(static_cast<std::size_t>(t - begin - 1)));
        nll.add(-scored.logs.back());
      }
      counted_ = end;
      ++scored.windows;
      const double part = static_cast<double>(end) / static_cast<double>(total);
      const std::string so_far =
          fmt::format("{} of {} tokens, perplexity {:.4f}", end, total, std::exp(nll.mean()));
      console.progress("scoring", part, so_far);
      const auto now = std::chrono::steady_clock::now();
      if (!console.err_is_terminal() && now - said > std::chrono::seconds(10)) {
        console.note(so_far);
        said = now;
      }
    }
    console.clear_progress();
    return scored;
  }

  void report(Console& console, std::size_t tokens, const Scored& scored, double seconds, bool cut_short,
              const std::optional<Compared>& compared) {
    const Moments& nll = scored.nll;
    const std::int64_t windows = scored.windows;
    const double perplexity = std::exp(nll.mean());
    const double error = perplexity * nll.standard_error();
    if (json_) {
      Json::Object out;
      out.emplace_back("tokens", static_cast<std::uint64_t>(tokens));
      out.emplace_back("scored", nll.count());
      out.emplace_back("windows", windows);
      out.emplace_back("context", context_);
      out.emplace_back("stride", stride_);
      out.emplace_back("mean_nll", nll.mean());
      out.emplace_back("mean_nll_stderr", nll.standard_error());
      out.emplace_back("perplexity", perplexity);
      out.emplace_back("perplexity_stderr", error);
      out.emplace_back("seconds", seconds);
      out.emplace_back("interrupted", cut_short);
      if (compared) {
        out.emplace_back("against", Json::Object{{"device", compared->device},
                                                 {"activations", compared->activations},
                                                 {"kv_cache_dtype", compared->kv_cache_dtype},
                                                 {"perplexity", compared->perplexity},
                                                 {"percent", compared->percent},
                                                 {"differing_tokens", compared->differing}});
      }
      console.out(Json(std::move(out)).dump() + "\n");
      return;
    }
    console.out(fmt::format(
        "{}tokens      {} ({} scored in {} {} of {}, one every {})\n"
        "mean NLL    {:.6f} ± {:.6f} nats\n"
        "perplexity  {}\n"
        "time        {}, {} tokens/s\n",
        cut_short ? "interrupted before the end of the text\n" : "", tokens, nll.count(), windows,
        windows == 1 ? "window" : "windows", context_, stride_, nll.mean(), nll.standard_error(),
        console.bold(fmt::format("{:.4f} ± {:.4f}", perplexity, error)), format_seconds(seconds),
        format_rate(static_cast<double>(nll.count()) / seconds)));
    if (!compared) return;
    console.out(fmt::format("against     {:.4f} on {}, activations {}{}: {:+.4f} %, {}\n", compared->perplexity, compared->device,
                            compared->activations, compared->kv_cache_dtype == "fp8" ? ", keys and values in fp8" : "", compared->percent,
                            compared->differing == 0 ? "every token's log-probability the same"
                                                     : fmt::format("log-probabilities of {} of {} tokens differ", compared->differing,
                                                                   nll.count())));
  }

  ModelArgs model_;
  TextArgs text_;
  CLI::Option *context_option_ = nullptr, *against_option_ = nullptr, *against_activations_option_ = nullptr,
              *against_kv_option_ = nullptr;
  std::string against_, against_activations_ = "a16", against_kv_ = "auto";
  std::int64_t context_ = 2048, stride_ = 0;
  std::int64_t counted_ = 1;  // the tokens before it are done
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_perplexity(CLI::App& root) {
  return std::make_unique<Perplexity>(root);
}

}  // namespace nibble::tool
