// hello.cpp: load a checkpoint, continue a prompt, print the text as it comes.
//   hello_cpp CHECKPOINT ["prompt"]
#include <exception>
#include <iostream>

#include "nibble/nibble.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: " << argv[0] << " CHECKPOINT [PROMPT]\n";
    return 2;
  }
  try {
    const auto model = nibble::Model::load(argv[1]);
    auto session = model.new_session();
    const auto prompt = model.tokenizer().encode(argc > 2 ? argv[2] : "The capital of France is");
    auto stream = session.generate(prompt, {.max_new_tokens = 32});
    for (const nibble::Piece& piece : stream) std::cout << piece.text << std::flush;
    std::cout << '\n';
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
