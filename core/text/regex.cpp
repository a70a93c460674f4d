#include "core/text/regex.h"

#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "core/base/quote.h"
#include "nibble/error.h"

namespace nibble {
namespace {

constexpr std::size_t kLongestPattern = 32 * 1024;
constexpr std::uint32_t kNesting = 100;
constexpr std::uint32_t kHeapKib = 64 * 1024;
constexpr std::size_t kJitStack = 32 * 1024 * 1024;

// One match may backtrack this often, plus so much for each byte of its subject (a run of spaces is
// walked a few times, whatever its length).
constexpr std::uint64_t kMatchLimit = 1'000'000;
constexpr std::uint64_t kMatchLimitPerByte = 32;

// Over a whole text, merging included: 0.1 microseconds a byte with honest patterns.
constexpr double kBudgetSeconds = 1.5;
constexpr double kBudgetSecondsPerByte = 4e-6;
constexpr unsigned kMatchesBetweenChecks = 64;

template <class T, void (*free)(T*)>
struct Free {
  void operator()(T* p) const { free(p); }
};
template <class T, void (*free)(T*)>
using Handle = std::unique_ptr<T, Free<T, free>>;

using CodeHandle = Handle<pcre2_code, pcre2_code_free>;
using CompileContext = Handle<pcre2_compile_context, pcre2_compile_context_free>;
using MatchContext = Handle<pcre2_match_context, pcre2_match_context_free>;
using MatchData = Handle<pcre2_match_data, pcre2_match_data_free>;
using JitStack = Handle<pcre2_jit_stack, pcre2_jit_stack_free>;

std::string message_of(int code) {
  char text[200] = "";
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

template <class T>
T checked(T handle) {
  if (!handle) throw Error(ErrorCode::out_of_memory, "[tokenizer] no memory for a regex");
  return handle;
}

CodeHandle compile(const std::string& pattern, int& error, std::size_t& at) {
  const CompileContext context = checked(CompileContext(pcre2_compile_context_create(nullptr)));
  // A build of PCRE2 may have other defaults for what ends a line.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), kLongestPattern);
  pcre2_set_parens_nest_limit(context.get(), kNesting);
  return CodeHandle(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C,
      &error, &at, context.get()));
}

double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

struct Regex::Code {
  CodeHandle compiled;
  std::string where;
};

Regex::Regex(const std::string& pattern, std::string where) {
  int error = 0;
  std::size_t at = 0;
  auto code = std::make_shared<Code>();
  code->compiled = compile(pattern, error, at);
  if (!code->compiled) {
    throw Error(ErrorCode::bad_file, where + ": invalid regular expression (regex) " +
                                         in_quotes(pattern) + " at byte " + std::to_string(at) +
                                         ": " + message_of(error));
  }
  pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE);  // without it, the interpreter runs
  code->where = std::move(where);
  code_ = std::move(code);
}

bool Regex::compiles(const std::string& pattern) {
  int error = 0;
  std::size_t at = 0;
  return compile(pattern, error, at) != nullptr;
}

struct Matcher::Impl {
  MatchContext context;
  MatchData data;
  JitStack stack;
  double deadline = 0;
  unsigned matches = 0;
};

Matcher::Matcher(std::size_t text_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->context = checked(MatchContext(pcre2_match_context_create(nullptr)));
  impl_->data = checked(MatchData(pcre2_match_data_create(1, nullptr)));
  pcre2_set_heap_limit(impl_->context.get(), kHeapKib);
  pcre2_set_depth_limit(impl_->context.get(), 0xFFFFFFFFu);  // the heap limit bounds it
  impl_->deadline =
      thread_seconds() + kBudgetSeconds + kBudgetSecondsPerByte * static_cast<double>(text_bytes);
}

Matcher::~Matcher() = default;

void Matcher::check_budget(const Regex& regex) {
  if (impl_->matches++ % kMatchesBetweenChecks == 0 && thread_seconds() > impl_->deadline) {
    throw Error(ErrorCode::unsupported,
                regex.code_->where + ": the regex backtracks too much on this text (time limit)");
  }
}

std::optional<std::pair<std::size_t, std::size_t>> Matcher::find(const Regex& regex,
                                                                 std::string_view subject,
                                                                 std::size_t from) {
  check_budget(regex);
  const std::uint64_t limit = kMatchLimit + kMatchLimitPerByte * subject.size();
  pcre2_set_match_limit(impl_->context.get(),
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(limit, 0xFFFFFFFFu)));
  const auto match = [&] {
    return pcre2_match(regex.code_->compiled.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()),
                       subject.size(), from, PCRE2_NO_UTF_CHECK, impl_->data.get(),
                       impl_->context.get());
  };
  int rc = match();
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !impl_->stack) {  // 32 KB are enough for most patterns
    impl_->stack = checked(JitStack(pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr)));
    pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
    rc = match();
  }
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    throw Error(ErrorCode::unsupported, regex.code_->where +
                                            ": the regex backtracks too much on this text (" +
                                            message_of(rc) + ")");
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(impl_->data.get());
  return std::pair{static_cast<std::size_t>(ends[0]), static_cast<std::size_t>(ends[1])};
}

}  // namespace nibble
