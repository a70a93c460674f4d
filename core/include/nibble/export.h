/* export.h: symbol visibility of the public surface. Everything is compiled with hidden symbols,
   and what bears NIBBLE_API is visible: the same objects make the static and the shared library. */
#pragma once

#if defined(__GNUC__)
#define NIBBLE_API __attribute__((visibility("default")))
#else
#define NIBBLE_API
#endif
