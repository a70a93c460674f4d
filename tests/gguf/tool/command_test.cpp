// The command on a GGUF file.
#include <gtest/gtest.h>

#include "tests/checkpoint/support.h"
#include "tests/gguf/converted.h"
#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

TEST(GgufCommand, GeneratesWhatTheFolderDoes) {
  const TemporaryFolder folder;
  const auto path = folder / "tiny.gguf";
  converted().write(path);
  const auto text = [](const std::filesystem::path& model) {
    const ToolRun run = run_tool({"generate", model.string(), "-p", "The capital of France is",
                                  "-n", "24", "--device", "cpu"});
    EXPECT_EQ(run.code, 0) << run.err;
    return run.out;
  };
  const std::string out = text(path);
  EXPECT_TRUE(out.starts_with(" Paris.\nThe capital of Germany is Berlin.")) << out;
  EXPECT_EQ(out, text(kData / "model/hf-nvfp4-ct"));
}

TEST(GgufCommand, InspectSaysFormatsAndWhatBecomesOfQ8_0) {
  const TemporaryFolder folder;
  const auto path = folder / "tiny.gguf";
  converted(gguf::kQ8_0).write(path);
  const ToolRun run = run_tool({"inspect", path.string(), "--device", "cpu"});
  EXPECT_EQ(run.code, 0) << run.err;
  for (const char* part : {"declared      gguf", "Q8_0: 50 tensors",
                           "file          tiny.gguf: 159 tensors", "stop tokens: 4093, 4091",
                           "note: Q8_0 is decoded to float32 at load, exactly: 50 matrices"}) {
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
  }
}

}  // namespace
}  // namespace nibble::test
