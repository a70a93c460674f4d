#include "tools/prompt.h"

#include <fmt/format.h>

#include <vector>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/text/utf8_repair.h"
#include "nibble/error.h"
#include "tools/failure.h"

namespace nibble::tool {

void PromptArgs::add(CLI::App& app) {
  app.add_flag("--chat", chat,
               "send the text as a user's message through the model's chat template")
      ->group("Text");
  add_template(app);
}

void PromptArgs::add_template(CLI::App& app) {
  app.add_option("--system", system, "system message")->type_name("TEXT")->group("Text");
  app.add_option("--template-args", template_args,
                 "more values for the chat template, e.g. '{\"enable_thinking\": false}'")
      ->type_name("JSON")
      ->group("Text");
}

void PromptArgs::check() const {
  if (!chat && !system.empty())
    throw usage_error("--system: expected --chat beside it, found none");
  if (!chat && !template_args.empty()) {
    throw usage_error("--template-args: expected --chat beside it, found none");
  }
  if (const auto at = utf8_error(system)) {
    throw usage_error("--system: expected UTF-8, found a text that is none at byte " +
                      std::to_string(*at));
  }
  if (template_args.empty()) return;
  Json given;
  try {
    given = Json::parse(template_args, "--template-args");
  } catch (const Error& e) {
    throw usage_error(e.what());
  }
  if (!given.is_object()) {
    throw usage_error("--template-args: expected a JSON object, found " + in_quotes(template_args));
  }
  for (const char* key : {"messages", "add_generation_prompt"}) {
    if (given.find(key) == nullptr) continue;
    throw usage_error(fmt::format("--template-args: expected further values, found \"{}\", which "
                                  "the command gives itself",
                                  key));
  }
}

std::string PromptArgs::render(const Model& model, const std::string& user) const {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", user});
  return render_prompt(model, messages, template_args);
}

std::string render_prompt(const Model& model, const std::vector<ChatMessage>& messages,
                          const std::string& template_args) {
  std::string text = model.render_chat(messages, {true, template_args});
  if (text.empty()) {
    throw Failure(kFailed,
                  "chat template: expected it to write a prompt, found that it writes nothing");
  }
  return text;
}

}  // namespace nibble::tool
