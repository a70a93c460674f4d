// globals.h: the functions every template can call.
#pragma once

#include <string_view>

namespace nibble::chat {

struct Builtin;
const Builtin* find_global(std::string_view name);

}  // namespace nibble::chat
