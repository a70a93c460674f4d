#include "core/text/chat/template.h"

#include "core/text/chat/run.h"
#include "nibble/error.h"

namespace nibble {

ChatTemplate::ChatTemplate(std::string source, std::string name)
    : program_(chat::parse(source, std::move(name))) {}

std::string ChatTemplate::render(const Json& input, const RenderOptions& how) const {
  return chat::Run(*program_, how).render(input);
}

}  // namespace nibble
