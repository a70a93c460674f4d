// batch.cpp: eight sessions of one model decode together. Streams that run at the same time share
// the engine's steps: one step makes a token of each.
//   batch CHECKPOINT
#include <array>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "nibble/nibble.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " CHECKPOINT\n";
    return 2;
  }
  try {
    const std::array<std::string, 8> countries = {"France",   "Germany", "Japan",  "Italy",
                                                  "Portugal", "Spain",   "Serbia", "Poland"};
    nibble::LoadOptions how;
    how.max_sequences = static_cast<int>(countries.size());
    const auto model = nibble::Model::load(argv[1], nibble::Device::best(), how);

    std::vector<nibble::Session> sessions;
    std::vector<nibble::TokenStream> streams;
    for (const std::string& country : countries) {
      const auto prompt = model.tokenizer().encode("The capital of " + country + " is");
      sessions.push_back(model.new_session());
      streams.push_back(sessions.back().generate(prompt, {.max_new_tokens = 16}));
    }

    std::vector<std::string> answers(countries.size());
    std::vector<nibble::Piece> pieces(streams.size());
    while (nibble::TokenStream::next_of_each(streams, pieces) > 0) {
      for (std::size_t i = 0; i < streams.size(); ++i) answers[i] += pieces[i].text;
    }

    for (std::size_t i = 0; i < countries.size(); ++i) {
      std::cout << i << ": The capital of " << countries[i] << " is" << answers[i] << '\n';
    }
    const nibble::StepStats stats = model.stats();
    std::cout << stats.decode_tokens << " tokens decoded in " << stats.steps << " steps\n";
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
