// support.h: files of the test data, and rendering with a fixed clock.
#pragma once

#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/text/chat/template.h"

namespace nibble::test {

std::string read_file(const std::string& path);         // under tests/data
std::vector<Json> read_lines(const std::string& path);  // a JSON value on each line
RenderOptions fixed_clock();                            // 2025-02-03 04:05:06
std::string failure(const std::string& source, const Json& input, const RenderOptions& how);
std::string render(const std::string& source, const std::string& input = "{}");
std::string failure(const std::string& source);  // the error's text, or ""

}  // namespace nibble::test
