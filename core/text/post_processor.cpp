#include "core/text/post_processor.h"

#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::size_t kMostTokens = 1024;

void append_special(const JsonView& value, const JsonView& piece, const TokenTable& tokens,
                    std::vector<std::int32_t>& out) {
  const std::string name = piece.string("id");
  const JsonView special = value.object("special_tokens");
  if (special.json().find(name) == nullptr) {
    piece.fail("id", in_quotes(name) + " is not among the special_tokens of the template");
  }
  const JsonView entry = special.object(name);
  for (const Json& id : entry.array("ids")) {
    const bool known = id.is_integer() && id.as_double() >= 0 && id.as_double() <= kMaxTokenId &&
                       tokens.has(static_cast<std::int32_t>(id.as_int()));
    if (!known) entry.fail("ids", "expected ids of tokens, found " + shown(id));
    if (out.size() == kMostTokens) {
      throw Error(ErrorCode::unsupported,
                  value.path() + ": post_processor adds more than 1024 tokens");
    }
    out.push_back(static_cast<std::int32_t>(id.as_int()));
  }
}

}  // namespace

PostProcessor::PostProcessor(const JsonView& root, const TokenTable& tokens) {
  if (root.has("post_processor")) read(root.object("post_processor"), tokens);
}

void PostProcessor::read(const JsonView& value, const TokenTable& tokens) {
  const std::string type = value.string("type");
  if (type == "ByteLevel") return;
  if (type == "TemplateProcessing") {
    read_template(value, tokens);
  } else if (type == "Sequence") {
    const auto list = value.array("processors");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read(JsonView(list[i], value.path() + ".processors[" + std::to_string(i) + "]"), tokens);
    }
  } else {
    throw Error(ErrorCode::unsupported, value.path() + ": unknown post_processor " +
                                            in_quotes(type) +
                                            ", expected ByteLevel, TemplateProcessing or Sequence");
  }
}

void PostProcessor::read_template(const JsonView& value, const TokenTable& tokens) {
  const auto list = value.array("single");
  std::vector<std::int32_t> before, after;
  bool text_seen = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonView item(list[i], value.path() + ".single[" + std::to_string(i) + "]");
    if (item.has("SpecialToken")) {
      append_special(value, item.object("SpecialToken"), tokens, text_seen ? after : before);
    } else if (!item.has("Sequence")) {
      throw Error(ErrorCode::bad_file,
                  item.path() + ": expected SpecialToken or Sequence, found " + shown(list[i]));
    } else if (const std::string id = item.object("Sequence").string("id");
               id != "A" || text_seen) {
      throw Error(
          ErrorCode::unsupported,
          item.path() + ": a template for one text holds Sequence A once, found " + in_quotes(id));
    } else {
      text_seen = true;
    }
  }
  if (!text_seen) value.fail("single", "the template lacks Sequence A");
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
  if (before_.size() + after_.size() > kMostTokens) {
    throw Error(ErrorCode::unsupported,
                value.path() + ": post_processor adds more than 1024 tokens");
  }
}

}  // namespace nibble
