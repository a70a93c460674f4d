// regex.h: a compiled regular expression, and matching under limits.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace nibble {

// Immutable; safe from many threads. PCRE2 in UTF mode with Unicode properties, JIT where
// available.
class Regex {
 public:
  // `pattern` in PCRE2's syntax. `where` names it in errors, here and when matching.
  // Throws Error(bad_file) when it does not compile.
  Regex(const std::string& pattern, std::string where);

  // Whether PCRE2 takes this pattern; for probing property names.
  static bool compiles(const std::string& pattern);

  struct Code;

 private:
  friend class Matcher;
  std::shared_ptr<const Code> code_;
};

// The mutable part of matching, for one thread. All matches of one matcher share a budget of
// processor time that grows with the text, so that a pattern which backtracks without end becomes
// an error and not a hang.
class Matcher {
 public:
  explicit Matcher(std::size_t text_bytes);
  Matcher(const Matcher&) = delete;
  ~Matcher();

  // First match at or after `from` as [begin, end). `subject` is well-formed UTF-8.
  // Throws Error(unsupported) when a limit is reached.
  std::optional<std::pair<std::size_t, std::size_t>> find(const Regex& regex,
                                                          std::string_view subject,
                                                          std::size_t from);

 private:
  struct Impl;
  void check_budget(const Regex& regex);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
