// normalizer.h: Unicode normal forms, before a text is split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace nibble {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // The "normalizer" value of tokenizer.json. Throws Error(bad_file | unsupported).
  explicit Normalizer(const JsonView& root);

  bool empty() const { return forms_.empty(); }
  std::string apply(std::string_view text) const;  // `text` is well-formed UTF-8

  enum class Form { nfc, nfd, nfkc, nfkd };

 private:
  void read(const JsonView& value);
  std::vector<Form> forms_;
};

// Linear in the text but for the sort of each run of combining marks.
std::string normalized(std::string_view text, Normalizer::Form form);

}  // namespace nibble
