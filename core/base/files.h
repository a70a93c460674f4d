// files.h: what is at a path, told apart: absent is one thing, unreadable another.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace nibble {

// False only when there is nothing of this name. Throws Error(bad_file) for a link that leads to
// nothing or in a circle and for a folder that must not be read: an optional file that is there
// must not be left out silently.
bool file_present(const std::filesystem::path& path);

// Throws Error(not_found) where nothing is, Error(bad_file) for what is no folder or must not be
// read. `who` precedes the path in errors ("[checkpoint] " or nothing), `wanted` says what for.
void expect_folder(const std::filesystem::path& path, const std::string& who,
                   const std::string& wanted);

// The whole file; its size is looked at before its bytes. Throws Error(not_found | bad_file).
std::string read_text_file(const std::filesystem::path& path, std::size_t most);

}  // namespace nibble
