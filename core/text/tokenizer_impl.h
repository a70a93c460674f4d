// tokenizer_impl.h: the stages of one tokenizer.
#pragma once

#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/normalizer.h"
#include "core/text/post_processor.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/token_table.h"
#include "core/text/tokenizer.h"

namespace nibble {

struct BpeTokenizer::Impl {
  explicit Impl(const JsonView& root);

  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenTable tokens;  // the model's and the added ones, as in the file
  AddedTokens added;
  PostProcessor post_processor;
  bool byte_level_decoder;  // false: tokens as they are, with a space between
  TokenTable bytes;         // what each id decodes to

  void encode_text(std::string_view text, Matcher& matcher, std::vector<std::int32_t>& out) const;
};

}  // namespace nibble
