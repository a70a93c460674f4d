// dates.h: strftime with English names, whatever the process's locale is.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

namespace nibble::chat {

std::string format_date(const std::tm& t, std::string_view format);

}  // namespace nibble::chat
