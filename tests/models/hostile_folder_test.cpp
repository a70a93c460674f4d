// Folders that look whole and are not: values that are none, links that lead nowhere, files that an
// index does not know. Each is refused with the file, what was expected and what was found.
#include <gtest/gtest.h>

#include "tests/engine/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

struct Refused {
  ErrorCode code = ErrorCode::internal;
  std::string text = "nothing was thrown";
};

Refused refusal(const fs::path& dir) {
  try {
    Model::load(dir, Device::cpu(), options());
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const std::exception& e) {
    return {ErrorCode::internal, std::string("no Error: ") + e.what()};
  }
  return {};
}

void expect_refused(const Folder& f, ErrorCode code, std::initializer_list<const char*> parts) {
  const Refused r = refusal(f.path);
  EXPECT_EQ(r.code, code) << r.text;
  for (const char* part : parts) {
    EXPECT_NE(r.text.find(part), std::string::npos) << "no \"" << part << "\" in: " << r.text;
  }
}

const std::string kLayer = "model.language_model.layers.";

TEST(HostileFolder, ValuesThatAreNotFinite) {
  struct Case {
    std::string tensor;
    std::size_t at;
    std::string bytes, found;
  };
  const std::string nan16("\xc0\x7f", 2), inf16("\x80\x7f", 2);
  const Case cases[] = {
      {kLayer + "3.self_attn.q_proj.weight_scale", 18, "\x7f", "found NaN at [1, 2]"},
      {kLayer + "0.mlp.up_proj.weight_scale", 0, "\xff", "found NaN at [0, 0]"},
      {kLayer + "0.mlp.up_proj.weight_scale", 3, "\xb8", "found a negative one at [0, 3]"},
      {"model.language_model.embed_tokens.weight", 2 * 256, nan16, "found NaN at [1, 0]"},
      {"lm_head.weight", 2, inf16, "found inf at [0, 1]"},
      {"model.language_model.norm.weight", 6, nan16, "found NaN at [3]"},
      {kLayer + "1.input_layernorm.weight", 0, inf16, "found inf at [0]"},
      {kLayer + "0.linear_attn.conv1d.weight", 2 * 5, nan16, "found NaN at [1, 0, 1]"},
      {kLayer + "0.linear_attn.dt_bias", 2, inf16, "found inf at [1]"},
  };
  for (const Case& c : cases) {
    Folder f;
    auto& entry = f.tensors.at(c.tensor);
    ASSERT_EQ(entry.dtype, c.bytes.size() == 2 ? DType::bf16 : DType::f8_e4m3) << c.tensor;
    entry.bytes.replace(c.at, c.bytes.size(), c.bytes);
    f.write();
    expect_refused(f, ErrorCode::bad_file,
                   {"model.safetensors", ("\"" + c.tensor + "\": expected ").c_str(), c.found.c_str()});
  }
}

TEST(HostileFolder, LinksThatLeadNowhere) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "hf_quant_config.json", "config.json",
                           "model.safetensors", "model.safetensors.index.json"}) {
    Folder f;
    f.write();
    fs::remove(f.path / name);
    fs::create_symlink(name, f.path / name);  // to itself
    expect_refused(f, ErrorCode::bad_file, {name});
    fs::remove(f.path / name);
    fs::create_symlink("gone", f.path / name);
    const Refused r = refusal(f.path);
    EXPECT_TRUE(r.code == ErrorCode::bad_file || r.code == ErrorCode::not_found) << r.text;
    EXPECT_NE(r.text.find(name), std::string::npos) << r.text;
  }
  Folder f;
  fs::create_symlink("circle", f.path / "circle");
  const Refused r = refusal(f.path / "circle");
  EXPECT_EQ(r.code, ErrorCode::bad_file) << r.text;
  EXPECT_NE(r.text.find("expected a folder"), std::string::npos) << r.text;
}

TEST(HostileFolder, TemplateFiles) {
  Folder f;
  f.write();
  f.put("chat_template.jinja", std::string("{{ 'a' }}\0b", 11));
  expect_refused(f, ErrorCode::bad_file, {"chat_template.jinja", "found a NUL at byte 9"});
  f.put("chat_template.jinja", "\xEF\xBB\xBF{{ messages[0].content }}!");
  EXPECT_EQ(Model::load(f.path, Device::cpu(), options()).render_chat("hi"), "hi!");
  // More than memory holds: only its size can have been looked at.
  fs::resize_file(f.path / "chat_template.jinja", std::uintmax_t{1} << 41);
  expect_refused(f, ErrorCode::bad_file,
                 {"chat_template.jinja", "expected at most 1048576 bytes", "found 2199023255552"});
}

TEST(HostileFolder, TensorsThatTheIndexDoesNotPlace) {
  Folder f;
  f.write();
  const auto index = [&](const std::string& without) {
    Json::Object map;
    for (const auto& [name, entry] : f.tensors) {
      if (name != without) map.emplace_back(name, "model.safetensors");
    }
    f.put("model.safetensors.index.json",
          Json(Json::Object{{"weight_map", std::move(map)}}).dump());
  };
  index("");
  EXPECT_EQ(refusal(f.path).text, "nothing was thrown");
  const std::string scale = kLayer + "0.mlp.gate_proj.weight_scale";
  index(scale);
  expect_refused(f, ErrorCode::bad_file,
                 {"model.safetensors: tensor", scale.c_str(), "does not name this one"});
}

TEST(HostileFolder, AHeadBesideTiedEmbeddings) {
  Folder f;
  f.config.set("tie_word_embeddings", true);
  f.write();
  expect_refused(f, ErrorCode::bad_file, {"tie_word_embeddings", "lm_head.weight", "found true"});
}

TEST(HostileFolder, MessagesAndStopTextsAreUtf8) {
  const Model model = load(options());
  const ChatMessage messages[] = {{"user", "fine"}, {"user", "no\xff"}};
  const std::string chat = message_of([&] { model.render_chat(messages); });
  EXPECT_NE(chat.find("message 2: its text is not UTF-8 at byte 2"), std::string::npos) << chat;
  const std::string extra =
      message_of([&] { model.render_chat(std::span(messages, 1), {true, R"({"messages": []})"}); });
  EXPECT_NE(extra.find("found \"messages\""), std::string::npos) << extra;
  Session session = model.new_session();
  Sampling how = tokens(1);
  how.stop = {"a\xc3"};
  const std::string stop = message_of([&] { session.generate(long_prompt(3), how); });
  EXPECT_NE(stop.find("not UTF-8 at byte 1"), std::string::npos) << stop;
}

}  // namespace
}  // namespace nibble::test
