// template.h: chat templates, the Jinja that real checkpoints use.
//
// The environment is the one that checkpoints are written for: trim_blocks, lstrip_blocks, no
// automatic escaping, one newline at the end of the source dropped, loop controls, {% generation
// %}, a tojson that does not escape HTML, raise_exception, strftime_now, and lists and dicts that a
// template cannot change. Integers have 64 bits; a literal beyond that can be printed, not computed
// with. A template is hostile input: time, memory, output and nesting are limited.
#pragma once

#include <cstddef>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace nibble {

struct RenderLimits {
  std::size_t output_bytes = 64u << 20;   // of the finished text
  std::size_t memory_bytes = 256u << 20;  // of all values alive at one time
  std::size_t steps = 20'000'000;         // evaluated nodes, and work in units of about 64 bytes
  int depth = 800;  // nested evaluations; half a kilobyte of stack each, five under AddressSanitizer
};

struct RenderOptions {
  std::function<std::tm()> now;  // what strftime_now sees; the local time when empty
  RenderLimits limits;
  // When set: receives [begin, end) in code points of what each {% generation %} block wrote.
  std::vector<std::pair<std::size_t, std::size_t>>* generation = nullptr;
};

namespace chat {
struct Program;
}

// Parsed once, immutable, safe from many threads.
class ChatTemplate {
 public:
  // Throws Error(bad_file) with `name: line N: what`.
  ChatTemplate(std::string source, std::string name);

  // `input` is an object: messages, add_generation_prompt, tools, documents, bos_token, eos_token
  // and any other keyword. tools and documents are none when not given, add_generation_prompt is
  // false. Throws Error(invalid_argument) with the line, also for raise_exception.
  std::string render(const Json& input, const RenderOptions& how = {}) const;

 private:
  std::shared_ptr<const chat::Program> program_;
};

}  // namespace nibble
