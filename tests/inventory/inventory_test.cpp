// tests/data is self-contained, small, and holds equal files once.
#include <gtest/gtest.h>

#include <algorithm>
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
// Below this, a link saves nothing worth reading about (git stores equal contents once anyway).
constexpr std::uint64_t kSmall = 65'536;

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

TEST(TestData, LargeEqualFilesAreStoredOnce) {
  std::map<std::uint64_t, std::vector<fs::path>> by_size;
  for (const fs::path& file : regular_files()) {
    if (fs::file_size(file) >= kSmall) by_size[fs::file_size(file)].push_back(file);
  }
  for (const auto& [size, files] : by_size) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      for (std::size_t j = i + 1; j < files.size(); ++j) {
        EXPECT_NE(contents(files[i]), contents(files[j]))
            << files[j] << " equals " << files[i] << ": make it a relative link";
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
