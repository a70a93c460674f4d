// fixture.h: one loaded checkpoint for all tests of the C ABI, and handles that free themselves.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "nibble/nibble.h"

namespace nibble::test {

inline const std::string kData = NIBBLE_TEST_DATA;
inline const std::string kCheckpoint = kData + "/model/hf-nvfp4-ct";

template <class T, void (*Free)(T*)>
struct Freer {
  void operator()(T* p) const { Free(p); }
};
using ModelHandle = std::unique_ptr<nibble_model, Freer<nibble_model, nibble_model_free>>;
using SessionHandle = std::unique_ptr<nibble_session, Freer<nibble_session, nibble_session_free>>;
using StreamHandle = std::unique_ptr<nibble_stream, Freer<nibble_stream, nibble_stream_free>>;
using MarkHandle = std::unique_ptr<nibble_mark, Freer<nibble_mark, nibble_mark_free>>;

inline std::string take(char* text) {
  std::string copy = text ? text : "";
  nibble_free_string(text);
  return copy;
}

inline Json golden_prompts() {
  std::ifstream file(kData + "/golden/prompts.json", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return Json::parse(text, "prompts.json");
}

inline ModelHandle load(std::int64_t kv_tokens, std::int32_t max_sequences) {
  nibble_load_options o;
  nibble_load_options_init(&o, sizeof o);
  o.kv_tokens = kv_tokens;
  o.max_sequences = max_sequences;
  nibble_model* model = nullptr;
  EXPECT_EQ(nibble_model_load(kCheckpoint.c_str(), &o, &model), NIBBLE_OK) << nibble_last_error();
  return ModelHandle(model);
}

class CApi : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = load(512, 2);
    ASSERT_TRUE(model_);
  }

  SessionHandle session() {
    nibble_session* s = nullptr;
    EXPECT_EQ(nibble_session_create(model_.get(), &s), NIBBLE_OK) << nibble_last_error();
    return SessionHandle(s);
  }

  std::vector<std::int32_t> ids(const std::string& text) {
    std::size_t n = 0;
    EXPECT_EQ(nibble_tokenize(model_.get(), text.data(), text.size(), 1, nullptr, 0, &n),
              NIBBLE_OK);
    std::vector<std::int32_t> out(n);
    EXPECT_EQ(nibble_tokenize(model_.get(), text.data(), text.size(), 1, out.data(), n, &n),
              NIBBLE_OK);
    return out;
  }

  static StreamHandle generate(nibble_session* s, const std::vector<std::int32_t>& prompt,
                               int max_new_tokens) {
    nibble_sampling how;
    nibble_sampling_init(&how, sizeof how);
    how.max_new_tokens = max_new_tokens;
    how.ignore_model_stop_tokens = 1;
    nibble_stream* stream = nullptr;
    EXPECT_EQ(nibble_generate(s, prompt.data(), prompt.size(), &how, &stream), NIBBLE_OK)
        << nibble_last_error();
    return StreamHandle(stream);
  }

  // Text of the next `count` pieces; all of them for -1.
  static std::string read(nibble_stream* stream, int count = -1) {
    std::string all;
    const char* text = nullptr;
    std::size_t length = 0;
    for (int i = 0; i != count; ++i) {
      const nibble_status status = nibble_stream_next(stream, nullptr, &text, &length);
      if (status == NIBBLE_END) break;
      EXPECT_EQ(status, NIBBLE_OK) << nibble_last_error();
      if (status != NIBBLE_OK) break;
      EXPECT_EQ(text[length], '\0');
      all.append(text, length);
    }
    return all;
  }

  static std::vector<std::int32_t> tokens(const nibble_session* s) {
    std::size_t n = 0;
    EXPECT_EQ(nibble_session_tokens(s, nullptr, 0, &n), NIBBLE_OK);
    std::vector<std::int32_t> out(n);
    EXPECT_EQ(nibble_session_tokens(s, out.data(), n, &n), NIBBLE_OK);
    return out;
  }

  ModelHandle model_;
};

}  // namespace nibble::test
