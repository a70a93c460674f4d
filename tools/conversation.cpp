#include "tools/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "tools/prompt.h"

namespace nibble::tool {
namespace {

// A mark holds a copy of the recurrent state (150 MB for 27B). Templates that drop the reasoning of
// the turn before need the mark of that turn; two more allow for edits of the last messages.
constexpr std::size_t kMarks = 3;

}  // namespace

Conversation::Conversation(const Model& model, std::string system, std::string template_args)
    : model_(model),
      system_(std::move(system)),
      template_args_(std::move(template_args)),
      session_(model.new_session()) {}

bool Conversation::rest_after(std::int64_t held, const std::string& text,
                              const std::vector<std::int32_t>& ids,
                              std::vector<std::int32_t>& rest) const {
  const auto tokens = std::span(session_.tokens()).first(static_cast<std::size_t>(held));
  if (tokens.size() < ids.size() && std::equal(tokens.begin(), tokens.end(), ids.begin())) {
    rest.assign(ids.begin() + held, ids.end());
    return true;
  }
  const std::string spelled = model_.tokenizer().decode(tokens);
  if (spelled.size() >= text.size() || !text.starts_with(spelled)) return false;
  rest = model_.tokenizer().encode(std::string_view(text).substr(spelled.size()),
                                   /*add_special=*/false);
  return !rest.empty();
}

std::vector<std::int32_t> Conversation::align(const std::string& text, std::string& rewound) {
  const std::vector<std::int32_t> ids = model_.tokenizer().encode(text, /*add_special=*/false);
  std::vector<std::int32_t> rest;
  if (tokens() == 0 || rest_after(tokens(), text, ids, rest)) return tokens() == 0 ? ids : rest;

  const std::int64_t before = tokens();
  while (!marks_.empty()) {
    const Mark mark = marks_.back();
    if (mark.tokens() <= tokens() && rest_after(mark.tokens(), text, ids, rest)) {
      session_.rewind(mark);
      rewound = fmt::format("the template rewrote the history: back from token {} to {}", before,
                            tokens());
      return rest;
    }
    marks_.pop_back();
  }
  session_.clear();
  rewound =
      fmt::format("the template rewrote the history: back from token {} to the beginning", before);
  return ids;
}

Conversation::Turn Conversation::ask(const std::string& user, const Sampling& how) {
  std::vector<ChatMessage> all;
  if (!system_.empty()) all.push_back({"system", system_});
  all.insert(all.end(), messages_.begin(), messages_.end());
  all.push_back({"user", user});
  const std::string text = render_prompt(model_, all, template_args_);

  std::string rewound;
  const std::vector<std::int32_t> rest = align(text, rewound);
  const std::int64_t kept = tokens();
  if (kept > 0 && (marks_.empty() || marks_.back().tokens() < kept)) {
    marks_.push_back(session_.mark());
    if (marks_.size() > kMarks) marks_.pop_front();
  }
  TokenStream stream = session_.generate(rest, how);
  messages_.push_back({"user", user});
  return {std::move(stream), kept, static_cast<std::int64_t>(rest.size()), std::move(rewound)};
}

void Conversation::answered(std::string text) {
  messages_.push_back({"assistant", std::move(text)});
}

void Conversation::reset() {
  messages_.clear();
  marks_.clear();
  session_.clear();
}

void Conversation::set_system(std::string text) {
  system_ = std::move(text);
}

}  // namespace nibble::tool
