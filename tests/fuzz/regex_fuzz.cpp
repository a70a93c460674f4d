// regex_fuzz: any bytes as the pattern of a Split: refused, or it splits a text within its limits
// and without losing a byte.
#include <cstdint>
#include <cstdlib>

#include "core/text/pre_tokenizer.h"
#include "core/text/unicode.h"
#include "nibble/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using nibble::Json;
  const std::string pattern(reinterpret_cast<const char*>(data), size);
  for (std::size_t i = 0; i < size;) {  // the JSON reader lets nothing else through
    const int length = nibble::utf8_sequence_length(std::string_view(pattern).substr(i));
    if (length == 0) return 0;
    i += static_cast<std::size_t>(length);
  }
  static const std::string text =
      "the band and 1000 \u00e9e\u0301\n\n  it's \u65e5\u672c aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
  Json root = Json::parse(
      R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
          {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated"},
          {"type": "ByteLevel", "add_prefix_space": false}]}})",
      "root");
  Json::Array& steps = root.as_object()[0].second.as_object()[1].second.as_array();
  steps[0].set("pattern", Json(Json::Object{{"Regex", Json(pattern)}}));
  try {
    const nibble::PreTokenizer splitter(nibble::JsonView(root, "tokenizer.json"));
    nibble::Matcher matcher(text.size());
    std::string pieces;
    splitter.split(text, matcher, [&](std::string_view piece) { pieces += piece; });
    if (pieces != text) std::abort();
  } catch (const nibble::Error&) {
  }
  return 0;
}
