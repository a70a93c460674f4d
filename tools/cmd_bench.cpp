// cmd_bench.cpp: `nibble bench`: prefill and decode speed of a checkpoint or of a synthetic shape.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "core/base/quote.h"
#include "nibble/model.h"
#include "nibble/op_bench.h"
#include "tools/args.h"
#include "tools/bench_plan.h"
#include "tools/bench_report.h"
#include "tools/bench_trace.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(Rows: ppN reads a prompt of N tokens (until its first token); tgN generates N tokens, after @ dD
tokens that are held; batch: sequences that decode together. tokens/s is of all sequences, mean ±
standard deviation over the repetitions, after one warm-up; ms is one prompt or one decode step.
Ctrl-C ends it with the rows that are finished, after the step that is running (a prompt is one).
Beside them a roof, the speed that the device's measured rates allow, and the part of it that a row reaches. Rates
are medians of samples before the rows and after each. A CPU: read bandwidth and multiply-adds (float32; in profile
bf16 also of the processor's unit for it); decode counts the packed weight bytes of a step, prefill the linear layers.
A card: copies on the device (read + written) and a large product of cuBLAS in bf16, in mode a8 also one of cuBLASLt in
FP8. A row takes at least the longer of two times: bytes (packed weights of each step, keys and values that its rows see,
the delta net's state read and written) over copies; operations (linear layers, the head for rows that are sampled,
attention with a prompt's counted at half) over products.
--trace adds for each row: the share of the time from the first step's start to the last one's end in which the device
was busy, kernels a step, the longest stall, bytes to the device and back, and the busy time by class of op; csv has
them as columns, json as an object.
A row takes memory for its weights and for batch x (depth + tokens) positions of KV cache. Rows that the device has no
room for are refused before anything is measured, by name and with both sizes; --fit leaves them out instead.
`nibble bench ops` measures single ops on a card, beside cuBLAS; see nibble bench ops --help.

Examples:
  nibble bench models/qwen
  nibble bench models/qwen -p 512 -n 64 -d 0,4096 -b 1,8 -r 3 --output csv
  nibble bench --synthetic qwen3_5-27b --layers 4 -p 128 -n 16 -d 0 -b 1
  nibble bench --synthetic qwen3_5-27b --mix mlp-nvfp4-rest-fp8 --device cuda -d 0,16384,131072 -b 1,8,64 --fit
  nibble bench ops --op linear --device cuda --formats nvfp4 -t 1,8,64,512)";

class Bench final : public Command {
 public:
  explicit Bench(CLI::App& root) : Command(root, "bench", "prefill and decode speed", kFooter) {
    model_.add_path(app());
    app()
        .add_option("--synthetic", shape_,
                    fmt::format("random weights in the shape of a model: {}",
                                fmt::join(Model::synthetic_shapes(), ", ")))
        ->type_name("SHAPE")
        ->group("Model");
    layers_option_ =
        add_int(app(), "--layers", what_.layers, 0, 1024, "layers of the shape; 0: its own number");
    layers_option_->group("Model");
    mix_option_ = app()
                      .add_option("--mix", what_.mix,
                                  "formats of the shape: nvfp4, mlp-nvfp4-rest-fp8, bf16, f32")
                      ->type_name("NAME")
                      ->capture_default_str()
                      ->group("Model");
    add_list(app(), "-p,--prefill", prefill_, "prompt lengths; 0: none")->group("Rows");
    add_list(app(), "-n,--decode", decode_, "tokens to generate; 0: none")->group("Rows");
    add_list(app(), "-d,--depth", depth_, "tokens held before decoding")->group("Rows");
    add_list(app(), "-b,--batch", batch_, "sequences that decode together")->group("Rows");
    repetitions_option_ =
        add_int(app(), "-r,--repetitions", repetitions_.most, 1, 10000,
                "measured runs of each row (not given: fewer where they take long)");
    repetitions_option_->group("Rows");
    seconds_option_ = add_int(app(), "--row-seconds", seconds_, 0, 1 << 20,
                              "no repetition of a row begins after so long (with -r: no limit)");
    seconds_option_->group("Rows");
    app().add_flag("--no-roof", no_roof_, "do not measure the device's roofs")->group("Rows");
    app().add_flag("--fit", fit_, "leave out rows that the device has no memory for, and say which")->group("Rows");
    add_choice(app(), "-o,--output", output_, {"md", "json", "csv"}, "format of the result")
        ->group("Output");
    not_empty(app().add_option("--trace", trace_,
                               "runs each row once more and writes what the device did in its steps (Chrome's "
                               "format); all outputs get a summary"))
        ->type_name("FILE")
        ->group("Output");
    model_.add_device(app());
    model_.add_step_tokens(app());
    model_.output.add(app());
    ops_ = make_bench_ops(app());
  }

  int run(Console& console) override {
    if (ops_->app().parsed()) {
      for (const CLI::Option* option : app().get_options()) {
        if (option->count() == 0) continue;
        throw usage_error(fmt::format("bench ops: expected its options behind it, found {} before it",
                                      in_quotes(option->get_name())));
      }
      return ops_->run(console);
    }
    console.set_verbosity(model_.output.verbosity());
    check_model();
    std::vector<BenchCase> cases = plan();
    if (!trace_.empty()) expect_writable(trace_);  // refused now, not after the measurements
    BenchReport report;
    if (fit_) leave_out(console, cases, report);
    const Loaded loaded = load(console, cases);
    const ModelInfo& info = loaded.model.info();
    for (const BenchCase& c : cases) {
      if (c.positions() <= info.max_positions) continue;
      throw usage_error(fmt::format("bench: {} needs {} positions: expected at most the model's {}",
                                    c.name(), c.positions(), info.max_positions));
    }

    report.model = shape_.empty() ? model_path(model_.path).string() : shape_;
    if (!shape_.empty()) report.mix = what_.mix;
    report.info = info;
    report.step_tokens = model_.step_tokens;
    report.kv_position_bytes = kv_position_bytes(info, sized_for(model_.load_options(), cases));
    const bool bounded = repetitions_option_->count() == 0 || seconds_option_->count() > 0;
    repetitions_.seconds = bounded ? seconds_ : std::numeric_limits<double>::infinity();
    report.repetitions = repetitions_.most;
    report.has_roof = !no_roof_ && info.backend == "cpu";
    has_card_roofs_ = !no_roof_ && info.backend != "cpu";
    if (!no_roof_) console.progress("roofs", 0, report.has_roof ? "reads and multiply-adds" : "copies and products");
    sample_roofs(report);
    const bool complete = measure(console, loaded.model, cases, report);
    if (report.has_roof) report.roof = median_roof(roofs_);
    if (has_card_roofs_) report.card = median_roofs(card_roofs_);
    report.roof_samples = static_cast<int>(std::max(roofs_.size(), card_roofs_.size()));
    if (report.results.empty()) throw Interrupted{};
    console.out(output_ == "md"    ? report.markdown()
                : output_ == "csv" ? report.csv()
                                   : report.json());
    if (!traced_.empty()) {
      write_trace(trace_, traced_);
      if (output_ == "md") console.out("\n" + trace_text(traced_));
    }
    return complete ? kOk : kInterrupted;
  }

 private:
  void sample_roofs(const BenchReport& report) {
    if (report.has_roof) roofs_.push_back(measure_roof(report.info.threads, report.info.kernels));
    if (!has_card_roofs_) return;
    const RoofOptions how{runs_fp8(report.info)};
    as_load_failure([&] { card_roofs_.push_back(measure_roofs(model_.device(), how)); }, "measuring roofs");
  }

  // False when Ctrl-C ended it before the last row: what was measured until then is not lost.
  bool measure(Console& console, const Model& model, const std::vector<BenchCase>& cases,
               BenchReport& report) {
    for (const BenchCase& c : cases) {
      console.progress(
          "bench", static_cast<double>(report.results.size()) / static_cast<double>(cases.size()),
          fmt::format("{}, batch {}", c.name(), c.batch));
      try {
        Trace trace;
        report.results.push_back(run_case(
            model, c, repetitions_, [] { return !interrupted(); },
            trace_.empty() ? nullptr : &trace));
        if (!trace_.empty()) traced_.push_back({c, std::move(trace), report.results.back().traced.value()});
        sample_roofs(report);
      } catch (const Interrupted&) {
        console.note(fmt::format("interrupted in {} batch {}: {} of {} rows are finished", c.name(),
                                 c.batch, report.results.size(), cases.size()));
        return false;
      }
      const BenchResult& r = report.results.back();
      console.detail(fmt::format("{} batch {}: {} tokens/s", r.what.name(), r.what.batch,
                                 format_rate(r.mean)));
    }
    return true;
  }

  void check_model() const {
    if (shape_.empty()) {
      if (model_.path.empty())
        throw usage_error("bench: expected MODEL or --synthetic SHAPE, found neither");
      if (layers_option_->count() > 0 || mix_option_->count() > 0) {
        throw usage_error(
            "bench: --layers and --mix: expected --synthetic beside them, found MODEL");
      }
      return;
    }
    if (!model_.path.empty()) throw usage_error("bench: expected MODEL or --synthetic, found both");
    const auto shapes = Model::synthetic_shapes();
    if (std::find(shapes.begin(), shapes.end(), shape_) == shapes.end()) {
      throw usage_error(fmt::format("--synthetic: expected one of {}, found {}",
                                    fmt::join(shapes, ", "), in_quotes(shape_)));
    }
  }

  std::vector<BenchCase> plan() const {
    constexpr std::int64_t kMost = 1 << 24;
    std::vector<BenchCase> cases;
    for (const std::int64_t tokens : parse_list("--prefill", prefill_, 0, kMost)) {
      if (tokens > 0) cases.push_back({BenchCase::Kind::prefill, tokens, 0, 1});
    }
    const auto depths = parse_list("--depth", depth_, 0, kMost);
    const auto batches = parse_list("--batch", batch_, 1, 4096);
    for (const std::int64_t tokens : parse_list("--decode", decode_, 0, kMost)) {
      if (tokens == 0) continue;
      for (const std::int64_t depth : depths) {
        for (const std::int64_t batch : batches) {
          cases.push_back({BenchCase::Kind::decode, tokens, depth, static_cast<int>(batch)});
        }
      }
    }
    for (const BenchCase& c : cases) {
      const std::int64_t kv = sized_for({}, {c}).kv_tokens;
      if (kv <= limits::kv_tokens) continue;
      throw usage_error(fmt::format("bench: {} batch {} needs {} positions of KV cache: expected at most {}", c.name(), c.batch, kv,
                                    limits::kv_tokens));
    }
    if (cases.empty()) throw usage_error("bench: expected at least one row, found -p 0 and -n 0");
    return cases;
  }

  // What does not fit is named by its row: the library knows its own options alone.
  Loaded load(Console& console, const std::vector<BenchCase>& cases) {
    const LoadOptions how = sized_for(model_.load_options(), cases);
    try {
      if (shape_.empty()) {
        const auto folder = model_path(model_.path);
        return load_with(console, how, [&](const LoadOptions& o) {
          return Model::load(folder, model_.device(), o);
        });
      }
      return load_with(console, how, [&](const LoadOptions& o) {
        return Model::synthetic(synthetic(), model_.device(), o);
      });
    } catch (const Failure& e) {
      if (e.code() != kNoMemory) throw;
      const std::vector<Misfit> rows = rows_too_large(cases);
      if (rows.empty()) {
        throw Failure(kNoMemory, std::string(e.what()) +
                                     "; bench takes kv_tokens and max_sequences from --prefill, "
                                     "--decode, --depth and --batch");
      }
      std::string text = fmt::format("bench: {} of {} rows do not fit", rows.size(), cases.size());
      for (const Misfit& row : rows) text += "; " + row.text;
      throw Failure(kNoMemory, text + "; --fit leaves such rows out (or other -p, -n, -d, -b)");
    }
  }

  SyntheticOptions synthetic() const {
    SyntheticOptions what = what_;
    what.shape = shape_;
    return what;
  }

  std::vector<Misfit> rows_too_large(const std::vector<BenchCase>& cases) const {
    std::vector<Misfit> rows;
    as_load_failure([&] {
      rows = misfits(model_.load_options(), cases, [&](const LoadOptions& how) {
        return shape_.empty() ? Model::inspect(model_path(model_.path), nullptr, model_.device(), how)
                              : Model::inspect(synthetic(), model_.device(), how);
      });
    }, "planning memory");
    return rows;
  }

  void leave_out(Console& console, std::vector<BenchCase>& cases, BenchReport& report) const {
    const std::vector<Misfit> rows = rows_too_large(cases);
    if (rows.size() == cases.size()) {
      throw Failure(kNoMemory, fmt::format("bench: expected at least one row that fits, found none; {}", rows.front().text));
    }
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
      cases.erase(cases.begin() + static_cast<std::ptrdiff_t>(row->row));
    }
    for (const Misfit& row : rows) {
      console.note("left out: " + row.text);
      report.left_out.push_back(row.text);
    }
  }

  std::unique_ptr<Command> ops_;
  ModelArgs model_;
  SyntheticOptions what_;
  CLI::Option *layers_option_ = nullptr, *mix_option_ = nullptr, *repetitions_option_ = nullptr,
              *seconds_option_ = nullptr;
  std::string shape_, prefill_ = "512,2048", decode_ = "128", depth_ = "0,1024", batch_ = "1,4",
                      output_ = "md";
  std::string trace_;
  std::vector<TracedRow> traced_;
  Repetitions repetitions_;
  int seconds_ = 10;
  bool no_roof_ = false, fit_ = false, has_card_roofs_ = false;
  std::vector<Roof> roofs_;  // before the rows and after each
  std::vector<DeviceRoofs> card_roofs_;
};

}  // namespace

std::unique_ptr<Command> make_bench(CLI::App& root) {
  return std::make_unique<Bench>(root);
}

}  // namespace nibble::tool
