// prompt.h: how a typed text becomes a prompt: as it is, or through the chat template.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "nibble/model.h"

namespace nibble::tool {

struct PromptArgs {
  bool chat = false;
  std::string system, template_args;

  void add(CLI::App& app);           // --chat, --system, --template-args
  void add_template(CLI::App& app);  // the last two alone
  void check() const;                // throws Failure: --system without --chat, JSON that is none
  std::string render(const Model& model, const std::string& user) const;
};

// Through the chat template. Throws Failure for one that writes nothing.
std::string render_prompt(const Model& model, const std::vector<ChatMessage>& messages,
                          const std::string& template_args);

}  // namespace nibble::tool
