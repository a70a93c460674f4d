// `nibble chat`: turns on one session.
#include <gtest/gtest.h>

#include <regex>

#include "tests/tool/run_tool.h"

namespace nibble::test {
namespace {

struct Turn {
  int kept, fed;
};

// "turn 2: 23 tokens kept, 14 to read" lines of --verbose.
std::vector<Turn> turns(const std::string& err) {
  std::vector<Turn> out;
  const std::regex line("turn [0-9]+: ([0-9]+) tokens kept, ([0-9]+) to read");
  for (std::sregex_iterator it(err.begin(), err.end(), line), end; it != end; ++it) {
    out.push_back({std::stoi((*it)[1]), std::stoi((*it)[2])});
  }
  return out;
}

TEST(Chat, TwoTurnsThroughAPipePrefillOnlyWhatIsNew) {
  const ToolRun run =
      run_tool({"chat", model_path(), "--verbose"},
               {.input = "What is the capital of Japan?\nWhat is the capital of Italy?\n"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "The capital of Japan is Tokyo.\nThe capital of Italy is Rome.\n");
  const std::vector<Turn> read = turns(run.err);
  ASSERT_EQ(read.size(), 2u) << run.err;
  EXPECT_EQ(read[0].kept, 0);
  EXPECT_EQ(read[0].fed, 15);  // as the golden rendering
  // The prompt, seven tokens of the answer and the end token are all still there.
  EXPECT_EQ(read[1].kept, 23);
  EXPECT_LE(read[1].fed, 17);
  EXPECT_EQ(run.err.find("back from"), std::string::npos) << run.err;
}

TEST(Chat, SecondTurnIsThatOfAFreshSession) {
  // What the state says after two turns equals one prefill of the same conversation.
  const ToolRun kept = run_tool({"chat", model_path(), "-q"},
                                {.input = "What is the capital of Japan?\nAnd of Peru?\n"});
  ASSERT_EQ(kept.code, 0) << kept.err;
  const std::string conversation =
      "<|im_start|>user\nWhat is the capital of Japan?<|im_end|>\n<|im_start|>assistant\nThe "
      "capital of Japan is "
      "Tokyo.<|im_end|>\n<|im_start|>user\nAnd of Peru?<|im_end|>\n<|im_start|>assistant\n";
  const ToolRun fresh = run_tool({"generate", model_path(), "-p", conversation});
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_EQ(kept.out, "The capital of Japan is Tokyo.\n" + fresh.out);
}

TEST(Chat, RewrittenHistoryGoesBackToTheMarkBeforeIt) {
  // The session has read " Tokyo", the answer's text ends before it: the second turn is read again,
  // the first one is not.
  const ToolRun run = run_tool(
      {"chat", model_path(), "--verbose", "--stop", "Tokyo"},
      {.input = "What is the capital of Italy?\nWhat is the capital of Japan?\nAnd of Peru?\n"});
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<Turn> read = turns(run.err);
  ASSERT_EQ(read.size(), 3u) << run.err;
  EXPECT_EQ(read[2].kept, read[1].kept);
  EXPECT_NE(run.err.find("to " + std::to_string(read[1].kept) + "\n"), std::string::npos)
      << run.err;

  const std::string conversation =
      "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\nThe "
      "capital of Italy is "
      "Rome.<|im_end|>\n<|im_start|>user\nWhat is the capital of "
      "Japan?<|im_end|>\n<|im_start|>assistant\nThe "
      "capital of Japan is<|im_end|>\n<|im_start|>user\nAnd of "
      "Peru?<|im_end|>\n<|im_start|>assistant\n";
  const ToolRun fresh = run_tool({"generate", model_path(), "-p", conversation, "--stop", "Tokyo"});
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_EQ(run.out, "The capital of Italy is Rome.\nThe capital of Japan is \n" + fresh.out);
}

TEST(Chat, NewSystemMessageIsReadFromTheBeginning) {
  const ToolRun run =
      run_tool({"chat", model_path(), "--verbose"},
               {.input = "What is the capital of Japan?\n/system You are brief.\nAnd of Italy?\n"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.err.find("the template rewrote the history: back from token 23 to the beginning"),
            std::string::npos)
      << run.err;
  const std::vector<Turn> read = turns(run.err);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].kept, 0);
}

TEST(Chat, Commands) {
  const ToolRun run =
      run_tool({"chat", model_path(), "--verbose"},
               {.input = "/help\n/system\n/wrong\nWhat is the capital of Japan?\n/stats\n/reset\n"
                         "What is the capital of Japan?\n/exit\nnever read\n"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "The capital of Japan is Tokyo.\nThe capital of Japan is Tokyo.\n");
  EXPECT_NE(run.err.find("/reset  /stats"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("no system message"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("found \"/wrong\""), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("1 turns, 23 tokens held"), std::string::npos) << run.err;
  const std::vector<Turn> read = turns(run.err);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].kept, 0);
  EXPECT_EQ(read[1].fed, 15);
}

TEST(Chat, AMessageThatIsNotUtf8) {
  const ToolRun piped = run_tool({"chat", model_path(), "-q"}, {.input = "a\xff\n"});
  EXPECT_EQ(piped.code, 1);
  EXPECT_NE(piped.err.find("standard input: expected UTF-8, found a message that is none at byte 1"),
            std::string::npos)
      << piped.err;
  // A person goes on.
  const ToolRun typed = run_on_terminal({"chat", model_path()},
                                        "a\xff\nWhat is the capital of Japan?\n/exit\n");
  EXPECT_EQ(typed.code, 0) << typed.out;
  EXPECT_NE(typed.out.find("none at byte 1"), std::string::npos) << typed.out;
  EXPECT_NE(typed.out.find("The capital of Japan is Tokyo."), std::string::npos) << typed.out;
}

TEST(Chat, AnUnknownCommandIsAnErrorThatQuietShows) {
  const ToolRun run = run_tool({"chat", model_path(), "-q"}, {.input = "/wrong\n"});
  EXPECT_EQ(run.code, 0);
  EXPECT_NE(run.err.find("found \"/wrong\""), std::string::npos) << run.err;
}

TEST(Chat, AnswerCutShortIsContinuedFrom) {
  const ToolRun run =
      run_tool({"chat", model_path(), "--verbose", "-n", "3"},
               {.input = "What is the capital of Japan?\nWhat is the capital of Italy?\n"});
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<Turn> read = turns(run.err);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].kept, 18);
}

TEST(Chat, TerminalShowsAPrompt) {
  const ToolRun run =
      run_on_terminal({"chat", model_path()}, "What is the capital of Japan?\n/exit\n");
  EXPECT_EQ(run.code, 0) << run.out;
  EXPECT_NE(run.out.find("> "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("The capital of Japan is Tokyo."), std::string::npos) << run.out;
}

}  // namespace
}  // namespace nibble::test
