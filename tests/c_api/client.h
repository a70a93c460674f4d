/* client.h: a small C program as a function, for the tests. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Continues `prompt` by `count` tokens into `out` (with a zero byte). 0, or the number of the step
 * that failed. */
int client_generate(const char* checkpoint, const char* prompt, int count, char* out,
                    size_t capacity);

#ifdef __cplusplus
}
#endif
