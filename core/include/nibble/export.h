// export.h: symbol visibility of the public surface.
#pragma once

#if defined(NIBBLE_SHARED) && defined(__GNUC__)
#define NIBBLE_API __attribute__((visibility("default")))
#else
#define NIBBLE_API
#endif
