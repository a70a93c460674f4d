#include "tests/chat/support.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "nibble/error.h"

namespace nibble::test {

std::string read_file(const std::string& path) {
  std::ifstream in(std::string(NIBBLE_TEST_DATA) + "/" + path, std::ios::binary);
  if (!in) throw std::runtime_error("no test data " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Json> read_lines(const std::string& path) {
  std::istringstream in(read_file(path));
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) out.push_back(Json::parse(line, path));
  }
  return out;
}

RenderOptions fixed_clock() {
  RenderOptions how;
  how.now = [] {
    std::tm t{};
    t.tm_year = 125;
    t.tm_mon = 1;
    t.tm_mday = 3;
    t.tm_hour = 4;
    t.tm_min = 5;
    t.tm_sec = 6;
    t.tm_wday = 1;
    t.tm_yday = 33;
    return t;
  };
  return how;
}

std::string failure(const std::string& source, const Json& input, const RenderOptions& how) {
  try {
    ChatTemplate(source, "t").render(input, how);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string render(const std::string& source, const std::string& input) {
  return ChatTemplate(source, "t").render(Json::parse(input, "input"), fixed_clock());
}

std::string failure(const std::string& source) {
  return failure(source, Json(Json::Object()), fixed_clock());
}

}  // namespace nibble::test
