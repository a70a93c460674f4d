// template_fuzz.cpp: template bytes rendered with a fixed input under small limits.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/text/chat/template.h"
#include "nibble/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const nibble::Json input = nibble::Json::parse(
      R"({"messages": [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "héllo 日本 😀"},
          {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1.5}}}]}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
          "add_generation_prompt": true, "x": 7, "y": -2.25, "bos_token": "<s>"})",
      "input");
  std::vector<std::pair<std::size_t, std::size_t>> generation;
  nibble::RenderOptions how;
  how.limits = {1u << 16, 4u << 20, 20'000, 400};
  how.generation = &generation;
  try {
    const nibble::ChatTemplate chat(std::string(reinterpret_cast<const char*>(data), size), "t");
    chat.render(input, how);
  } catch (const nibble::Error& e) {
    // Internal errors are bugs, and every complaint has a line.
    if (e.code() == nibble::ErrorCode::internal) __builtin_trap();
    if (std::string(e.what()).find("t: line ") != 0) __builtin_trap();
  }
  return 0;
}
