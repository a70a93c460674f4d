// GGUF files that are sound as containers but no model: refused with file, tensor or key, expected,
// found.
#include <gtest/gtest.h>

#include <functional>

#include "tests/checkpoint/support.h"
#include "tests/engine/support.h"
#include "tests/gguf/converted.h"

namespace nibble::test {
namespace {

struct Case {
  const char* name;
  ErrorCode code;
  std::function<void(GgufWriter&)> spoil;
  std::vector<std::string> says;
};

std::string named(const Case& c) {
  return c.name;
}

const GgufWriter& whole() {
  static const GgufWriter w = converted();
  return w;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Architecture",
       ErrorCode::unsupported,
       [](GgufWriter& w) { w.text("general.architecture", "llama"); },
       {"general.architecture", "\"llama\"", "known are qwen35"}},
      {"NoArchitecture",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.remove("general.architecture"); },
       {"general.architecture: missing"}},
      {"Format",
       ErrorCode::unsupported,
       [](GgufWriter& w) {
         auto& t = w.tensor("blk.0.ffn_up.weight");
         t.type = 12;
         t.bytes.assign(256 / 256 * 144 * 768, '\0');
       },
       {"blk.0.ffn_up.weight", "expected F32, F16, BF16, Q8_0 or NVFP4", "found Q4_K"}},
      {"UnknownTensor",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.tensors.push_back({"rope_freqs.weight", 0, {8}, std::string(32, '\0')});
       },
       {"rope_freqs.weight", "expected a tensor of a qwen35 model"}},
      {"MissingTensor",
       ErrorCode::not_found,
       [](GgufWriter& w) { w.drop_tensor("blk.3.attn_q.weight"); },
       {"blk.3.attn_q.weight"}},
      {"MissingNorm",
       ErrorCode::not_found,
       [](GgufWriter& w) { w.drop_tensor("blk.2.attn_norm.weight"); },
       {"blk.2.attn_norm.weight"}},
      {"ShapeOfNvfp4",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.tensor("blk.0.ffn_up.weight").dims = {768, 256};
       },
       {"blk.0.ffn_up.weight", "expected shape [768, 256]", "found NVFP4 [256, 768]"}},
      {"ShapeOfVector",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         auto& t = w.tensor("blk.0.attn_norm.weight");
         t.dims = {128};
         t.bytes.resize(512);
       },
       {"blk.0.attn_norm.weight", "[256]", "found F32 [128]"}},
      {"HeadsOfQkv",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.tensor("blk.0.attn_qkv.weight").dims = {512, 256};
       },
       {"blk.0.attn_qkv.weight", "expected 512 rows in heads", "[512, 256]"}},
      {"VectorAsQ8_0",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         auto& t = w.tensor("blk.0.attn_norm.weight");
         t.type = gguf::kQ8_0;
         t.bytes.resize(256 / 32 * 34);
       },
       {"blk.0.attn_norm.weight", "found Q8_0 [256]"}},
      {"SignedBlockScale",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.tensor("blk.1.ffn_down.weight").bytes[36] = '\x81'; },
       {"tiny.gguf", "blk.1.ffn_down.weight"}},
      {"BlockScaleThatIsNoNumber",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.tensor("blk.0.attn_qkv.weight").bytes[0] = '\x7f'; },
       {"blk.0.attn_qkv.weight"}},
      {"TensorScaleThatIsNoNumber",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.tensor("blk.1.ffn_down.scale").bytes = std::string("\0\0\xc0\x7f", 4);
       },
       {"blk.1.ffn_down.scale", "expected finite"}},
      {"NegativeTensorScale",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.tensor("blk.1.ffn_down.scale").bytes = std::string("\0\0\x80\xbf", 4);
       },
       {"blk.1.ffn_down.scale", "a scale of at least 0"}},
      {"NormThatIsNoNumber",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.tensor("output_norm.weight").bytes.replace(0, 4, std::string("\0\0\x80\x7f", 4));
       },
       {"output_norm.weight", "inf at [0]"}},
      {"NoSize",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.remove("qwen35.embedding_length"); },
       {"qwen35.embedding_length: missing"}},
      {"SizeIsText",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.text("qwen35.block_count", "8"); },
       {"qwen35.block_count", "expected an integer", "found string \"8\""}},
      {"HugeSize",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.u32("qwen35.ssm.inner_size", 0xffffffffu); },
       {"qwen35.ssm.inner_size"}},
      {"HeadsDoNotDivide",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.u32("qwen35.ssm.group_count", 3); },
       {"qwen35.ssm.time_step_rank", "multiple of 3", "found 8"}},
      {"LayerList",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.flags("qwen35.attention.recurrent_layers", {true}); },
       {"qwen35.attention.recurrent_layers", "8 entries", "found 1"}},
      {"RopeScaling",
       ErrorCode::unsupported,
       [](GgufWriter& w) { w.text("qwen35.rope.scaling.type", "yarn"); },
       {"qwen35.rope.scaling.type", "expected none", "\"yarn\""}},
      {"TwoDrafts",
       ErrorCode::unsupported,
       [](GgufWriter& w) { w.u32("qwen35.nextn_predict_layers", 2); },
       {"qwen35.nextn_predict_layers", "found 2"}},
      {"TokenizerKind",
       ErrorCode::unsupported,
       [](GgufWriter& w) { w.text("tokenizer.ggml.model", "llama"); },
       {"tokenizer.ggml.model", "gpt2", "\"llama\""}},
      {"TokenizerSplit",
       ErrorCode::unsupported,
       [](GgufWriter& w) { w.text("tokenizer.ggml.pre", "default"); },
       {"tokenizer.ggml.pre", "qwen35", "\"default\""}},
      {"TokenTypes",
       ErrorCode::bad_file,
       [](GgufWriter& w) {
         w.i32s("tokenizer.ggml.token_type", {1, 1});
       },
       {"tokenizer.ggml.token_type", "4096 entries", "found 2"}},
      {"Merges",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.texts("tokenizer.ggml.merges", {"h e l"}); },
       {"tiny.gguf", "merges[0]", "\"h e l\""}},
      {"EndToken",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.u32("tokenizer.ggml.eos_token_id", 4096); },
       {"tokenizer.ggml.eos_token_id", "from 0 to 4095", "4096"}},
      {"BeginToken",
       ErrorCode::unsupported,
       [](GgufWriter& w) { w.flag("tokenizer.ggml.add_bos_token", true); },
       {"tokenizer.ggml.add_bos_token", "expected false"}},
      {"Template",
       ErrorCode::bad_file,
       [](GgufWriter& w) { w.text("tokenizer.chat_template", "{% if %}"); },
       {"tokenizer.chat_template"}},
  };
  return all;
}

class GgufRefusal : public testing::TestWithParam<Case> {};

TEST_P(GgufRefusal, SaysWhy) {
  const Case& c = GetParam();
  GgufWriter w = whole();
  c.spoil(w);
  const TemporaryFolder folder;
  const auto path = folder / "tiny.gguf";
  w.write(path);
  const std::string why = complaint([&] { Model::load(path, Device::cpu(), options()); }, c.code);
  ASSERT_NE(why, "") << "it was loaded";
  EXPECT_NE(why.find(path.string()), std::string::npos) << why;
  for (const std::string& part : c.says)
    EXPECT_NE(why.find(part), std::string::npos) << part << "\n" << why;
}

INSTANTIATE_TEST_SUITE_P(All, GgufRefusal, testing::ValuesIn(cases()),
                         [](const auto& one) { return named(one.param); });

std::string refusal(const std::filesystem::path& path, ErrorCode code) {
  return complaint([&] { Model::load(path, Device::cpu(), options()); }, code);
}

void expect_says(const std::string& why, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(why.find(part), std::string::npos) << part << "\n" << why;
}

TEST(GgufShards, OneIsMissing) {
  const TemporaryFolder folder;
  const auto first = whole().write_shards(folder.path(), 3);
  std::filesystem::remove(folder / "m-00002-of-00003.gguf");
  expect_says(refusal(first, ErrorCode::not_found), {"m-00002-of-00003.gguf", "shard 2 of 3"});
}

TEST(GgufShards, TwoHaveChangedPlaces) {
  const TemporaryFolder folder;
  const auto first = whole().write_shards(folder.path(), 3);
  std::filesystem::rename(folder / "m-00002-of-00003.gguf", folder / "x");
  std::filesystem::rename(folder / "m-00003-of-00003.gguf", folder / "m-00002-of-00003.gguf");
  std::filesystem::rename(folder / "x", folder / "m-00003-of-00003.gguf");
  expect_says(refusal(first, ErrorCode::bad_file), {"m-00002-of-00003.gguf", "split.no"});
}

TEST(GgufShards, NameDoesNotSayWhereTheOthersAre) {
  const TemporaryFolder folder;
  const auto first = whole().write_shards(folder.path(), 2);
  std::filesystem::rename(first, folder / "renamed.gguf");
  expect_says(refusal(folder / "renamed.gguf", ErrorCode::bad_file),
              {"split.count", "NAME-00001-of-NNNNN.gguf"});
}

TEST(GgufShards, OneTensorInTwo) {
  const TemporaryFolder folder;
  GgufWriter w = whole();
  w.tensors.push_back(w.tensors.front());
  expect_says(refusal(w.write_shards(folder.path(), 2), ErrorCode::bad_file),
              {"m-00002-of-00002.gguf", w.tensors.front().name.c_str(), "duplicate"});
}

TEST(GgufRefusals, NoFileAndNoGguf) {
  const TemporaryFolder folder;
  EXPECT_NE(refusal(folder / "absent.gguf", ErrorCode::not_found), "");
  GgufWriter().write(folder / "empty.gguf");
  expect_says(refusal(folder / "empty.gguf", ErrorCode::bad_file),
              {"general.architecture: missing"});
}

}  // namespace
}  // namespace nibble::test
