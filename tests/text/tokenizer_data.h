// tokenizer_data.h: the tokenizers and vectors of tests/data.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/text/tokenizer.h"

namespace nibble::test {

inline const char* const kTokenizers[] = {"oracle", "gpt2-plain", "gpt2-prefix", "llama3"};

inline std::string data_path(const std::string& name) {
  return std::string(NIBBLE_TEST_DATA) + "/" + name;
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<Json> read_lines(const std::string& name) {
  std::ifstream in(data_path(name));
  std::vector<Json> result;
  for (std::string line; std::getline(in, line);) result.push_back(Json::parse(line, name));
  return result;
}

inline const std::string& text_of(const Json& v, const char* key) {
  return v.find(key)->as_string();
}

inline std::vector<std::int32_t> ids_of(const Json& list) {
  std::vector<std::int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<std::int32_t>(id.as_int()));
  return ids;
}

inline BpeTokenizer load_tokenizer(const std::string& name) {
  return BpeTokenizer::from_file(data_path("cases/text/" + name + "/tokenizer.json"));
}

}  // namespace nibble::test
