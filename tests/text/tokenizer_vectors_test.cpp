// What the reference implementation makes of 2,580 texts, 578 streams and 56 long texts.
#include <gtest/gtest.h>

#include <chrono>

#include "core/text/decode_stream.h"
#include "core/text/unicode.h"
#include "nibble/error.h"
#include "tests/support/sha256.h"
#include "tests/text/tokenizer_data.h"

namespace nibble::test {
namespace {

class Vectors : public testing::TestWithParam<const char*> {
 protected:
  Vectors() : tokenizer_(load_tokenizer(GetParam())) {}
  std::vector<Json> lines(const std::string& name) const {
    return read_lines(std::string("cases/text/") + GetParam() + "/" + name);
  }
  BpeTokenizer tokenizer_;
};

TEST_P(Vectors, EncodeAndDecode) {
  std::size_t tried = 0, newer = 0;
  for (const Json& v : lines("vectors.jsonl")) {
    SCOPED_TRACE(text_of(v, "id") + " " + v.find("text")->dump());
    if (const Json* marked = v.find("new_unicode"); marked != nullptr && marked->as_bool()) {
      ++newer;  // the tables of PCRE2 and of the reference may differ
      continue;
    }
    const auto ids = ids_of(*v.find("ids"));
    const auto plain = v.find("ids_plain") != nullptr ? ids_of(*v.find("ids_plain")) : ids;
    EXPECT_EQ(tokenizer_.encode(text_of(v, "text")), ids);
    EXPECT_EQ(tokenizer_.encode(text_of(v, "text"), false), plain);
    EXPECT_EQ(tokenizer_.decode(ids), text_of(v, "decoded"));
    EXPECT_EQ(tokenizer_.decode(ids, true), text_of(v, "decoded_skip"));
    ++tried;
  }
  EXPECT_EQ(newer, 1u);
  EXPECT_EQ(tried, std::string(GetParam()) == "oracle" ? 599u : 659u);
}

bool well_formed(std::string_view text) {
  while (!text.empty()) {
    const int length = utf8_sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return true;
}

TEST_P(Vectors, Streams) {
  std::size_t tried = 0;
  for (const Json& v : lines("streams.jsonl")) {
    SCOPED_TRACE(text_of(v, "id") + " " + text_of(v, "why"));
    const auto ids = ids_of(*v.find("ids"));
    if (v.find("out_of_range") != nullptr) {
      EXPECT_THROW(tokenizer_.decode(ids), Error);
      continue;
    }
    for (const bool skip : {false, true}) {
      const std::string& expected = text_of(v, skip ? "text_skip" : "text");
      EXPECT_EQ(tokenizer_.decode(ids, skip), expected);
      DecodeStream stream(tokenizer_, skip);
      for (int round = 0; round < 2; ++round) {  // a flushed stream starts anew
        std::string text;
        for (const std::int32_t id : ids) {
          const std::string piece = stream.push(id);
          EXPECT_TRUE(well_formed(piece));
          text += piece;
        }
        text += stream.flush();
        EXPECT_EQ(text, expected);
      }
    }
    ++tried;
  }
  EXPECT_GT(tried, 130u);
}

std::string text_by_rule(const Json& rule) {
  std::string text;
  if (const Json* repeat = rule.find("repeat")) {
    for (std::int64_t i = 0; i < rule.find("times")->as_int(); ++i) text += repeat->as_string();
    return text;
  }
  const auto& parts = rule.find("parts")->as_array();
  auto s = rule.find("seed")->as_uint();
  while (text.size() < rule.find("bytes")->as_uint()) {
    s = (s * 1103515245 + 12345) % (std::uint64_t{1} << 31);
    text += parts[(s >> 16) % parts.size()].as_string();
  }
  return text;
}

TEST_P(Vectors, LargeTextsInTime) {
  std::size_t tried = 0;
  for (const Json& v : lines("large.jsonl")) {
    SCOPED_TRACE(text_of(v, "id"));
    const std::string text = text_by_rule(*v.find("rule"));
    ASSERT_EQ(sha256(text), text_of(v, "text_sha256"));
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer_.encode(text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    ASSERT_EQ(ids.size(), v.find("count")->as_uint());
    const auto first = ids_of(*v.find("first")), last = ids_of(*v.find("last"));
    EXPECT_EQ(std::vector(ids.begin(), ids.begin() + 16), first);
    EXPECT_EQ(std::vector(ids.end() - 16, ids.end()), last);
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), 4 * ids.size());
    EXPECT_EQ(sha256(bytes), text_of(v, "ids_sha256"));
    ++tried;
  }
  EXPECT_EQ(tried, 14u);
}

INSTANTIATE_TEST_SUITE_P(All, Vectors, testing::ValuesIn(kTokenizers), [](const auto& of) {
  std::string name = of.param;
  std::erase(name, '-');
  return name;
});

TEST(Golden, TextsOfTheOracle) {
  const BpeTokenizer tokenizer = BpeTokenizer::from_file(data_path("model/hf-nvfp4-ct/tokenizer.json"));
  const Json golden = Json::parse(read_text(data_path("golden/tokenizer.json")), "golden");
  std::size_t tried = 0;
  for (const Json& v : golden.find("texts")->as_array()) {
    SCOPED_TRACE(v.find("text")->dump());
    const auto ids = ids_of(*v.find("ids"));
    EXPECT_EQ(tokenizer.encode(text_of(v, "text")), ids);
    EXPECT_EQ(tokenizer.decode(ids), text_of(v, "decoded"));
    EXPECT_EQ(tokenizer.decode(ids, true), text_of(v, "decoded_skip_special"));
    ++tried;
  }
  EXPECT_GE(tried, 20u);
}

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace nibble::test
