// cmd_tokenize.cpp: `nibble tokenize`: text to token ids and back.
#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "tools/args.h"
#include "tools/command.h"
#include "tools/failure.h"
#include "tools/load.h"

namespace nibble::tool {
namespace {

constexpr const char* kFooter =
    R"(Prints one token a line: its id and its text as JSON writes it. The text is taken byte for byte, a
final newline too. --decode prints text exactly, without a newline of its own.
Only tokenizer.json (or the metadata of a GGUF file) is read: the weights may be absent.

Examples:
  nibble tokenize models/qwen -p "Hello, world"
  nibble tokenize models/qwen -f story.txt --ids | nibble tokenize models/qwen --decode
  nibble tokenize models/qwen --decode 9707 11 1879)";

std::int32_t parse_id(const std::string& text) {
  std::int32_t id = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), id);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size() || id < 0) {
    throw usage_error("--decode: expected token ids (whole numbers), found " + in_quotes(text));
  }
  return id;
}

class Tokenize final : public Command {
 public:
  explicit Tokenize(CLI::App& root)
      : Command(root, "tokenize", "text to token ids and back", kFooter) {
    model_.add_path(app());
    text_.add(app(), "the text (default: standard input)");
    decode_ = app()
                  .add_option("--decode", decode_ids_,
                              "ids to turn into text (none: read from the input)")
                  ->type_name("ID...")
                  ->expected(0, -1)
                  ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    app().add_flag("--no-special", no_special_,
                   "add no special tokens (a BOS); with --decode, leave them out of the text");
    app().add_flag("--ids", ids_, "only the ids, in one line");
    app().add_flag("--json", json_, "one JSON object");
    model_.output.add(app());
  }

  int run(Console& console) override {
    console.set_verbosity(model_.output.verbosity());
    const bool decoding = decode_->count() > 0;
    if (decoding && ids_) throw usage_error("expected --decode or --ids, found both");
    if (ids_ && json_) throw usage_error("expected --ids or --json, found both");
    std::vector<std::int32_t> ids;
    std::string text;
    if (decoding) {
      ids = read_ids(console);
    } else {
      text = text_.read(console, /*strip_newline=*/false);
    }
    std::optional<Tokenizer> tokenizer;
    as_load_failure([&] { tokenizer.emplace(Tokenizer::load(model_path(model_.path))); });

    if (decoding) {
      text = tokenizer->decode(ids, no_special_);
      if (!json_) {
        console.out(text);
        return kOk;
      }
    } else {
      ids = tokenizer->encode(text, !no_special_);
    }
    console.out(json_  ? json_text(*tokenizer, text, ids)
                : ids_ ? ids_text(ids)
                       : lines(*tokenizer, ids));
    return kOk;
  }

 private:
  std::vector<std::int32_t> read_ids(Console& console) const {
    std::vector<std::string> words;
    for (const std::string& word : decode_ids_) {
      if (!word.empty()) words.push_back(word);
    }
    if (words.empty()) {
      const std::string typed = text_.read(console, /*strip_newline=*/true);
      constexpr const char* kSpace = " \t\r\n,[]";
      for (std::size_t at = typed.find_first_not_of(kSpace); at != std::string::npos;) {
        const std::size_t end = std::min(typed.find_first_of(kSpace, at), typed.size());
        words.push_back(typed.substr(at, end - at));
        at = typed.find_first_not_of(kSpace, end);
      }
    } else if (text_.text || !text_.file.empty()) {
      throw usage_error("--decode: expected ids or a text with ids, found both");
    }
    std::vector<std::int32_t> ids;
    for (const std::string& word : words) ids.push_back(parse_id(word));
    return ids;
  }

  static std::string piece(const Tokenizer& tokenizer, std::int32_t id) {
    return tokenizer.decode(std::span(&id, 1));
  }

  static std::string lines(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
    std::string out;
    for (const std::int32_t id : ids)
      out += fmt::format("{:>7}  {}\n", id, Json(piece(tokenizer, id)).dump());
    return out;
  }

  static std::string ids_text(const std::vector<std::int32_t>& ids) {
    return fmt::format("{}\n", fmt::join(ids, " "));
  }

  static std::string json_text(const Tokenizer& tokenizer, const std::string& text,
                               const std::vector<std::int32_t>& ids) {
    Json::Array pieces;
    for (const std::int32_t id : ids) pieces.emplace_back(piece(tokenizer, id));
    Json::Object out;
    out.emplace_back("count", static_cast<std::int64_t>(ids.size()));
    out.emplace_back("ids", Json::Array(ids.begin(), ids.end()));
    out.emplace_back("pieces", std::move(pieces));
    out.emplace_back("text", text);
    return Json(std::move(out)).dump() + "\n";
  }

  ModelArgs model_;
  TextArgs text_;
  CLI::Option* decode_ = nullptr;
  std::vector<std::string> decode_ids_;
  bool no_special_ = false, ids_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize(CLI::App& root) {
  return std::make_unique<Tokenize>(root);
}

}  // namespace nibble::tool
