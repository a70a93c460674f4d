// run_tool.h: runs the built `nibble` as a user does.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace nibble::test {

struct ToolRun {
  int code = -1;  // exit status; 128 + signal when a signal ended it
  std::string out, err;
};

struct ToolOptions {
  std::string input;
  std::size_t close_output_after = 0;    // bytes of stdout to read before closing it; 0: read all
  std::size_t interrupt_after = 0;       // bytes of stdout to read before SIGINT; 0: none
  std::string interrupt_when;            // text on stderr that SIGINT follows; empty: none
  std::vector<std::string> environment;  // "NAME=value", beside the test's own
};

ToolRun run_tool(const std::vector<std::string>& args, const ToolOptions& how = {});

// The same on a terminal: stdin, stdout and stderr are one pseudo terminal. `typed` is sent at
// once.
ToolRun run_on_terminal(const std::vector<std::string>& args, const std::string& typed,
                        const std::vector<std::string>& environment = {});

// The trained checkpoint that ships with the tests.
std::string model_path();
Json parse_json(const std::string& text);

// A folder that is removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace nibble::test
