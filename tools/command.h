// command.h: one subcommand of `nibble`.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "tools/console.h"
#include "tools/failure.h"

namespace nibble::tool {

class Command {
 public:
  virtual ~Command() = default;
  // Called once its options are parsed. Returns an exit code.
  virtual int run(Console& console) = 0;
  CLI::App& app() const { return *app_; }

 protected:
  Command(CLI::App& root, const char* name, const char* what, const std::string& footer)
      : app_(root.add_subcommand(name, what)) {
    app_->footer(footer + "\n\n" + kExitCodes);
  }

 private:
  CLI::App* app_;
};

// Each adds its subcommand to `root` (cmd_*.cpp).
std::unique_ptr<Command> make_generate(CLI::App& root);
std::unique_ptr<Command> make_chat(CLI::App& root);
std::unique_ptr<Command> make_inspect(CLI::App& root);
std::unique_ptr<Command> make_bench(CLI::App& root);
std::unique_ptr<Command> make_bench_ops(CLI::App& bench);  // `nibble bench ops`
std::unique_ptr<Command> make_tokenize(CLI::App& root);
std::unique_ptr<Command> make_perplexity(CLI::App& root);
std::unique_ptr<Command> make_parity(CLI::App& root);

}  // namespace nibble::tool
