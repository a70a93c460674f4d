// tokenizer_reader.cpp: tokenizer.json as a whole. Each stage reads its own part.
#include "core/base/mapped_file.h"
#include "core/base/quote.h"
#include "core/text/byte_level.h"
#include "core/text/tokenizer_impl.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// The largest real files have 35 MB; a tree of small values takes ten times the text.
constexpr std::size_t kLargestFile = 128u << 20;

JsonView checked(const JsonView& root) {
  if (!root.json().is_object()) {
    throw Error(ErrorCode::bad_file, root.path() + ": expected a JSON object, found " +
                                         std::string(root.json().type_name()));
  }
  const std::string version = root.string_or("version", "1.0");
  if (version != "1.0") {
    throw Error(ErrorCode::unsupported,
                root.path() + ": version: expected \"1.0\", found " + in_quotes(version));
  }
  return root;
}

// Whether `value` decodes bytes; a second one, or another decoder, is refused.
bool read_decoder(const JsonView& value, bool already) {
  const std::string type = value.string("type");
  if (type == "ByteLevel" && !already) return true;
  if (type == "Fuse" && already) return true;  // joins what is one string already
  if (type != "Sequence") {
    throw Error(ErrorCode::unsupported, value.path() + ": unknown decoder " + in_quotes(type) +
                                            (already ? " after ByteLevel" : "") +
                                            ", expected ByteLevel or Sequence");
  }
  const auto list = value.array("decoders");
  for (std::size_t i = 0; i < list.size(); ++i) {
    already = read_decoder(JsonView(list[i], value.path() + ".decoders[" + std::to_string(i) + "]"),
                           already);
  }
  if (!already) value.fail("decoders", "a Sequence without ByteLevel");
  return already;
}

}  // namespace

BpeTokenizer::Impl::Impl(const JsonView& root)
    : bpe(checked(root).object("model")),
      normalizer(root),
      pre_tokenizer(root),
      tokens(bpe.take_tokens()),
      added(root, normalizer, tokens),
      post_processor(root, tokens),
      byte_level_decoder(root.has("decoder") && read_decoder(root.object("decoder"), false)) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!tokens.has(id)) continue;
    const std::string_view token = tokens.at(id);
    const auto raw = byte_level_decoder ? byte_level_bytes(token) : std::nullopt;
    bytes.put(id, raw ? std::string_view(*raw) : token);
  }
}

BpeTokenizer BpeTokenizer::from_json(const Json& json, const std::string& source) {
  return BpeTokenizer(std::make_shared<const Impl>(JsonView(json, "[tokenizer] " + source)));
}

BpeTokenizer BpeTokenizer::from_file(const std::filesystem::path& tokenizer_json) {
  const MappedFile file(tokenizer_json);
  const Bytes bytes = file.bytes();
  if (bytes.size() > kLargestFile) {
    throw Error(ErrorCode::unsupported,
                "[tokenizer] " + tokenizer_json.string() +
                    ": larger than 128 MB: " + std::to_string(bytes.size()) + " bytes");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return from_json(Json::parse(text, "[tokenizer] " + tokenizer_json.string()),
                   tokenizer_json.string());
}

}  // namespace nibble
