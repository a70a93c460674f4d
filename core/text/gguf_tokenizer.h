// gguf_tokenizer.h: the tokenizer and what else of text a GGUF file holds in its metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace nibble {

// The same tokenizer as tokenizer.json describes it. Throws Error(bad_file) with the key,
// Error(unsupported) for a kind of tokenizer, or a way to split text, that is not read.
Json gguf_tokenizer_json(const JsonView& metadata);

// Where an answer ends: eos and eot, and <|im_end|> and <|endoftext|> where they are control
// tokens, as llama.cpp stops there too. generation_config.json, which would say, is not in the
// file.
std::vector<std::int32_t> gguf_stop_tokens(const JsonView& metadata);

// bos_token, eos_token, pad_token, unk_token by text, as chat templates use them.
Json gguf_template_tokens(const JsonView& metadata);

}  // namespace nibble
