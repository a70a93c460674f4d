// cmd_chat.cpp: `nibble chat`: a conversation on one session.
#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "core/base/quote.h"
#include "core/text/utf8_repair.h"
#include "nibble/error.h"
#include "tools/args.h"
#include "tools/command.h"
#include "tools/conversation.h"
#include "tools/failure.h"
#include "tools/line_reader.h"
#include "tools/load.h"
#include "tools/prompt.h"
#include "tools/run_report.h"
#include "tools/signals.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(One line is one message; a backslash at the end of a line continues it. The state is kept between
turns: only what is new is read. Answers go to standard output, one after the other, so that a pipe
works as well as a terminal.

In the conversation:
  /help          this list
  /system TEXT   set the system message (empty: show it); /reset afterwards to start anew with it
  /reset         forget the conversation
  /stats         tokens and times of the last answer
  /exit          leave (as Ctrl-D)
  //TEXT         send a message that starts with a slash
Ctrl-C stops the answer; a second one leaves.

Examples:
  nibble chat models/qwen --system "Answer in one sentence."
  printf 'What is the capital of Japan?\nAnd of Italy?\n' | nibble chat models/qwen)";

constexpr const char* kCommands =
    "/help  /system TEXT  /reset  /stats  /exit  //TEXT sends a slash; \\ at a line's end "
    "continues it\n";

class Chat final : public Command {
 public:
  explicit Chat(CLI::App& root) : Command(root, "chat", "talk with a model", kFooter) {
    model_.add_path(app());
    prompt_.add_template(app());
    sampling_.add(app());
    app()
        .add_flag("--stats", stats_, "a line of times after each answer, on stderr")
        ->group("Output");
    model_.add_device(app());
    model_.add_sizes(app());
    model_.output.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(model_.output.verbosity());
    prompt_.chat = true;
    prompt_.check();
    const Loaded loaded = load_model(console, model_);
    if (!loaded.model.has_chat_template()) {
      throw Failure(kBadModel,
                    fmt::format("model {}: expected a chat template, found none; nibble generate "
                                "continues a text without one",
                                in_quotes(model_.path, kShownPath)));
    }
    tokenizer_of(loaded.model);
    Conversation talk(loaded.model, prompt_.system, prompt_.template_args);
    const bool terminal = isatty(STDIN_FILENO) == 1 && console.out_is_terminal();
    if (terminal) console.note("/help lists the commands, Ctrl-D leaves");

    LineReader reader;
    std::string line;
    for (;;) {
      if (terminal) console.out(console.bold("> "));
      reset_interrupts();  // one at the prompt leaves
      const LineReader::Result read = reader.read(line);
      if (read == LineReader::Result::interrupted) throw Interrupted{};
      if (read == LineReader::Result::end) {
        if (terminal) console.out("\n");
        return kOk;
      }
      if (line.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (const auto at = utf8_error(line)) {
        const std::string problem = fmt::format(
            "standard input: expected UTF-8, found a message that is none at byte {}", *at);
        if (!terminal) throw Failure(kFailed, problem);
        console.error(problem + "; the conversation is as it was");
        continue;
      }
      if (line[0] == '/' && !line.starts_with("//")) {
        if (!obey(console, talk, line)) return kOk;
        continue;
      }
      if (line[0] == '/') line.erase(0, 1);
      try {
        answer(console, loaded, talk, line, terminal);
      } catch (const Error& e) {
        // A person can go on after a message that does not fit; a script cannot see that.
        if (!terminal || e.code() != ErrorCode::context_full) throw;
        console.error(std::string(e.what()) + "; /reset forgets the conversation");
      }
    }
  }

 private:
  // False: leave.
  bool obey(Console& console, Conversation& talk, const std::string& line) {
    const std::size_t space = line.find_first_of(" \t\n");
    const std::string name = line.substr(0, space);
    const std::size_t at =
        space == std::string::npos ? space : line.find_first_not_of(" \t\n", space);
    const std::string rest = at == std::string::npos ? "" : line.substr(at);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      console.err(kCommands);
    } else if (name == "/reset") {
      talk.reset();
      last_.reset();
      console.note("the conversation is forgotten");
    } else if (name == "/system") {
      if (!rest.empty()) talk.set_system(rest);
      console.note(talk.system().empty() ? "no system message"
                                         : "system message: " + talk.system());
    } else if (name == "/stats") {
      console.err(fmt::format("{} turns, {} tokens held, room for {}{}\n", talk.turns(),
                              talk.tokens(), talk.room(), last_ ? "; last answer: " + *last_ : ""));
    } else {
      console.error(
          fmt::format("expected a command of /help, found {} (a message that starts with / is "
                      "written with //)",
                      in_quotes(name)));
    }
    return true;
  }

  void answer(Console& console, const Loaded& loaded, Conversation& talk, const std::string& user,
              bool terminal) {
    const Sampling how = sampling_.sampling();
    RunReport report(loaded, how);
    report.start();
    std::string text;
    std::int64_t held_before = 0;
    {
      Conversation::Turn turn = talk.ask(user, how);
      if (!turn.rewound.empty()) console.detail(turn.rewound);
      console.detail(fmt::format("turn {}: {} tokens kept, {} to read", talk.turns() + 1, turn.kept,
                                 turn.fed));
      held_before = turn.kept;
      Piece piece;
      while (!interrupted() && turn.stream.next(piece)) {
        report.piece(piece);
        text += piece.text;
        if (!piece.text.empty()) console.out(piece.text);
      }
      report.end(turn.stream, interrupted());
      if (turn.stream.stop_reason() == StopReason::context) {
        console.note("the context is full: /reset, or a larger --kv-tokens");
      }
    }
    console.out("\n");
    talk.answered(std::move(text));
    last_ = fmt::format("{} kept, {}", held_before, report.short_text());
    if (stats_) console.err(console.dim_err(*last_) + "\n");
    if (interrupted() && !terminal) throw Interrupted{};
    if (interrupted()) console.note("stopped; Ctrl-C again leaves");
  }

  ModelArgs model_;
  PromptArgs prompt_;
  SamplingArgs sampling_;
  bool stats_ = false;
  std::optional<std::string> last_;
};

}  // namespace

std::unique_ptr<Command> make_chat(CLI::App& root) {
  return std::make_unique<Chat>(root);
}

}  // namespace nibble::tool
