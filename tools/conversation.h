// conversation.h: turns of a chat on one session, each prefilling only what the session lacks.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "nibble/model.h"

namespace nibble::tool {

class Conversation {
 public:
  Conversation(const Model& model, std::string system, std::string template_args);

  // What the next answer starts from.
  struct Turn {
    TokenStream stream;
    std::int64_t kept = 0;  // tokens that the session held already
    std::int64_t fed = 0;   // tokens of this prompt
    std::string rewound;    // why it could not just go on, if so
  };
  // Renders the conversation with the user's new message. If it throws, the message is dropped.
  Turn ask(const std::string& user, const Sampling& how);
  // Call when the stream is done and gone, with the text that was shown.
  void answered(std::string text);

  void reset();                       // forgets all but the system message
  void set_system(std::string text);  // the next turn renders with it
  const std::string& system() const { return system_; }
  std::int64_t tokens() const { return static_cast<std::int64_t>(session_.tokens().size()); }
  std::int64_t room() const { return session_.room(); }
  std::size_t turns() const { return messages_.size() / 2; }

 private:
  // The part of the rendering that comes after the session's first `held` tokens, if they are its
  // beginning: by tokens, else by text (a model may spell its answer in other tokens).
  bool rest_after(std::int64_t held, const std::string& text, const std::vector<std::int32_t>& ids,
                  std::vector<std::int32_t>& rest) const;
  std::vector<std::int32_t> align(const std::string& text, std::string& rewound);

  const Model& model_;
  std::string system_, template_args_;
  std::vector<ChatMessage> messages_;  // without the system message
  Session session_;
  std::deque<Mark> marks_;  // before each of the last turns, rising
};

}  // namespace nibble::tool
