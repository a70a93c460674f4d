#include "core/text/tokenizer.h"

#include "core/text/tokenizer_impl.h"
#include "core/text/utf8_repair.h"
#include "nibble/error.h"

namespace nibble {
std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (const auto at = utf8_error(text)) {
    throw Error(ErrorCode::invalid_argument,
                "[tokenizer] encode: the text is not UTF-8 at byte " + std::to_string(*at));
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  const auto add = [&](const std::vector<std::int32_t>& more) {
    if (add_special_tokens) ids.insert(ids.end(), more.begin(), more.end());
  };
  add(impl_->post_processor.before());
  Matcher matcher(text.size());
  for (const auto& part : impl_->added.split(text, false)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else if (impl_->normalizer.empty()) {
      impl_->encode_text(part.text, matcher, ids);
    } else {
      impl_->encode_text(impl_->normalizer.apply(part.text), matcher, ids);
    }
  }
  add(impl_->post_processor.after());
  return ids;
}

void BpeTokenizer::Impl::encode_text(std::string_view text, Matcher& matcher,
                                  std::vector<std::int32_t>& out) const {
  for (const auto& part : added.split(text, true)) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else {
      pre_tokenizer.split(part.text, matcher,
                          [&](std::string_view piece) { bpe.encode(piece, out); });
    }
  }
}

void BpeTokenizer::append_bytes(std::int32_t id, bool skip_special, bool& first,
                             std::string& out) const {
  if (id < 0 || static_cast<std::size_t>(id) >= size()) {
    throw Error(ErrorCode::invalid_argument, "[tokenizer] decode: expected an id from 0 to " +
                                                 std::to_string(size() - 1) + ", found " +
                                                 std::to_string(id));
  }
  if (!impl_->tokens.has(id) || (skip_special && is_special(id))) return;
  if (!impl_->byte_level_decoder && !first) out += ' ';
  first = false;
  out += impl_->bytes.at(id);
}

std::string BpeTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  bool first = true;
  for (const std::int32_t id : ids) append_bytes(id, skip_special, first, bytes);
  Utf8Repair repair;
  repair.push(bytes, text);
  repair.flush(text);
  return text;
}

std::optional<std::int32_t> BpeTokenizer::token_to_id(std::string_view token) const {
  const std::int32_t id = impl_->tokens.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view BpeTokenizer::id_to_token(std::int32_t id) const {
  return impl_->tokens.at(id);
}

std::size_t BpeTokenizer::size() const {
  return impl_->tokens.size();
}

bool BpeTokenizer::is_special(std::int32_t id) const {
  return impl_->added.is_special(id);
}

}  // namespace nibble
