// support.h: what the engine's tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "nibble/error.h"
#include "tests/golden/fixture.h"

namespace nibble::test {

inline Model load(const LoadOptions& how, const Device& on = Device::cpu()) {
  return Model::load(data("model/hf-nvfp4-ct"), on, how);
}

inline LoadOptions options(int sequences = 1, int step_tokens = 1024, std::int64_t kv_tokens = 4096) {
  LoadOptions how;
  how.max_sequences = sequences;
  how.step_tokens = step_tokens;
  how.kv_tokens = kv_tokens;
  return how;
}

inline Sampling tokens(int n) {
  Sampling how;
  how.max_new_tokens = n;
  how.ignore_model_stop_tokens = true;
  return how;
}

inline HostState state_of(Session& s) {
  return s.impl().model->engine->export_state(*s.impl().sequence);
}

inline bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline void expect_same_state(const HostState& a, const HostState& b, const std::string& what) {
  ASSERT_EQ(a.delta.size(), b.delta.size());
  ASSERT_EQ(a.kv.size(), b.kv.size());
  for (std::size_t i = 0; i < a.delta.size(); ++i) {
    EXPECT_TRUE(same_bytes(a.delta[i].s, b.delta[i].s)) << what << ": delta layer " << i;
    EXPECT_TRUE(same_bytes(a.delta[i].conv, b.delta[i].conv)) << what << ": conv of layer " << i;
  }
  for (std::size_t i = 0; i < a.kv.size(); ++i) {
    EXPECT_TRUE(same_bytes(a.kv[i].k, b.kv[i].k)) << what << ": keys of layer " << i;
    EXPECT_TRUE(same_bytes(a.kv[i].v, b.kv[i].v)) << what << ": values of layer " << i;
  }
}

inline std::vector<std::int32_t> read_all(TokenStream stream) {
  std::vector<std::int32_t> out;
  for (const Piece& p : stream) {
    if (p.token >= 0) out.push_back(p.token);
  }
  return out;
}

inline std::vector<std::int32_t> ids_of(const std::string& prompt) {
  return Golden(data("golden/prompts.safetensors")).i32(prompt + ".ids");
}

// What a prompt and an answer leave.
struct Result {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  HostState state;
};
inline Result prefill(Model& model, std::span<const std::int32_t> prompt, int answer = 1) {
  Session session = model.new_session();
  Trace trace(model, {kLogits});
  Result run;
  run.tokens = read_all(session.generate(prompt, tokens(answer)));
  run.logits = trace.ops.at(kLogits).values;
  run.state = state_of(session);
  return run;
}

inline std::vector<std::int32_t> long_prompt(std::size_t n) {
  static const Golden golden(data("golden/prompts.safetensors"));
  auto ids = golden.i32("long700.ids");
  ids.resize(n);
  return ids;
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace nibble::test
