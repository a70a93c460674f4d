// Every tokenizer case of the manifest of hostile files: verdict, words of the error, time, memory.
// Peak memory only ever rises in a process, so each case is a test that can run in one of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cctype>
#include <chrono>
#include <ostream>
#include <string>
#include <vector>

#include "nibble/error.h"
#include "tests/support/mention.h"
#include "tests/text/tokenizer_data.h"

namespace nibble::test {
namespace {

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

struct Case {
  Json json;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << text_of(c.json, "file");
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Json& c : read_lines("cases/hostile/manifest.jsonl")) {
    if (text_of(c, "kind") == "tokenizer") out.push_back({c});
  }
  return out;
}

void check_case(const Json& c) {
  const std::string path = data_path("cases/hostile/" + text_of(c, "file"));
  const Json* expect = c.find("expect");
  const bool may_load = c.find("valid")->is_null() || c.find("valid")->as_bool();
  const bool may_fail = c.find("valid")->is_null() || !c.find("valid")->as_bool();
  std::vector<std::string> words;
  for (const Json& word : c.find("mention")->as_array()) words.push_back(word.as_string());

  try {
    const BpeTokenizer tokenizer = BpeTokenizer::from_file(path);
    EXPECT_TRUE(may_load) << "accepted";
    if (const Json* probe = c.find("probe")) {
      const auto ids = tokenizer.encode(probe->as_string());
      if (expect != nullptr) {
        EXPECT_EQ(ids, ids_of(*expect->find("ids")));
        EXPECT_EQ(tokenizer.decode(ids), text_of(*expect, "decoded"));
      } else {
        EXPECT_EQ(tokenizer.decode(ids), probe->as_string());
      }
    }
  } catch (const Error& e) {
    EXPECT_TRUE(may_fail) << e.what();
    EXPECT_TRUE(e.code() == ErrorCode::bad_file || e.code() == ErrorCode::unsupported) << e.what();
    EXPECT_TRUE(mentions(e.what(), path, words)) << e.what();
    EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
  }
}

class HostileTokenizer : public testing::TestWithParam<Case> {};

TEST_P(HostileTokenizer, IsReadOrRefused) {
  const Json& c = GetParam().json;
  SCOPED_TRACE(text_of(c, "why"));
  const long before = peak_kilobytes();
  const auto start = std::chrono::steady_clock::now();
  check_case(c);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_LT(peak_kilobytes() - before, 256 * 1024);
}

std::string case_name(const testing::TestParamInfo<Case>& one) {
  std::string name = text_of(one.param.json, "file");
  for (char& ch : name) {
    if (std::isalnum(static_cast<unsigned char>(ch)) == 0) ch = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, HostileTokenizer, testing::ValuesIn(cases()), case_name);

TEST(HostileTokenizerManifest, HasAllCases) {
  EXPECT_EQ(cases().size(), 69u);
}

TEST(Mention, FollowsTheRule) {
  EXPECT_TRUE(mentions("a/model.json: bad VOCAB", "a/model.json", {"model", "vocab"}));
  EXPECT_FALSE(mentions("a/model.json: bad", "a/model.json", {"model"}));
  EXPECT_FALSE(mentions("the width is bad", "", {"id"}));
  EXPECT_FALSE(mentions("id2 and 2id", "", {"id"}));
  EXPECT_TRUE(mentions("the ids, x", "", {"id"}));
  EXPECT_FALSE(mentions("two indexes", "", {"index"}));
  EXPECT_TRUE(mentions("width and id", "", {"id"}));
  EXPECT_FALSE(mentions("anything", "", {}));
}

}  // namespace
}  // namespace nibble::test
