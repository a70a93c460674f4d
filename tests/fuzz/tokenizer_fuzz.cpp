// tokenizer_fuzz: any bytes as tokenizer.json; what loads must encode, decode and stream a text.
#include <cstdint>
#include <cstdlib>

#include "core/text/decode_stream.h"
#include "core/text/tokenizer.h"
#include "nibble/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using nibble::Error;
  static const std::string text =
      "the band and the<|end|>inner 1000 <note>\u00e9e\u0301\n\n  it's \u65e5\u672c \U0001f600"
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
  try {
    const nibble::Json json =
        nibble::Json::parse({reinterpret_cast<const char*>(data), size}, "tokenizer.json");
    const auto tokenizer = nibble::BpeTokenizer::from_json(json, "tokenizer.json");
    const auto ids = tokenizer.encode(text);
    const std::string decoded = tokenizer.decode(ids);
    nibble::DecodeStream stream(tokenizer, false);
    std::string pieces;
    for (const std::int32_t id : ids) pieces += stream.push(id);
    pieces += stream.flush();
    if (pieces != decoded) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
