// Every case of data/cases/hostile for safetensors and GGUF files, indexes and configs: the verdict, what
// the error mentions, the tensors found, and limits on time, memory and files opened.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/gguf.h"
#include "core/checkpoint/json_file.h"
#include "core/checkpoint/quant_config.h"
#include "core/checkpoint/safetensors.h"
#include "models/model_type.h"
#include "models/qwen3_5_config.h"
#include "nibble/error.h"
#include "tests/support/mention.h"
#include "tests/support/sha256.h"

namespace nibble {
namespace {

const std::filesystem::path kHostile = std::filesystem::path(NIBBLE_TEST_DATA) / "cases/hostile";

struct Case {
  Json json;
  const std::string& file() const { return json.find("file")->as_string(); }
  const std::string& kind() const { return json.find("kind")->as_string(); }
};

std::vector<Case> cases() {
  std::vector<Case> out;
  std::ifstream manifest(kHostile / "manifest.jsonl");
  for (std::string line; std::getline(manifest, line);) {
    Case c{Json::parse(line, "manifest.jsonl")};
    if (c.kind() == "safetensors" || c.kind() == "index" || c.kind() == "config" ||
        c.kind() == "gguf") {
      out.push_back(std::move(c));
    }
  }
  return out;
}

Json describe(std::span<const TensorInfo> tensors) {
  Json::Object out;
  for (const TensorInfo& t : tensors) {
    Json::Array shape;
    for (const auto dim : t.shape) shape.emplace_back(dim);
    out.emplace_back(t.name, Json::Object{{"dtype", dtype_name(t.dtype)},
                                          {"shape", std::move(shape)},
                                          {"sha256", test::sha256(t.bytes)}});
  }
  return out;
}

Json read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Json metadata;
  if (file.metadata()) {
    Json::Object entries;
    for (const auto& [key, value] : *file.metadata()) entries.emplace_back(key, value);
    metadata = std::move(entries);
  }
  return Json::Object{{"metadata", std::move(metadata)}, {"tensors", describe(file.tensors())}};
}

Json read_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  Json::Object tensors;
  for (const GgufTensor& t : file.tensors()) {
    tensors.emplace_back(t.name, Json::Object{{"dims", Json::Array(t.dims.begin(), t.dims.end())},
                                              {"type", t.type->name},
                                              {"sha256", test::sha256(t.bytes)}});
  }
  return Json::Object{{"metadata", file.metadata()}, {"tensors", std::move(tensors)}};
}

Json read_index(const std::filesystem::path& path) {
  return Json::Object{{"tensors", describe(Checkpoint(path).tensors())}};
}

Json read_config(const std::filesystem::path& path) {
  constexpr std::string_view kKnown[] = {"qwen3_5", "qwen3_5_text"};
  const Json json = read_json_object(path);
  const JsonView view(json, path.string());
  model_type_of(view, kKnown);
  const Qwen3_5Config config = read_qwen3_5_config(view);
  QuantConfig::read(view);
  Json::Array full;
  for (std::size_t i = 0; i < config.full_attention.size(); ++i) {
    if (config.full_attention[i]) full.emplace_back(static_cast<std::int64_t>(i));
  }
  return Json::Object{{"hidden_size", config.hidden},
                      {"num_hidden_layers", config.layers},
                      {"full_attention_layers", std::move(full)}};
}

// Compares objects without regard to the order of keys.
bool same(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a == b;
  if (a.as_object().size() != b.as_object().size()) return false;
  for (const auto& [key, value] : a.as_object()) {
    const Json* other = b.find(key);
    if (other == nullptr || !same(value, *other)) return false;
  }
  return true;
}

// Sees whether somebody opens a file.
class OpenWatch {
 public:
  explicit OpenWatch(const std::filesystem::path& path) : fd_(inotify_init1(IN_NONBLOCK)) {
    ready_ = fd_ >= 0 && inotify_add_watch(fd_, path.c_str(), IN_OPEN) >= 0;
  }
  ~OpenWatch() {
    if (fd_ >= 0) close(fd_);
  }
  bool ready() const { return ready_; }
  bool opened() const {
    char buffer[4096];
    return ::read(fd_, buffer, sizeof buffer) > 0;
  }

 private:
  int fd_;
  bool ready_ = false;
};

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

class Hostile : public testing::TestWithParam<Case> {};

TEST_P(Hostile, IsReadOrRefused) {
  const Case& c = GetParam();
  const auto path = kHostile / c.file();
  ASSERT_TRUE(std::filesystem::exists(path)) << path;
  std::optional<OpenWatch> watch;
  if (const Json* forbidden = c.json.find("forbidden_read")) {
    watch.emplace(kHostile / "index" / forbidden->as_string());
    ASSERT_TRUE(watch->ready());
  }
  const long before = peak_kib();
  const auto start = std::chrono::steady_clock::now();
  std::string complaint;
  Json found;
  try {
    found = c.kind() == "safetensors" ? read_safetensors(path)
            : c.kind() == "index"     ? read_index(path)
            : c.kind() == "gguf"      ? read_gguf(path)
                                      : read_config(path);
  } catch (const Error& e) {
    complaint = e.what();
    ASSERT_NE(e.code(), ErrorCode::internal) << complaint;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5.0);
  EXPECT_LT(peak_kib() - before, 256 * 1024);
  EXPECT_FALSE(watch && watch->opened());

  const Json& valid = *c.json.find("valid");
  const std::string why = c.json.find("why")->as_string();
  if (valid.is_bool()) {
    EXPECT_EQ(complaint.empty(), valid.as_bool()) << why << "\n" << complaint;
  }
  if (complaint.empty()) {
    if (const Json* expect = c.json.find("expect"); expect != nullptr && !expect->is_null()) {
      EXPECT_TRUE(same(found, *expect)) << found.dump() << "\n" << expect->dump();
    }
    return;
  }
  std::vector<std::string> words;
  for (const Json& word : c.json.find("mention")->as_array()) words.push_back(word.as_string());
  EXPECT_TRUE(test::mentions(complaint, path.string(), words)) << why << "\n" << complaint;
}

std::string case_name(const testing::TestParamInfo<Case>& one) {
  std::string name = one.param.file();
  for (char& ch : name) {
    if (std::isalnum(static_cast<unsigned char>(ch)) == 0) ch = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Hostile, testing::ValuesIn(cases()), case_name);

TEST(HostileManifest, HasAllCases) {
  EXPECT_EQ(cases().size(), 352u);
}

}  // namespace
}  // namespace nibble
