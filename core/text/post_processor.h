// post_processor.h: the special tokens put around a prompt (a BOS token, most often).
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/json.h"
#include "core/text/token_table.h"

namespace nibble {

class PostProcessor {
 public:
  // The "post_processor" value of tokenizer.json: TemplateProcessing for one text, ByteLevel (which
  // moves offsets only) and Sequence. Throws Error(bad_file | unsupported).
  PostProcessor(const JsonView& root, const TokenTable& tokens);

  const std::vector<std::int32_t>& before() const { return before_; }
  const std::vector<std::int32_t>& after() const { return after_; }

 private:
  void read(const JsonView& value, const TokenTable& tokens);
  void read_template(const JsonView& value, const TokenTable& tokens);

  std::vector<std::int32_t> before_, after_;
};

}  // namespace nibble
