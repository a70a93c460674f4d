// What the reader takes and refuses beyond the manifest, and what holds for every tokenizer.
#include <gtest/gtest.h>

#include <thread>

#include "core/text/decode_stream.h"
#include "nibble/error.h"
#include "tests/text/tokenizer_data.h"

namespace nibble::test {
namespace {

Json base() {
  const std::string path = data_path("cases/hostile/tokenizer/base.json");
  return Json::parse(read_text(path), path);
}

Json with(const std::string& key, const std::string& value) {
  Json json = base();
  json.set(key, Json::parse(value, key));
  return json;
}

Json with_model(const std::string& key, const std::string& value) {
  Json json = base();
  Json model = *json.find("model");
  model.set(key, Json::parse(value, key));
  json.set("model", model);
  return json;
}

std::string complaint(const Json& json) {
  try {
    BpeTokenizer::from_json(json, "t.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_refused(const Json& json, const std::string& says) {
  EXPECT_NE(complaint(json).find(says), std::string::npos)
      << "wanted: " << says << "\nfound: " << complaint(json);
}

TEST(TokenizerReader, NamesWhatItRefuses) {
  expect_refused(with("normalizer", R"({"type": "Lowercase"})"),
                 "unknown normalizer \"Lowercase\"");
  expect_refused(with("pre_tokenizer", R"({"type": "Metaspace"})"),
                 "unknown pre_tokenizer \"Metaspace\"");
  expect_refused(with("pre_tokenizer", "null"), "only byte-level tokenizers");
  expect_refused(with("pre_tokenizer",
                      R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"},
                          {"type": "Digits"}]})"),
                 "\"Digits\" after ByteLevel");
  expect_refused(with("decoder", R"({"type": "Metaspace"})"), "unknown decoder \"Metaspace\"");
  expect_refused(with("decoder", R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"},
                                     {"type": "ByteLevel"}]})"),
                 "after ByteLevel");
  expect_refused(with("post_processor", R"({"type": "BertProcessing"})"),
                 "unknown post_processor \"BertProcessing\"");
  expect_refused(with_model("type", "\"WordPiece\""), "only \"BPE\" is supported");
  expect_refused(with_model("dropout", "0.1"), "dropout");
  expect_refused(with_model("end_of_word_suffix", "\"</w>\""), "end_of_word_suffix");
  EXPECT_EQ(complaint(with_model("byte_fallback", "true")), "");  // all bytes have tokens
}

TEST(TokenizerReader, TemplatesAreChecked) {
  const auto one = [](const std::string& single, const std::string& ids) {
    return with("post_processor", R"({"type": "TemplateProcessing", "single": )" + single +
                                      R"(, "special_tokens": {"<|end|>": {"ids": )" + ids + "}}}");
  };
  const std::string special = R"({"SpecialToken": {"id": "<|end|>"}})";
  const std::string text = R"({"Sequence": {"id": "A"}})";
  const auto t = BpeTokenizer::from_json(
      one("[" + special + "," + text + "," + special + "]", "[266, 267]"), "t.json");
  EXPECT_EQ(t.encode("th"), (std::vector<std::int32_t>{266, 267, 256, 266, 267}));
  EXPECT_EQ(t.encode("", true).size(), 4u);
  EXPECT_EQ(t.encode("th", false), (std::vector<std::int32_t>{256}));
  expect_refused(one("[" + special + "]", "[266]"), "lacks Sequence A");
  expect_refused(one("[" + text + "," + text + "]", "[266]"), "Sequence A once");
  expect_refused(one("[" + special + "," + text + "]", "[5000]"), "expected ids of tokens");
  expect_refused(one(R"([{"SpecialToken": {"id": "<x>"}}])", "[266]"), "<x>");
  std::string many = "[" + text;
  for (int i = 0; i < 600; ++i) many += "," + special;
  expect_refused(one(many + "]", "[266, 267]"), "more than 1024 tokens");
}

TEST(TokenizerReader, SequencesOfTemplatesNest) {
  const std::string wrap =
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "B"}},
          {"Sequence": {"id": "A"}}], "special_tokens": {"B": {"ids": [ID]}}})";
  std::string inner = wrap, outer = wrap;
  inner.replace(inner.find("ID"), 2, "266");
  outer.replace(outer.find("ID"), 2, "267");
  const auto t =
      BpeTokenizer::from_json(with("post_processor", R"({"type": "Sequence", "processors": [)" +
                                                      inner + "," + outer + "]}"),
                           "t.json");
  EXPECT_EQ(t.encode("th"), (std::vector<std::int32_t>{267, 266, 256}));
}

TEST(TokenizerReader, DigitsAloneOrTogether) {
  const auto encode = [](const char* each) {
    return BpeTokenizer::from_json(
               with("pre_tokenizer",
                    std::string(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits",
                      "individual_digits": )") +
                        each + R"(}, {"type": "ByteLevel", "add_prefix_space": false}]})"),
               "t.json")
        .encode("1000");
  };
  EXPECT_EQ(encode("true"), (std::vector<std::int32_t>{49, 48, 48, 48}));
  EXPECT_EQ(encode("false"), (std::vector<std::int32_t>{49, 265, 48}));
}

TEST(TokenizerReader, MissingBytesAreDroppedOrUnknown) {
  Json json = base();
  Json model = *json.find("model");
  Json vocab = *model.find("vocab");
  std::erase_if(vocab.as_object(), [](const Json::Member& m) { return m.first == "z"; });
  model.set("vocab", vocab);
  json.set("model", model);
  EXPECT_EQ(BpeTokenizer::from_json(json, "t").encode("tzzh"), (std::vector<std::int32_t>{256}));
  model.set("unk_token", Json("in"));
  json.set("model", model);
  EXPECT_EQ(BpeTokenizer::from_json(json, "t").encode("tzzh"),
            (std::vector<std::int32_t>{116, 259, 259, 104}));
  model.set("fuse_unk", Json(true));
  json.set("model", model);
  EXPECT_EQ(BpeTokenizer::from_json(json, "t").encode("tzzh"),
            (std::vector<std::int32_t>{116, 259, 104}));
  model.set("byte_fallback", Json(true));
  json.set("model", model);
  expect_refused(json, "byte_fallback");
  model.set("byte_fallback", Json(false));
  model.set("unk_token", Json("<nowhere>"));
  json.set("model", model);
  expect_refused(json, "unk_token");
}

TEST(TokenizerReader, NoDecoderJoinsTokensWithSpaces) {
  const auto t = BpeTokenizer::from_json(with("decoder", "null"), "t.json");
  const std::vector<std::int32_t> ids{257, 266, 258};
  EXPECT_EQ(t.decode(ids), "the <|end|> Ġthe");
  EXPECT_EQ(t.decode(ids, true), "the Ġthe");
  DecodeStream stream(t, true);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  EXPECT_EQ(text + stream.flush(), "the Ġthe");
}

TEST(TokenizerReader, NormalisedAddedTokensAreFoundInNormalisedText) {
  Json json = with("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})");
  json.set("added_tokens", Json::parse(R"([
      {"id": 300, "content": "<\u00e9>", "normalized": true},
      {"id": 301, "content": "<e\u0301\u0301>", "normalized": false}])",
                                       "added"));
  const auto t = BpeTokenizer::from_json(json, "t.json");
  EXPECT_EQ(t.encode("<e\u0301>"), (std::vector<std::int32_t>{300}));
  EXPECT_EQ(t.encode("<e\u0301\u0301>"), (std::vector<std::int32_t>{301}));
  EXPECT_EQ(t.size(), 302u);
  EXPECT_EQ(t.id_to_token(300), "<\u00e9>");
  EXPECT_EQ(t.id_to_token(290), "");  // a hole
  EXPECT_EQ(t.decode(std::vector<std::int32_t>{290, 256}), "th");
  EXPECT_FALSE(t.is_special(300));
}

TEST(TokenizerReader, TablesAndArguments) {
  const BpeTokenizer t = load_tokenizer("oracle");
  EXPECT_EQ(t.size(), 4096u);
  EXPECT_EQ(t.token_to_id("<|im_end|>"), 4093);
  EXPECT_EQ(t.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(t.id_to_token(220), "Ġ");
  EXPECT_TRUE(t.is_special(4091));
  EXPECT_FALSE(t.is_special(4094));  // <think> is added, not special
  EXPECT_FALSE(t.is_special(-1));
  EXPECT_THROW(t.decode(std::vector<std::int32_t>{4096}), Error);
  EXPECT_THROW(t.decode(std::vector<std::int32_t>{-1}), Error);
  EXPECT_THROW(t.encode("caf\xE9"), Error);
  try {
    BpeTokenizer::from_file(data_path("nowhere/tokenizer.json"));
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::not_found);
  }
}

TEST(Tokenizer, ManyThreadsShareOne) {
  const BpeTokenizer t = load_tokenizer("oracle");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "The keeper wrote " + std::to_string(i) + ", café\u0301. ";
  const auto expected = t.encode(text);
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < equal.size(); ++i) {
    threads.emplace_back([&, i] { equal[i] = t.encode(text) == expected; });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 1));
}

// Both ways of merging must agree: long pieces use a heap, short ones a scan.
TEST(Tokenizer, LongPiecesMergeAsShortOnes) {
  const BpeTokenizer t = BpeTokenizer::from_json(
      with("pre_tokenizer",
           R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})"),
      "t.json");
  std::uint32_t seed = 1;
  for (int round = 0; round < 200; ++round) {
    std::string piece;
    for (int i = 0; i < 40; ++i) {
      seed = seed * 1664525 + 1013904223;
      piece += "then adir0"[(seed >> 16) % 10];
    }
    // "~" is in no merge, so the long text is the short ones side by side.
    const auto alone = t.encode(piece + "~");
    const auto together = t.encode(piece + "~" + piece + "~");
    auto twice = alone;
    twice.insert(twice.end(), alone.begin(), alone.end());
    ASSERT_EQ(together, twice) << piece;
  }
}

}  // namespace
}  // namespace nibble::test
