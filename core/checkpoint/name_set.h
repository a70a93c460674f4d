// name_set.h: module names, globs and regular expressions, as quantisation configs list modules.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace nibble {

// Whether `text` matches `glob` as a whole; `*` is any run of characters, `?` any one.
bool glob_matches(std::string_view glob, std::string_view text);

// A Perl-compatible expression that must match from the first character on, as Python's re.match.
// Patterns come from files: compile size and match effort are bounded.
class NameRegex {
 public:
  // `source` names the pattern's place in errors. Throws Error(bad_file).
  NameRegex(const std::string& pattern, const std::string& source);
  bool matches(std::string_view name) const;

 private:
  std::shared_ptr<const void> code_;  // a compiled pattern is immutable and may be shared
  std::string who_;
};

class NameSet {
 public:
  void add_name(std::string name) { names_.insert(std::move(name)); }
  void add_regex(const std::string& pattern, const std::string& source);  // Error when too many
  void add_glob(std::string glob) { globs_.push_back(std::move(glob)); }

  bool empty() const { return names_.empty() && globs_.empty() && regexes_.empty(); }
  // One of the names, a glob or an expression.
  bool matches(std::string_view name) const;
  // The same, or one of the names is a run of whole components of it ("model.visual" in
  // "model.visual.blocks.0.fc").
  bool matches_inside(std::string_view name) const;

 private:
  std::unordered_set<std::string> names_;
  std::vector<std::string> globs_;
  std::vector<NameRegex> regexes_;
};

}  // namespace nibble
