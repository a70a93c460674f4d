// impl.h: what stands behind the opaque types of the public API.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/engine/engine.h"
#include "core/text/chat/template.h"
#include "core/text/tokenizer.h"
#include "nibble/model.h"

namespace nibble {

struct Tokenizer::Impl {
  BpeTokenizer bpe;
};

struct Model::Impl {
  ModelInfo info;
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  Json template_tokens;  // bos_token, eos_token, ...: template variables of tokenizer_config.json
  std::vector<std::int32_t> stop_tokens;
  std::unique_ptr<EngineLoop> engine;
};

struct Mark::Impl {
  std::uint64_t session = 0;
  std::uint64_t serial = 0;
  EngineLoop::Place place;
};

struct Session::Impl {
  std::shared_ptr<Model::Impl> model;
  std::shared_ptr<Sequence> sequence;
  const std::uint64_t id = next_id();  // an address may be used again
  std::uint64_t next_serial = 0;
  std::vector<std::pair<std::uint64_t, std::int64_t>> marks;  // (serial, tokens) that are still ahead of no rewind

  explicit Impl(std::shared_ptr<Model::Impl> m) : model(std::move(m)), sequence(model->engine->open()) {}
  ~Impl() { model->engine->close(*sequence); }

  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

struct TokenStream::Impl {
  std::shared_ptr<Model::Impl> model;
  std::shared_ptr<Sequence> sequence;
  std::uint64_t order = 0;  // of the answer: a later one on the same sequence is not ours
  std::string text;

  bool current() const { return sequence->order == order; }
  ~Impl() {
    if (sequence && current()) model->engine->cancel(*sequence);
  }
};

}  // namespace nibble
