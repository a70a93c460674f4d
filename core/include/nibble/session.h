// session.h: one conversation and the stream of tokens that it generates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/export.h"
#include "nibble/options.h"
#include "nibble/stats.h"

namespace nibble {

// `text` is what became certain with this token: empty while a character or a possible stop text is
// incomplete. The last piece of a stream may have token -1: text that was held back.
struct Piece {
  std::int32_t token = -1;
  std::string_view text;  // valid until the next piece
};

enum class StopReason {
  none,         // still running
  stop_token,
  stop_text,
  length,       // max_new_tokens
  context,      // no room left in the KV cache or the model's positions
};
NIBBLE_API const char* stop_reason_name(StopReason r);

// Tokens of one answer, made as they are asked for. Move-only, same thread as its session.
// Dropping it early stops the answer at the last piece that was taken: the session is then as if
// max_new_tokens had been reached there.
class NIBBLE_API TokenStream {
 public:
  bool next(Piece& piece);  // false at the end
  // next() of each; a stream that has ended gives token -1 without text. How many gave a piece. For one thread with
  // many answers: a step starts before the tokens of the one before are known only if readers wait for all of them.
  static std::size_t next_of_each(std::span<TokenStream> streams, std::span<Piece> pieces);
  StopReason stop_reason() const;
  std::int64_t prompt_tokens() const;  // rows that prefill ran
  std::int64_t new_tokens() const;

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Piece;
    using difference_type = std::ptrdiff_t;
    using pointer = const Piece*;
    using reference = const Piece&;
    iterator() = default;
    explicit iterator(TokenStream* s) : stream_(s) { ++*this; }
    const Piece& operator*() const { return piece_; }
    const Piece* operator->() const { return &piece_; }
    iterator& operator++() {
      if (!stream_->next(piece_)) stream_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const iterator& o) const { return stream_ == o.stream_; }

   private:
    TokenStream* stream_ = nullptr;
    Piece piece_;
  };
  iterator begin() { return iterator(this); }
  iterator end() { return {}; }

  struct Impl;
  explicit TokenStream(std::unique_ptr<Impl> impl);
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) noexcept;
  ~TokenStream();

 private:
  std::unique_ptr<Impl> impl_;
};

// A place in a session to come back to. It keeps a copy of the recurrent state (bytes()).
class NIBBLE_API Mark {
 public:
  std::int64_t tokens() const;
  std::uint64_t bytes() const;

  struct Impl;
  explicit Mark(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// One conversation: KV pages, recurrent state, tokens. Move-only. One thread at a time; sessions of one
// model may be used from different threads, and the streams that run at the same time share steps.
class NIBBLE_API Session {
 public:
  // Appends the prompt to what the session holds and generates. An empty prompt goes on from the last
  // token. Throws Error(context_full) if the prompt does not fit, Error(invalid_argument) for ids out
  // of range, an empty session with an empty prompt, or a stream of this session that still runs.
  TokenStream generate(std::span<const std::int32_t> prompt, const Sampling& how = {});

  // log p(token i | what is before it) for every token after the session's first, natural logarithm.
  // The tokens become part of the session. Used for perplexity.
  std::vector<double> score(std::span<const std::int32_t> tokens);

  Mark mark() const;
  // Throws Error(invalid_argument) if the mark is another session's or lies on a branch that was left.
  void rewind(const Mark& to);
  void clear();  // an empty session

  const std::vector<std::int32_t>& tokens() const;  // prompt and answers, in order
  std::int64_t room() const;                        // tokens that still fit

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
