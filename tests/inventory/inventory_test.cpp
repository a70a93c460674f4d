// tests/data is self-contained, small, and holds equal files once.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace nibble::test {
namespace {

namespace fs = std::filesystem;

const fs::path kData = NIBBLE_TEST_DATA;
constexpr std::uint64_t kLimit = 40'000'000;

std::vector<fs::path> regular_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(kData)) {
    if (!entry.is_symlink() && entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TestData, StaysUnderFortyMegabytes) {
  std::uint64_t total = 0;
  for (const fs::path& file : regular_files()) total += fs::file_size(file);
  EXPECT_LT(total, kLimit);
  EXPECT_GT(total, 10'000'000u) << "the checkpoints are missing";
  RecordProperty("bytes", std::to_string(total));
}

TEST(TestData, LinksAreRelativeAndLeadToFilesInside) {
  int links = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kData)) {
    if (!entry.is_symlink()) continue;
    const fs::path target = fs::read_symlink(entry.path());
    EXPECT_TRUE(target.is_relative()) << entry.path();
    ASSERT_TRUE(fs::exists(entry.path())) << entry.path() << " leads nowhere: " << target;
    const fs::path inside = fs::relative(fs::canonical(entry.path()), fs::canonical(kData));
    EXPECT_NE(*inside.begin(), "..") << entry.path() << " leads out of tests/data";
    ++links;
  }
  EXPECT_GT(links, 0);
}

TEST(TestData, EqualFilesAreStoredOnce) {
  std::map<std::uint64_t, std::vector<fs::path>> by_size;
  for (const fs::path& file : regular_files()) {
    by_size[fs::file_size(file)].push_back(file);
  }
  for (const auto& [size, files] : by_size) {
    if (files.size() < 2) continue;
    std::map<std::string, fs::path> first;
    for (const fs::path& file : files) {
      const auto [known, is_new] = first.try_emplace(contents(file), file);
      EXPECT_TRUE(is_new) << file << " equals " << known->second << ": make it a relative link";
    }
  }
}

}  // namespace
}  // namespace nibble::test
