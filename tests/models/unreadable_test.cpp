// Folders and files that are there and cannot be read: refused with the path and the system's reason, not
// taken for absent.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/engine/support.h"
#include "tests/models/folder.h"

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFiles[] = {"tokenizer.json",         "tokenizer_config.json", "chat_template.jinja",
                                  "generation_config.json", "hf_quant_config.json",  "config.json",
                                  "model.safetensors",      "model.safetensors.index.json"};

// What the load says; empty where it succeeds.
std::string refusal(const fs::path& dir) {
  try {
    Model::load(dir, Device::cpu(), options());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file) << e.what();
    return e.what();
  }
  return "";
}

void expect_mention(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

// No permission is in play: this holds for root too.
TEST(Unreadable, AFolderWhereAFileIsExpected) {
  for (const char* name : kFiles) {
    Folder f;
    f.write();
    fs::remove(f.path / name);
    fs::create_directory(f.path / name);
    expect_mention(refusal(f.path), {(f.path / name).string(), "expected a regular file"});
  }
}

// Permission bits do not bind root: root is somebody else while this lives.
class Unprivileged {
 public:
  Unprivileged() : was_root_(geteuid() == 0) {
    constexpr uid_t kNobody = 65534;
    if (was_root_ && seteuid(kNobody) != 0) was_root_ = false;
  }
  ~Unprivileged() {
    if (was_root_ && seteuid(0) != 0) std::abort();  // the tests behind would fail for no visible reason
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  bool was_root_;
};

class Permissions : public testing::Test {
 protected:
  void SetUp() override {
    f.write();
    for (const auto& entry : fs::directory_iterator(f.path)) ASSERT_EQ(chmod(entry.path().c_str(), 0644), 0);
    ASSERT_EQ(chmod(f.path.c_str(), 0755), 0);
    const Unprivileged here;
    if (geteuid() == 0) GTEST_SKIP() << "root may not become another user here, and no permission binds root";
    if (access_fails(f.path / "config.json")) {
      GTEST_SKIP() << "user " << geteuid() << " cannot reach " << f.path << " whatever its own permissions";
    }
  }
  void TearDown() override { chmod(f.path.c_str(), 0755); }

  static bool access_fails(const fs::path& path) {
    std::error_code failed;
    return !fs::exists(fs::status(path, failed));
  }
  std::string refused(const fs::path& of, mode_t mode) {
    EXPECT_EQ(chmod(of.c_str(), mode), 0) << of;
    const Unprivileged here;
    return refusal(f.path);
  }

  Folder f;
};

TEST_F(Permissions, AFileThatMayNotBeRead) {
  for (const char* name : kFiles) {
    const fs::path path = f.path / name;
    const bool added = !fs::exists(path);
    if (added) f.put(name, "{}");
    expect_mention(refused(path, 0), {path.string(), "Permission denied"});
    ASSERT_EQ(chmod(path.c_str(), 0644), 0);
    if (added) fs::remove(path);
  }
  EXPECT_EQ(refused(f.path / "config.json", 0644), "");
}

TEST_F(Permissions, AFolderThatMayNotBeSearched) {
  for (const mode_t mode : {0000, 0444}) {
    expect_mention(refused(f.path, mode), {f.path.string(), "Permission denied"});
  }
  EXPECT_EQ(refused(f.path, 0111), "");  // nothing lists it
}

}  // namespace
}  // namespace nibble::test
