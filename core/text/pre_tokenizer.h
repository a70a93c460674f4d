// pre_tokenizer.h: cuts a text into the pieces that byte pair encoding never reaches across.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/text/regex.h"

namespace nibble {

class PreTokenizer {
 public:
  // The "pre_tokenizer" value of tokenizer.json: Split, Digits, ByteLevel (last) and Sequence.
  // Throws Error(bad_file | unsupported).
  explicit PreTokenizer(const JsonView& root);

  using Sink = std::function<void(std::string_view piece)>;  // raw bytes, never empty
  void split(std::string_view text, Matcher& matcher, const Sink& sink) const;

  // What happens to the parts that match (or that do not, when inverted).
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

 private:
  struct Step {
    Regex regex;
    Behavior behavior;
    bool invert;
  };
  void read(const JsonView& value);
  void read_split(const JsonView& value);
  void add(const JsonView& value, const std::string& pattern, Behavior behavior, bool invert);
  void run(std::size_t step, std::string_view text, Matcher& matcher, const Sink& sink) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool prefix_space_ = false;
  std::size_t before_prefix_ = 0;  // steps that run before the space is added
};

}  // namespace nibble
