#include "core/checkpoint/json_file.h"

#include "core/base/mapped_file.h"
#include "nibble/error.h"

namespace nibble {

Json parse_json_object(std::string_view text, const std::string& source) {
  Json json = Json::parse(text, source);
  if (!json.is_object()) {
    throw Error(ErrorCode::bad_file,
                source + ": expected a JSON object at the root, found " + json.type_name());
  }
  return json;
}

Json read_json_object(const std::filesystem::path& path, std::size_t most) {
  const MappedFile file(path);
  const Bytes bytes = file.bytes();
  if (bytes.size() > most) {
    throw Error(ErrorCode::bad_file, path.string() + ": expected JSON of at most " +
                                         std::to_string(most) + " bytes, the file has " +
                                         std::to_string(bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return parse_json_object(text, path.string());
}

}  // namespace nibble
