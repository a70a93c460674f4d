#include "core/text/chat/dates.h"

#include <cstdio>

namespace nibble::chat {
namespace {

constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                   "May",       "June",     "July",     "August",
                                   "September", "October",  "November", "December"};

std::string padded(int v, int width, char fill = '0') {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, fill == '0' ? "%0*d" : "%*d", width, v);
  return buffer;
}

bool leap(int year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

// ISO 8601: the week that holds the year's first Thursday is week 1.
void iso_week(const std::tm& t, int* year, int* week) {
  const int weekday = (t.tm_wday + 6) % 7;  // Monday is 0
  *year = t.tm_year + 1900;
  int w = (t.tm_yday - weekday + 10) / 7;
  const auto weeks_in = [](int y, int january_first) {  // 0 is Monday
    return january_first == 3 || (january_first == 2 && leap(y)) ? 53 : 52;
  };
  const int january_first = ((weekday - t.tm_yday) % 7 + 7) % 7;
  if (w < 1) {
    --*year;
    const int before = ((january_first - (leap(*year) ? 366 : 365)) % 7 + 7) % 7;
    w = weeks_in(*year, before);
  } else if (w > weeks_in(*year, january_first)) {
    ++*year;
    w = 1;
  }
  *week = w;
}

int clamp(int v, int high) {
  return v < 0 ? 0 : v > high ? high : v;
}

}  // namespace

std::string format_date(const std::tm& t, std::string_view format) {
  std::string out;
  const std::string day = kDays[clamp(t.tm_wday, 6)], month = kMonths[clamp(t.tm_mon, 11)];
  const int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  int iso_year = 0, week = 0;
  iso_week(t, &iso_year, &week);
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out += format[i];
      continue;
    }
    char c = format[++i];
    bool bare = false;  // %-d: without the leading zero
    if (c == '-' && i + 1 < format.size()) {
      bare = true;
      c = format[++i];
    }
    const auto number = [&](int v, int width, char fill = '0') {
      out += bare ? std::to_string(v) : padded(v, width, fill);
    };
    switch (c) {
      case 'a':
        out += day.substr(0, 3);
        break;
      case 'A':
        out += day;
        break;
      case 'b':
      case 'h':
        out += month.substr(0, 3);
        break;
      case 'B':
        out += month;
        break;
      case 'c':
        out += format_date(t, "%a %b %e %H:%M:%S %Y");
        break;
      case 'C':
        number((t.tm_year + 1900) / 100, 2);
        break;
      case 'd':
        number(t.tm_mday, 2);
        break;
      case 'D':
        out += format_date(t, "%m/%d/%y");
        break;
      case 'e':
        number(t.tm_mday, 2, ' ');
        break;
      case 'f':
        out += "000000";
        break;
      case 'F':
        out += format_date(t, "%Y-%m-%d");
        break;
      case 'g':
        number(iso_year % 100, 2);
        break;
      case 'G':
        number(iso_year, 4);
        break;
      case 'H':
        number(t.tm_hour, 2);
        break;
      case 'I':
        number(hour12, 2);
        break;
      case 'j':
        number(t.tm_yday + 1, 3);
        break;
      case 'k':
        number(t.tm_hour, 2, ' ');
        break;
      case 'l':
        number(hour12, 2, ' ');
        break;
      case 'm':
        number(t.tm_mon + 1, 2);
        break;
      case 'M':
        number(t.tm_min, 2);
        break;
      case 'n':
        out += '\n';
        break;
      case 'p':
        out += t.tm_hour < 12 ? "AM" : "PM";
        break;
      case 'P':
        out += t.tm_hour < 12 ? "am" : "pm";
        break;
      case 'r':
        out += format_date(t, "%I:%M:%S %p");
        break;
      case 'R':
        out += format_date(t, "%H:%M");
        break;
      case 'S':
        number(t.tm_sec, 2);
        break;
      case 't':
        out += '\t';
        break;
      case 'T':
      case 'X':
        out += format_date(t, "%H:%M:%S");
        break;
      case 'u':
        number(t.tm_wday == 0 ? 7 : t.tm_wday, 1);
        break;
      case 'U':
        number((t.tm_yday + 7 - t.tm_wday) / 7, 2);
        break;
      case 'V':
        number(week, 2);
        break;
      case 'w':
        number(t.tm_wday, 1);
        break;
      case 'W':
        number((t.tm_yday + 7 - (t.tm_wday + 6) % 7) / 7, 2);
        break;
      case 'x':
        out += format_date(t, "%m/%d/%y");
        break;
      case 'y':
        number((t.tm_year + 1900) % 100, 2);
        break;
      case 'Y':
        number(t.tm_year + 1900, 1);
        break;
      case 'z':
      case 'Z':
        break;  // the time has no zone
      case '%':
        out += '%';
        break;
      default:
        out += '%';
        if (bare) out += '-';
        out += c;
    }
  }
  return out;
}

}  // namespace nibble::chat
