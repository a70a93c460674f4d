// Bad input through the front door: Model::load says file, tensor, expected and found.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

std::string refusal(const std::filesystem::path& dir) {
  return message_of([&] { Model::load(dir, Device::cpu(), options()); });
}

void expect_says(const std::string& message, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

constexpr const char* kQ = "model.language_model.layers.3.self_attn.q_proj.weight_packed";

TEST(Refusal, NoFolder) {
  expect_says(refusal("/nowhere/at/all"), {"/nowhere/at/all", "config.json", "found nothing"});
  expect_says(refusal(data("model/hf-nvfp4-ct/config.json")), {"expected a folder", "found a file"});
  Folder f;
  f.put("model.gguf", "GGUF");
  expect_says(refusal(f.path / "model.gguf"), {"model.gguf", "header", "truncated"});
}

TEST(Refusal, TruncatedFile) {
  Folder f;
  f.write();
  const std::string whole = f.get("model.safetensors");
  std::uint64_t header;
  std::memcpy(&header, whole.data(), sizeof header);
  const std::uint64_t held = whole.size() - 8 - header;  // bytes of tensors
  f.put("model.safetensors", whole.substr(0, whole.size() - 100));
  expect_says(refusal(f.path), {"model.safetensors", "data_offsets [", std::to_string(held) + "] end beyond",
                                "truncated, it holds " + std::to_string(held - 100) + " bytes"});
  f.put("model.safetensors", whole.substr(0, 5));
  expect_says(refusal(f.path),
              {"model.safetensors", "expected a header length of 8 bytes, the file has 5"});
}

TEST(Refusal, HeaderLongerThanTheFile) {
  Folder f;
  f.write();
  std::string file = f.get("model.safetensors");
  const std::uint64_t length = file.size();
  std::memcpy(file.data(), &length, sizeof length);
  f.put("model.safetensors", file);
  const std::string size = std::to_string(length);
  expect_says(refusal(f.path), {"model.safetensors", "header length " + size,
                                "beyond the end of the file (" + size + " bytes)"});
}

TEST(Refusal, OverlappingAndOutOfRangeOffsets) {
  Folder f;
  f.write();
  const std::string file = f.get("model.safetensors");
  std::uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  // The last entry of the header made to begin one byte early, and to end one byte late.
  const auto change = [&](int begin, int end) {
    std::string header = file.substr(8, length);
    const auto at = header.find('[', header.rfind("\"data_offsets\"")) + 1;
    const auto comma = header.find(',', at), close = header.find(']', at);
    const auto first = std::stoull(header.substr(at, comma - at)) + static_cast<std::uint64_t>(begin);
    const auto last = std::stoull(header.substr(comma + 1, close - comma - 1)) + static_cast<std::uint64_t>(end);
    header = header.substr(0, at) + std::to_string(first) + "," + std::to_string(last) + header.substr(close);
    const std::uint64_t size = header.size();
    std::string prefix(8, '\0');
    std::memcpy(prefix.data(), &size, sizeof size);
    f.put("model.safetensors", prefix + header + file.substr(8 + length));
    return refusal(f.path);
  };
  expect_says(change(-1, -1), {"model.safetensors", "data_offsets begin at", "before it end at", "overlap"});
  expect_says(change(1 << 30, 1 << 30), {"model.safetensors", "data_offsets [", "end beyond the data", "it holds"});
}

TEST(Refusal, WrongShapeAndDtype) {
  Folder f;
  auto& q = f.tensors.at(kQ);
  q.shape = {q.shape[0] / 2, q.shape[1] * 2};
  f.write();
  expect_says(refusal(f.path), {kQ, "[512, 128]", "[256, 256]"});
  q.shape = {512, 128};
  q.dtype = DType::i8;
  f.write();
  expect_says(refusal(f.path), {kQ, "U8", "I8"});
}

TEST(Refusal, MissingTensorSaysWhichWereExpected) {
  Folder f;
  f.tensors.erase(kQ);
  f.write();
  expect_says(refusal(f.path), {"layers.3.self_attn.q_proj", "weight_packed", "weight"});
  Folder g;
  g.tensors.erase("model.language_model.layers.0.linear_attn.A_log");
  g.write();
  expect_says(refusal(g.path), {"layers.0.linear_attn.A_log"});
}

TEST(Refusal, TensorThatNobodyKnows) {
  Folder f;
  f.tensors["model.language_model.layers.0.mystery.weight"] = {DType::f32, {1}, std::string(4, 'x')};
  f.write();
  expect_says(refusal(f.path), {"layers.0.mystery.weight"});
}

TEST(Refusal, UnknownArchitectureListsThoseKnown) {
  Folder f;
  f.config.set("model_type", "qwen99");
  f.write();
  expect_says(refusal(f.path), {"config.json", "model_type", "qwen99", "qwen3_5"});
}

TEST(Refusal, UnknownQuantisationMethod) {
  Folder f;
  Json q = *f.config.find("quantization_config");
  q.set("quant_method", "zip4");
  f.config.set("quantization_config", q);
  f.write();
  expect_says(refusal(f.path), {"quant_method", "zip4", "compressed-tensors, modelopt"});
}

TEST(Refusal, AbsentShard) {
  Folder f;
  f.write();
  Json::Object map;
  for (const auto& [name, entry] : f.tensors) map.emplace_back(name, "model-00001-of-00002.safetensors");
  map.front().second = "model-00002-of-00002.safetensors";
  f.put("model.safetensors.index.json", Json(Json::Object{{"weight_map", std::move(map)}}).dump());
  std::filesystem::rename(f.path / "model.safetensors", f.path / "model-00001-of-00002.safetensors");
  expect_says(refusal(f.path), {"model-00002-of-00002.safetensors", "shard named by model.safetensors.index.json for",
                                f.tensors.begin()->first, "does not exist"});
}

TEST(Refusal, JsonTooDeep) {
  Folder f;
  f.write();
  f.put("config.json", "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}");
  expect_says(refusal(f.path), {"config.json", "JSON nested deeper than 64"});
}

TEST(Refusal, TokenizerWithoutMerges) {
  Folder f;
  f.write();
  Json tokenizer = Json::parse(f.get("tokenizer.json"), "t");
  Json model = *tokenizer.find("model");
  std::erase_if(model.as_object(), [](const Json::Member& m) { return m.first == "merges"; });
  tokenizer.set("model", model);
  f.put("tokenizer.json", tokenizer.dump());
  expect_says(refusal(f.path), {"tokenizer.json", "merges"});
}

TEST(Refusal, TokenizerLargerThanTheVocabulary) {
  Folder f;
  f.write();
  Json tokenizer = Json::parse(f.get("tokenizer.json"), "t");
  Json added = *tokenizer.find("added_tokens");
  Json one = added.as_array().back();
  one.set("id", 5000);
  one.set("content", "<|far|>");
  added.as_array().push_back(one);
  tokenizer.set("added_tokens", added);
  f.put("tokenizer.json", tokenizer.dump());
  expect_says(refusal(f.path), {"tokenizer", "5000"});
}

TEST(Refusal, TemplateErrorsHaveALine) {
  Folder f;
  f.write();
  f.put("chat_template.jinja", "{{ bos_token }}\n{% for m in messages %}\n{{ m.content }\n{% endfor %}");
  expect_says(refusal(f.path), {"chat_template.jinja", "line 3"});
  f.put("chat_template.jinja", "\n\n{{ raise_exception('only two roles') }}");
  Model model = Model::load(f.path, Device::cpu(), options());
  expect_says(message_of([&] { model.render_chat("hello"); }), {"line 3", "only two roles"});
}

TEST(Refusal, StopTokensOutOfRange) {
  Folder f;
  f.write();
  f.put("generation_config.json", R"({"eos_token_id": [4093, "no"]})");
  expect_says(refusal(f.path), {"generation_config.json", "eos_token_id", "\"no\""});
}

TEST(Refusal, NothingStaysHalfLoaded) {
  Folder f;
  f.write();
  LoadOptions how = options();
  int calls = 0;
  how.on_progress = [&](const LoadProgress& p) {
    EXPECT_LE(p.done, p.total);
    return ++calls < 10;
  };
  expect_says(message_of([&] { Model::load(f.path, Device::cpu(), how); }), {"cancel"});
  EXPECT_EQ(calls, 10);
  EXPECT_NO_THROW(Model::load(f.path, Device::cpu(), options()));
}

}  // namespace
}  // namespace nibble::test
