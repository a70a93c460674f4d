#include "nibble/tokenizer.h"

#include "core/api/impl.h"
#include "core/api/model_files.h"
#include "nibble/error.h"

namespace nibble {

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& dir) {
  if (!GgufModel::names(dir)) {  // a tokenizer.json may lie alone in its folder
    return Tokenizer(std::make_shared<const Impl>(Impl{BpeTokenizer::from_file(dir / "tokenizer.json")}));
  }
  auto bpe = ModelFiles(dir).tokenizer();
  if (!bpe) throw Error(ErrorCode::not_found, dir.string() + ": expected a tokenizer, found none in its metadata");
  return Tokenizer(std::make_shared<const Impl>(Impl{*std::move(bpe)}));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  return impl_->bpe.encode(text, add_special);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  return impl_->bpe.decode(ids, skip_special);
}

std::optional<std::int32_t> Tokenizer::id(std::string_view token) const {
  return impl_->bpe.token_to_id(token);
}

std::string_view Tokenizer::token(std::int32_t id) const { return impl_->bpe.id_to_token(id); }
std::size_t Tokenizer::size() const { return impl_->bpe.size(); }

}  // namespace nibble
