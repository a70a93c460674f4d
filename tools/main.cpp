// main.cpp: the `nibble` command: picks the subcommand, turns what goes wrong into an exit code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <new>
#include <vector>

#include "core/base/quote.h"
#include "nibble/error.h"
#include "nibble/version.h"
#include "tools/command.h"
#include "tools/console.h"
#include "tools/failure.h"
#include "tools/signals.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter = R"(Examples:
  nibble generate models/qwen -p "The capital of France is" -n 32
  nibble chat models/qwen --system "Answer in one sentence."
  nibble inspect models/qwen --memory
  nibble bench --synthetic qwen3_5-27b --layers 4 -p 128 -n 16 -d 0 -b 1
  nibble COMMAND --help        all options of a command, with examples)";

constexpr const char* kEnvironment =
    R"(Environment: NO_COLOR=1 turns colours off; they are only used on a terminal.)";

// CLI11's own texts hold the argument as it is; those of our checks are below this.
constexpr std::size_t kLongestComplaint = 500;

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// " (did you mean --top-k?)" or nothing.
std::string suggestion(const std::string& found, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, found.size() / 3) + 1;
  if (found.size() > 64) return best;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(found, name);
    if (distance < least) {
      least = distance;
      best = name;
    }
  }
  return best.empty() ? best : fmt::format(" (did you mean {}?)", best);
}

[[noreturn]] void refuse_extra(const CLI::App& command, const std::string& extra) {
  const std::string see = fmt::format("; see nibble {} --help", command.get_name());
  if (extra.size() > 1 && extra[0] == '-') {
    const std::string flag = extra.substr(0, extra.find('='));
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
      for (const std::string& name : option->get_snames()) known.push_back("-" + name);
    }
    throw usage_error(fmt::format("{}: expected an option of this command, found {}{}{}",
                                  command.get_name(), in_quotes(flag), suggestion(flag, known),
                                  see));
  }
  throw usage_error(
      fmt::format("{}: expected no further argument, found {} (text is given with -p){}",
                  command.get_name(), in_quotes(extra), see));
}

// CLI11 takes the next argument as the value of `--prompt=`, so an empty value becomes an argument of
// its own. What follows an option that takes a value is that value, whatever it looks like. Last
// argument first, as CLI11 wants them.
std::vector<std::string> arguments(const CLI::App& root, int argc, char** argv) {
  const auto all = root.get_subcommands([](const CLI::App*) { return true; });
  const CLI::App* command = nullptr;
  const auto takes_value = [&](const std::string& flag) {
    const CLI::Option* option = command == nullptr ? nullptr : command->get_option_no_throw(flag);
    return option != nullptr && option->get_items_expected_max() > 0;
  };
  std::vector<std::string> out;
  bool is_value = false;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text == "--" && !is_value) {
      out.insert(out.end(), argv + i, argv + argc);
      break;
    }
    for (const CLI::App* each : all) {
      if (command == nullptr && each->get_name() == text) command = each;
    }
    if (command != nullptr && !is_value) {  // `bench ops` has options of its own
      for (const CLI::App* each : command->get_subcommands([](const CLI::App*) { return true; })) {
        if (each->get_name() == text) command = each;
      }
    }
    const bool option = !is_value && text.size() > 1 && text[0] == '-';
    is_value = option && takes_value(text);
    if (option && text.starts_with("--") && text.back() == '=' &&
        takes_value(text.substr(0, text.size() - 1))) {
      out.push_back(text.substr(0, text.size() - 1));
      out.emplace_back();
    } else {
      out.push_back(text);
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

int dispatch(Console& console, int argc, char** argv) {
  CLI::App root("nibble: runs 4-bit hybrid language models", "nibble");
  root.footer(fmt::format("{}\n\n{}\n\n{}", kFooter, kExitCodes, kEnvironment));
  root.get_formatter()->column_width(36);
  root.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  root.set_help_flag("-h,--help", "this text");
  bool version_asked = false;
  root.add_flag("--version", version_asked, "the version of nibble");
  root.require_subcommand(0, 1);
  root.allow_extras();  // we name what was found ourselves

  std::vector<std::unique_ptr<Command>> commands;
  for (const auto make :
       {make_generate, make_chat, make_inspect, make_bench, make_tokenize, make_perplexity,
        make_parity}) {
    commands.push_back(make(root));
    commands.back()->app().allow_extras();
  }

  try {
    root.parse(arguments(root, argc, argv));
  } catch (const CLI::CallForHelp&) {
    console.out(root.help());
    return kOk;
  } catch (const CLI::ParseError& e) {
    std::string name;
    for (auto chosen = root.get_subcommands(); !chosen.empty(); chosen = chosen.back()->get_subcommands()) {
      name += (name.empty() ? "" : " ") + chosen.back()->get_name();
    }
    throw usage_error(fmt::format("{}{}; see nibble {}--help", name.empty() ? "" : name + ": ",
                                  shortened(e.what(), kLongestComplaint),
                                  name.empty() ? "" : name + " "));
  }
  if (version_asked) {
    console.out(fmt::format("nibble {}\n", version()));
    return kOk;
  }
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command->app().get_name());
  for (const auto& command : commands) {
    if (!command->app().parsed()) continue;
    // What precedes the command lands in the root's list.
    for (const CLI::App* part : {&root, &command->app()}) {
      if (const auto extra = part->remaining(); !extra.empty())
        refuse_extra(command->app(), extra.front());
    }
    return command->run(console);
  }
  const auto extra = root.remaining();
  const std::string found = extra.empty() ? "nothing" : in_quotes(extra.front());
  throw usage_error(fmt::format("expected a command ({}), found {}{}; see nibble --help",
                                fmt::join(names, ", "), found,
                                extra.empty() ? "" : suggestion(extra.front(), names)));
}

ExitCode exit_code(ErrorCode code) {
  return code == ErrorCode::out_of_memory ? kNoMemory
         : code == ErrorCode::cancelled   ? kInterrupted
         : code == ErrorCode::no_device   ? kUsage
                                          : kFailed;
}

int guarded(Console& console, int argc, char** argv) {
  try {
    return dispatch(console, argc, argv);
  } catch (const OutputClosed&) {
    return kOk;
  } catch (const Interrupted&) {
    return kInterrupted;
  } catch (const Failure& e) {
    console.error(e.what());
    return e.code();
  } catch (const Error& e) {
    console.error(e.what());
    return exit_code(e.code());
  } catch (const std::bad_alloc&) {
    console.error("out of memory");
    return kNoMemory;
  } catch (const std::exception& e) {
    console.error(e.what());
    return kFailed;
  }
}

}  // namespace
}  // namespace nibble::tool

int main(int argc, char** argv) {
  nibble::tool::prepare_process();
  nibble::tool::Console console;
  return nibble::tool::guarded(console, argc, argv);
}
