#include "core/base/files.h"

#include <system_error>

#include "core/base/mapped_file.h"
#include "nibble/error.h"

namespace nibble {
namespace fs = std::filesystem;

bool file_present(const fs::path& path) {
  std::error_code failed;
  const fs::file_status target = fs::status(path, failed);
  if (fs::exists(target)) return true;
  const auto refuse = [&](const std::string& found) {
    throw Error(ErrorCode::bad_file, path.string() + ": expected a file, found " + found);
  };
  if (target.type() != fs::file_type::not_found) refuse(failed.message());
  std::error_code ignored;
  if (fs::is_symlink(fs::symlink_status(path, ignored))) {
    const fs::path to = fs::read_symlink(path, ignored);
    refuse("a link to " + to.string() + ", where nothing is");
  }
  return false;
}

void expect_folder(const fs::path& path, const std::string& who, const std::string& wanted) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  const auto refuse = [&](ErrorCode code, const std::string& found) {
    throw Error(code, who + path.string() + ": expected a folder with " + wanted + ", found " + found);
  };
  if (status.type() == fs::file_type::not_found) refuse(ErrorCode::not_found, "nothing");
  if (!fs::exists(status)) refuse(ErrorCode::bad_file, failed.message());
  if (!fs::is_directory(status)) {
    refuse(ErrorCode::bad_file, "a file");
  }
  // Without the right to search it, every file inside would seem to be absent.
  if (!fs::exists(fs::status(path / ".", failed))) refuse(ErrorCode::bad_file, failed.message());
}

std::string read_text_file(const fs::path& path, std::size_t most) {
  const MappedFile file(path);
  if (file.bytes().size() > most) {
    throw Error(ErrorCode::bad_file, path.string() + ": expected at most " + std::to_string(most) +
                                         " bytes, found " + std::to_string(file.bytes().size()));
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace nibble
