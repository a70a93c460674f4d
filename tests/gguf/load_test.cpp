// A model from a GGUF file computes what the folder that it was made from computes.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/checkpoint/support.h"
#include "tests/engine/support.h"
#include "tests/gguf/converted.h"

namespace nibble::test {
namespace {

Model load(const std::filesystem::path& path) {
  return Model::load(path, Device::cpu(), options());
}

std::filesystem::path write(const TemporaryFolder& folder, const GgufWriter& w) {
  const auto path = folder / "tiny.gguf";
  w.write(path);
  return path;
}

void expect_same_run(Model& a, Model& b, const std::string& prompt) {
  const auto ids = ids_of(prompt);
  const Result ours = prefill(a, ids, 32), theirs = prefill(b, ids, 32);
  EXPECT_EQ(ours.tokens, theirs.tokens) << prompt;
  EXPECT_TRUE(same_bytes(ours.logits, theirs.logits)) << prompt;
  expect_same_state(ours.state, theirs.state, prompt);
}

TEST(GgufLoad, TokensLogitsAndStateAreThoseOfTheFolder) {
  const TemporaryFolder folder;
  Model ours = load(write(folder, converted())), theirs = load(kData / "model/hf-nvfp4-ct");
  for (const char* prompt : {"capital", "one_token", "unicode", "long700"})
    expect_same_run(ours, theirs, prompt);
}

TEST(GgufLoad, DeclaredActivationsToo) {
  const TemporaryFolder folder;
  LoadOptions how = options();
  how.activations = Activations::declared;
  Model ours = Model::load(write(folder, converted()), Device::cpu(), how);
  Model theirs = Model::load(kData / "model/hf-nvfp4-modelopt", Device::cpu(), how);
  expect_same_run(ours, theirs, "capital");
}

TEST(GgufLoad, ShardsByAnyOfTheirNames) {
  const TemporaryFolder folder;
  converted().write_shards(folder.path(), 3);
  Model theirs = load(kData / "model/hf-nvfp4-ct");
  for (const char* name : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    Model ours = load(folder / name);
    expect_same_run(ours, theirs, "one_token");
    EXPECT_EQ(ours.info().files.size(), 3u);
  }
}

TEST(GgufLoad, Q8_0AnswersAlikeAndIsAnnounced) {
  const TemporaryFolder folder;
  Model ours = load(write(folder, converted(gguf::kQ8_0))),
        theirs = load(kData / "model/hf-nvfp4-ct");
  const auto ids = ids_of("capital");
  EXPECT_EQ(prefill(ours, ids, 32).tokens, prefill(theirs, ids, 32).tokens);
  const auto& notes = ours.info().notes;
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& n) {
    return n.starts_with("Q8_0 is decoded to float32 at load, exactly: 50 matrices");
  }));
}

TEST(GgufLoad, TextSideIsThatOfTheFolder) {
  const TemporaryFolder folder;
  const Model ours = load(write(folder, converted())), theirs = load(kData / "model/hf-nvfp4-ct");
  const Json golden = read_json("golden/tokenizer.json");
  std::size_t texts = 0;
  for (const Json& one : golden.find("texts")->as_array()) {
    const std::string& text = one.find("text")->as_string();
    const auto ids = theirs.tokenizer().encode(text, false);
    EXPECT_EQ(ours.tokenizer().encode(text, false), ids) << text;
    EXPECT_EQ(ours.tokenizer().encode(text), theirs.tokenizer().encode(text)) << text;
    EXPECT_EQ(ours.tokenizer().decode(ids), theirs.tokenizer().decode(ids)) << text;
    EXPECT_EQ(ours.tokenizer().decode(ids, true), theirs.tokenizer().decode(ids, true)) << text;
    ++texts;
  }
  EXPECT_GT(texts, 5u);
  EXPECT_EQ(ours.tokenizer().size(), theirs.tokenizer().size());
  EXPECT_EQ(ours.stop_tokens(), theirs.stop_tokens());
  EXPECT_EQ(ours.render_chat("Hello?"), theirs.render_chat("Hello?"));
  const Tokenizer alone = Tokenizer::load(folder / "tiny.gguf");
  EXPECT_EQ(alone.encode("The capital of France"),
            ours.tokenizer().encode("The capital of France"));
}

TEST(GgufLoad, WithoutTextItStillRuns) {
  const TemporaryFolder folder;
  GgufWriter w = converted();
  for (const char* key : {"model", "pre", "tokens", "token_type", "merges"})
    w.remove(std::string("tokenizer.ggml.") + key);
  w.remove("tokenizer.chat_template");
  Model ours = load(write(folder, w)), theirs = load(kData / "model/hf-nvfp4-ct");
  EXPECT_FALSE(ours.has_tokenizer());
  EXPECT_FALSE(ours.has_chat_template());
  expect_same_run(ours, theirs, "one_token");
}

TEST(GgufLoad, UnusedTokensAreHoles) {
  const TemporaryFolder folder;
  GgufWriter w = converted();
  std::vector<std::int32_t> types(4096, 1);
  for (std::size_t i = 4091; i < 4094; ++i) types[i] = 3;
  types[4094] = types[4095] = 5;
  w.i32s("tokenizer.ggml.token_type", types);
  const Tokenizer t = load(write(folder, w)).tokenizer();
  EXPECT_FALSE(t.id("<think>").has_value());
  EXPECT_TRUE(t.id("<|im_end|>").has_value());
}

TEST(GgufLoad, InspectSaysWhatTheFileHas) {
  const TemporaryFolder folder;
  std::vector<TensorRow> rows;
  const ModelInfo info =
      Model::inspect(write(folder, converted(gguf::kNvfp4, true)), &rows, Device::cpu(), options());
  EXPECT_EQ(info.architecture, "qwen3_5");
  EXPECT_EQ(info.layers, 8);
  EXPECT_EQ(info.quantisation.method, "gguf");
  ASSERT_EQ(info.files.size(), 1u);
  EXPECT_EQ(info.files[0].name, "tiny.gguf");
  EXPECT_TRUE(std::any_of(info.notes.begin(), info.notes.end(), [](const std::string& n) {
    return n.find("MTP tensors") != std::string::npos;
  }));
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const TensorRow& r) {
    return r.name == "model.layers.0.linear_attn.in_proj_qkv" && r.format == "nvfp4";
  }));
}

}  // namespace
}  // namespace nibble::test
