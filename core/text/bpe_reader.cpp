// bpe_reader.cpp: the "model" object of tokenizer.json.
#include "core/base/quote.h"
#include "core/text/bpe.h"
#include "core/text/byte_level.h"
#include "nibble/error.h"

namespace nibble {
namespace {

// Pieces longer than this are never looked up as a whole (unless merges are ignored).
constexpr std::size_t kLongestWhole = 64;

void refuse_affix(const JsonView& model, const char* key) {
  if (!model.string_or(key, "").empty()) {
    throw Error(ErrorCode::unsupported, model.path() + "." + key +
                                            ": only null and \"\" are supported, found " +
                                            in_quotes(model.string(key)));
  }
}

}  // namespace

Bpe::Bpe(const JsonView& model) {
  if (model.has("type") || model.json().find("type") != nullptr) {
    const std::string type = model.string("type");
    if (type != "BPE") {
      throw Error(ErrorCode::unsupported,
                  model.path() + ".type: only \"BPE\" is supported, found " + in_quotes(type));
    }
  }
  // With dropout two calls would differ; a runtime for trained models never wants it.
  if (model.number_or("dropout", 0, 0, 1) != 0) {
    throw Error(ErrorCode::unsupported, model.path() + ".dropout: only null and 0 are supported");
  }
  refuse_affix(model, "continuing_subword_prefix");
  refuse_affix(model, "end_of_word_suffix");
  fuse_unknown_ = model.boolean_or("fuse_unk", false);
  ignore_merges_ = model.boolean_or("ignore_merges", false);
  read_vocab(model);
  read_bytes(model);
  read_merges(model);
  index_whole_tokens();
}

void Bpe::read_vocab(const JsonView& model) {
  const JsonView vocab = model.object("vocab");
  for (const auto& [token, value] : vocab.json().as_object()) {
    const bool fits =
        value.is_integer() && value.as_double() >= 0 && value.as_double() <= kMaxTokenId;
    if (!fits) {
      throw Error(ErrorCode::bad_file, vocab.path() + ": expected an id from 0 to " +
                                           std::to_string(kMaxTokenId) + " for the token " +
                                           in_quotes(token) + ", found " + shown(value));
    }
    const auto id = static_cast<std::int32_t>(value.as_int());
    if (tokens_.has(id)) {
      throw Error(ErrorCode::bad_file, vocab.path() + ": duplicate id " + std::to_string(id) +
                                           ": token " + in_quotes(tokens_.at(id)) + " and token " +
                                           in_quotes(token));
    }
    if (tokens_.find(token) >= 0) {
      throw Error(ErrorCode::bad_file, vocab.path() + ": duplicate token " + in_quotes(token));
    }
    tokens_.put(id, token);
    tokens_.index(id);
  }
}

void Bpe::read_bytes(const JsonView& model) {
  int missing = 0;
  for (int b = 0; b < 256; ++b) {
    byte_ids_[static_cast<std::size_t>(b)] =
        tokens_.find(byte_level_char(static_cast<std::uint8_t>(b)));
    missing += byte_ids_[static_cast<std::size_t>(b)] < 0;
  }
  if (missing == 0) return;  // neither fallback nor the unknown token can ever apply
  if (model.boolean_or("byte_fallback", false)) {
    throw Error(ErrorCode::unsupported,
                model.path() + ".byte_fallback: true is supported only when " +
                    "all 256 bytes have tokens, " + std::to_string(missing) + " are missing");
  }
  const std::string unknown = model.string_or("unk_token", "");
  if (!unknown.empty() && (unknown_id_ = tokens_.find(unknown)) < 0) {
    throw Error(ErrorCode::bad_file, model.path() + ".unk_token: " + in_quotes(unknown) +
                                         " is not in the vocab, and " + std::to_string(missing) +
                                         " bytes have no token");
  }
}

void Bpe::read_merges(const JsonView& model) {
  const auto list = model.array("merges");
  merges_ = MergeTable(list.size());
  std::string merged;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto where = [&] { return model.path() + ".merges[" + std::to_string(i) + "]: "; };
    const Json& item = list[i];
    std::string_view left, right;
    if (item.is_string()) {  // the older form, "a b"
      const std::string_view text = item.as_string();
      if (text.starts_with("#version")) continue;
      const std::size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) {
        throw Error(ErrorCode::bad_file, where() +
                                             "expected a merge of two tokens with one space "
                                             "between them, found " +
                                             in_quotes(text));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (item.is_array() && item.as_array().size() == 2 && item.as_array()[0].is_string() &&
               item.as_array()[1].is_string()) {
      left = item.as_array()[0].as_string();
      right = item.as_array()[1].as_string();
    } else {
      throw Error(ErrorCode::bad_file,
                  where() + "expected a merge of two tokens, found " + shown(item));
    }
    merged = left;
    merged += right;
    const std::int32_t a = tokens_.find(left), b = tokens_.find(right), c = tokens_.find(merged);
    if (a < 0 || b < 0 || c < 0) {
      const std::string_view unknown = a < 0 ? left : b < 0 ? right : std::string_view(merged);
      throw Error(ErrorCode::bad_file, where() + "the merge of " + in_quotes(left) + " and " +
                                           in_quotes(right) + " needs the token " +
                                           in_quotes(unknown) + ", which is not in the vocab");
    }
    merges_.set(a, b, {static_cast<std::uint32_t>(i), c});
  }
}

// Most pieces of a text are tokens: finding them at once skips their merges. A token qualifies when
// its merges lead to itself.
void Bpe::index_whole_tokens() {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!tokens_.has(id)) continue;
    const auto bytes = byte_level_bytes(tokens_.at(id));
    if (!bytes || bytes->empty()) continue;
    if (!ignore_merges_) {
      if (bytes->size() > kLongestWhole) continue;
      ids.clear();
      merge(*bytes, ids);
      if (ids.size() != 1 || ids[0] != id) continue;
    }
    whole_.put(id, *bytes);
    whole_.index(id);
  }
}

}  // namespace nibble
