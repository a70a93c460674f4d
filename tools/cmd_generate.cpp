// cmd_generate.cpp: `nibble generate`: continues a text.
#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "core/base/json.h"
#include "tools/args.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"
#include "tools/prompt.h"
#include "tools/run_report.h"
#include "tools/signals.h"
#include "tools/units.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(The continuation alone goes to standard output, as it is made, and one newline at its end;
--echo puts the prompt before it. Everything else goes to standard error.
--stats looks at what the device does meanwhile, which makes the run a little slower: time to the first token, rates,
launches, bytes over the bus, and the share of the time in which the device was busy, of the prompt's steps and of the
later ones apart (each from the first step's start to the last one's end). A device that cannot be traced says why.
--json then has them too.
One final newline of a file or of standard input is not part of the prompt.

Examples:
  nibble generate models/qwen -p "The capital of France is" -n 32
  nibble generate models/qwen --chat -p "Why is the sky blue?" --temperature 0.7 --seed 1
  nibble generate models/qwen -f story.txt --stop $'\n\n' --stats
  echo "1, 2, 3," | nibble generate models/qwen --json)";

class Generate final : public Command {
 public:
  explicit Generate(CLI::App& root) : Command(root, "generate", "continue a text", kFooter) {
    model_.add_path(app());
    text_.add(app(), "the text to continue (default: standard input)");
    prompt_.add(app());
    app().add_flag("--echo", echo_, "print the prompt before the continuation")->group("Text");
    sampling_.add(app());
    app()
        .add_flag("--json", json_, "one JSON object at the end instead of a stream of text")
        ->group("Output");
    app()
        .add_flag("--stats", stats_, "tokens, times, busy share of the device and kernels on stderr at the end; traces the run")
        ->group("Output");
    model_.add_device(app());
    model_.add_sizes(app());
    model_.output.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(model_.output.verbosity());
    prompt_.check();
    const std::string typed = text_.read(console, /*strip_newline=*/true);
    const Loaded loaded = load_model(console, model_);
    const Model& model = loaded.model;
    const Tokenizer& tokenizer = tokenizer_of(model);

    const std::string prompt = prompt_.chat ? prompt_.render(model, typed) : typed;
    // A template writes its own special tokens.
    const std::vector<std::int32_t> ids = tokenizer.encode(prompt, /*add_special=*/!prompt_.chat);
    if (ids.empty())
      throw usage_error("expected a prompt of at least one token, found an empty text");

    const Sampling sampling = sampling_.sampling();
    RunReport report(loaded, sampling);
    Session session = model.new_session();
    std::string text;
    bool full = false;
    if (echo_ && !json_) console.out(prompt);
    {
      if (stats_) report.trace();
      report.start();
      TokenStream stream = session.generate(ids, sampling);
      Piece piece;
      while (!interrupted() && stream.next(piece)) {
        report.piece(piece);
        if (json_) {
          text += piece.text;
        } else if (!piece.text.empty()) {
          console.out(piece.text);
        }
      }
      report.end(stream, interrupted());
      full = stream.stop_reason() == StopReason::context;
    }
    if (json_) {
      Json::Object out;
      if (echo_) out.emplace_back("prompt", prompt);
      out.emplace_back("text", text);
      for (auto& member : report.json()) out.push_back(std::move(member));
      if (stats_) out.emplace_back("stats", report.stats_json());
      console.out(Json(std::move(out)).dump() + "\n");
    } else {
      console.out("\n");
    }
    if (full) {
      console.note(fmt::format("the answer ends because the context is full ({} tokens): a larger "
                               "--kv-tokens holds more, up to the model's {} positions",
                               session.tokens().size(), model.info().max_positions));
    }
    if (stats_) console.err(report.text());
    return interrupted() ? kInterrupted : kOk;
  }

 private:
  ModelArgs model_;
  TextArgs text_;
  PromptArgs prompt_;
  SamplingArgs sampling_;
  bool echo_ = false, json_ = false, stats_ = false;
};

}  // namespace

std::unique_ptr<Command> make_generate(CLI::App& root) {
  return std::make_unique<Generate>(root);
}

}  // namespace nibble::tool
