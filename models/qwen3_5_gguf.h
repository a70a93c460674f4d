// qwen3_5_gguf.h: architecture qwen35 of GGUF files is qwen3_5 of Hugging Face folders.
#pragma once

#include "core/checkpoint/gguf_source.h"

namespace nibble {

// Throws Error(bad_file) with the metadata's key, Error(unsupported) for a variant that is not
// read.
GgufPlan plan_qwen3_5_gguf(const GgufModel& model);

}  // namespace nibble
