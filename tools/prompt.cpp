#include "tools/prompt.h"

#include <vector>

#include "core/base/json.h"
#include "nibble/error.h"
#include "tools/failure.h"
#include "tools/units.h"

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
  if (template_args.empty()) return;
  try {
    if (Json::parse(template_args, "--template-args").is_object()) return;
  } catch (const Error& e) {
    throw usage_error(e.what());
  }
  throw usage_error("--template-args: expected a JSON object, found " + in_quotes(template_args));
}

std::string PromptArgs::render(const Model& model, const std::string& user) const {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", user});
  return model.render_chat(messages, {true, template_args});
}

}  // namespace nibble::tool
