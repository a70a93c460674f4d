#include "core/checkpoint/name_set.h"

#include <pcre2.h>

#include "core/checkpoint/tensor_info.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::size_t kMostPattern = 4096;  // characters
constexpr std::size_t kMostRegexes = 1024;
constexpr std::uint32_t kMatchLimit =
    50'000;  // backtracking steps; real patterns need a few hundred
constexpr std::uint32_t kHeapLimit = 16'384;  // KiB

struct FreeContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

std::string pcre_text(int code) {
  unsigned char buffer[200] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

bool glob_matches(std::string_view glob, std::string_view text) {
  std::size_t g = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      star = g++;
      resume = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (star != std::string_view::npos) {  // let the last star take one more
      g = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

NameRegex::NameRegex(const std::string& pattern, const std::string& source)
    : who_(source + ": pattern " + show_name("re:" + pattern)) {
  if (pattern.size() > kMostPattern) {
    throw Error(ErrorCode::bad_file, who_ + " has " + std::to_string(pattern.size()) +
                                         " characters, more than " + std::to_string(kMostPattern));
  }
  int code = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &code, &at, nullptr);
  if (compiled == nullptr) {
    throw Error(ErrorCode::bad_file, who_ + " is no valid regular expression at character " +
                                         std::to_string(at) + ": " + pcre_text(code));
  }
  code_ =
      std::shared_ptr<const void>(compiled, [compiled](const void*) { pcre2_code_free(compiled); });
}

bool NameRegex::matches(std::string_view name) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_context, FreeContext> limits(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, FreeContext> found(pcre2_match_data_create(1, nullptr));
  if (!limits || !found) throw Error(ErrorCode::out_of_memory, who_ + ": no memory to match");
  pcre2_set_match_limit(limits.get(), kMatchLimit);
  pcre2_set_heap_limit(limits.get(), kHeapLimit);
  const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                                 found.get(), limits.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw Error(ErrorCode::bad_file,
              who_ + " cannot be matched with " + show_name(name) + ": " + pcre_text(result));
}

void NameSet::add_regex(const std::string& pattern, const std::string& source) {
  if (regexes_.size() == kMostRegexes) {
    throw Error(ErrorCode::bad_file,
                source + ": more than " + std::to_string(kMostRegexes) + " re: patterns");
  }
  regexes_.emplace_back(pattern, source);
}

bool NameSet::matches(std::string_view name) const {
  if (names_.contains(std::string(name))) return true;
  for (const std::string& glob : globs_) {
    if (glob_matches(glob, name)) return true;
  }
  for (const NameRegex& regex : regexes_) {
    if (regex.matches(name)) return true;
  }
  return false;
}

bool NameSet::matches_inside(std::string_view name) const {
  if (matches(name)) return true;
  std::vector<std::size_t> starts{0};
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '.') starts.push_back(i + 1);
  }
  if (starts.size() > 64) return false;  // no module lies that deep
  starts.push_back(name.size() + 1);
  for (std::size_t a = 0; a + 1 < starts.size(); ++a) {
    for (std::size_t b = a + 1; b < starts.size(); ++b) {
      const auto run = name.substr(starts[a], starts[b] - 1 - starts[a]);
      if (names_.contains(std::string(run))) return true;
    }
  }
  return false;
}

}  // namespace nibble
