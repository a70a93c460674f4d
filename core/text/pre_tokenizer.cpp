#include "core/text/pre_tokenizer.h"

#include <algorithm>
#include <string>

#include "core/base/quote.h"
#include "core/text/regex_syntax.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

namespace nibble {
namespace {

using Behavior = PreTokenizer::Behavior;

constexpr std::size_t kMostSteps = 64;

// What ByteLevel splits by when use_regex is set (GPT-2's pattern).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
  std::size_t begin, end;
  bool match;
};

// Calls f(begin, end, match) for every part in order; parts may be empty.
template <class F>
void for_each_part(const Regex& regex, bool invert, std::string_view text, Matcher& matcher, F f) {
  std::size_t done = 0, from = 0;
  std::size_t last_match_end = std::string_view::npos;
  while (from <= text.size()) {
    const auto found = matcher.find(regex, text, from);
    if (!found) break;
    const auto [begin, end] = *found;
    if (begin == end && end == last_match_end) {  // an empty match right after a match: go on
      if (from == text.size()) break;
      const int length = utf8_sequence_length(text.substr(from));
      from += static_cast<std::size_t>(std::max(length, 1));
      continue;
    }
    if (done != begin) f(done, begin, invert);
    f(begin, end, !invert);
    done = from = last_match_end = end;
  }
  if (done != text.size()) f(done, text.size(), invert);
}

// Joins parts; the previous part's kind decides, so three matches in a row do not all merge.
std::vector<Part> merged(const std::vector<Part>& parts, Behavior behavior) {
  std::vector<Part> result;
  bool previous_match = false;
  if (behavior == Behavior::merged_with_next) {
    for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
      if (p->match && !previous_match && !result.empty()) {
        result.back().begin = p->begin;
      } else {
        result.push_back(*p);
      }
      previous_match = p->match;
    }
    std::reverse(result.begin(), result.end());
    return result;
  }
  for (const Part& p : parts) {
    const bool joins =
        behavior == Behavior::contiguous ? p.match == previous_match : p.match && !previous_match;
    if (joins && !result.empty()) {
      result.back().end = p.end;
    } else {
      result.push_back(p);
    }
    previous_match = p.match;
  }
  return result;
}

Behavior behavior_of(const JsonView& value) {
  const std::string name = value.string("behavior");
  if (name == "Isolated") return Behavior::isolated;
  if (name == "Removed") return Behavior::removed;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  value.fail("behavior", "unknown behavior " + in_quotes(name) +
                             ", expected Isolated, Removed, MergedWithPrevious, MergedWithNext or "
                             "Contiguous");
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonView& root) {
  if (root.has("pre_tokenizer")) read(root.object("pre_tokenizer"));
  if (!byte_level_) {
    throw Error(ErrorCode::unsupported,
                root.path() +
                    ": pre_tokenizer: only byte-level tokenizers are supported, found "
                    "none of type ByteLevel");
  }
}

void PreTokenizer::read(const JsonView& value) {
  const std::string type = value.string("type");
  if (type == "Sequence") {
    const auto list = value.array("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) {
      read(JsonView(list[i], value.path() + ".pretokenizers[" + std::to_string(i) + "]"));
    }
    return;
  }
  if (type != "Split" && type != "Digits" && type != "ByteLevel") {
    throw Error(ErrorCode::unsupported, value.path() + ": unknown pre_tokenizer " +
                                            in_quotes(type) +
                                            ", expected Split, Digits, ByteLevel or Sequence");
  }
  if (byte_level_) {
    throw Error(ErrorCode::unsupported,
                value.path() + ": pre_tokenizer " + in_quotes(type) + " after ByteLevel");
  }
  if (type == "Split") {
    read_split(value);
  } else if (type == "Digits") {
    const bool each = value.boolean_or("individual_digits", false);
    add(value, "\\p{N}", each ? Behavior::isolated : Behavior::contiguous, false);
  } else {
    byte_level_ = true;
    prefix_space_ = value.boolean_or("add_prefix_space", true);
    before_prefix_ = steps_.size();
    if (value.boolean_or("use_regex", true)) {
      add(value, kByteLevelPattern, Behavior::isolated, false);
    }
  }
}

void PreTokenizer::read_split(const JsonView& value) {
  const JsonView pattern = value.object("pattern");
  const Behavior behavior = behavior_of(value);
  const bool invert = value.boolean_or("invert", false);
  if (pattern.has("Regex")) {
    add(value, pattern.string("Regex"), behavior, invert);
  } else if (pattern.has("String")) {
    add(value, literal_pattern(pattern.string("String")), behavior, invert);
  } else {
    value.fail("pattern",
               "expected {\"Regex\": ...} or {\"String\": ...}, found " + shown(pattern.json()));
  }
}

void PreTokenizer::add(const JsonView& value, const std::string& pattern, Behavior behavior,
                       bool invert) {
  if (steps_.size() == kMostSteps) {
    throw Error(ErrorCode::unsupported, value.path() + ": more than 64 pre_tokenizers in a row");
  }
  steps_.push_back({Regex(to_pcre2_syntax(pattern, value.path()), value.path()), behavior, invert});
}

void PreTokenizer::split(std::string_view text, Matcher& matcher, const Sink& sink) const {
  if (!text.empty()) run(0, text, matcher, sink);
}

void PreTokenizer::run(std::size_t step, std::string_view text, Matcher& matcher,
                       const Sink& sink) const {
  std::string prefixed;
  if (step == before_prefix_ && prefix_space_ && text.front() != ' ') {
    prefixed.reserve(text.size() + 1);
    prefixed += ' ';
    prefixed += text;
    text = prefixed;
  }
  if (step == steps_.size()) {
    sink(text);
    return;
  }
  const Step& s = steps_[step];
  const auto pass_on = [&](std::size_t begin, std::size_t end) {
    if (begin != end) run(step + 1, text.substr(begin, end - begin), matcher, sink);
  };
  if (s.behavior == Behavior::isolated || s.behavior == Behavior::removed) {
    for_each_part(s.regex, s.invert, text, matcher,
                  [&](std::size_t begin, std::size_t end, bool match) {
                    if (!match || s.behavior == Behavior::isolated) pass_on(begin, end);
                  });
    return;
  }
  std::vector<Part> parts;
  for_each_part(s.regex, s.invert, text, matcher,
                [&](std::size_t begin, std::size_t end, bool match) {
                  parts.push_back({begin, end, match});
                });
  for (const Part& part : merged(parts, s.behavior)) pass_on(part.begin, part.end);
}

}  // namespace nibble
