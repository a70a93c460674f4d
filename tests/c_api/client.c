#include "client.h"

#include <stdlib.h>
#include <string.h>

#include "nibble/nibble.h"

int client_generate(const char* checkpoint, const char* prompt, int count, char* out,
                    size_t capacity) {
  nibble_load_options options;
  nibble_sampling sampling;
  nibble_model* model = NULL;
  nibble_session* session = NULL;
  nibble_stream* stream = NULL;
  int32_t* ids = NULL;
  size_t needed = 0, used = 0, length = 0;
  const char* text = NULL;
  int failed = 0;

  nibble_load_options_init(&options, sizeof options);
  options.kv_tokens = 256;
  nibble_sampling_init(&sampling, sizeof sampling);
  sampling.max_new_tokens = count;

  if (nibble_model_load(checkpoint, &options, &model) != NIBBLE_OK) return 1;
  if (nibble_tokenize(model, prompt, strlen(prompt), 1, NULL, 0, &needed) != NIBBLE_OK) failed = 2;
  if (!failed && (ids = malloc(needed * sizeof *ids)) == NULL) failed = 3;
  if (!failed &&
      nibble_tokenize(model, prompt, strlen(prompt), 1, ids, needed, &needed) != NIBBLE_OK)
    failed = 4;
  if (!failed && nibble_session_create(model, &session) != NIBBLE_OK) failed = 5;
  if (!failed && nibble_generate(session, ids, needed, &sampling, &stream) != NIBBLE_OK) failed = 6;
  out[0] = '\0';
  while (!failed) {
    const nibble_status status = nibble_stream_next(stream, NULL, &text, &length);
    if (status == NIBBLE_END) break;
    if (status != NIBBLE_OK || used + length + 1 > capacity) {
      failed = 7;
    } else {
      memcpy(out + used, text, length + 1);
      used += length;
    }
  }
  if (!failed && nibble_stream_stop_reason(stream) != NIBBLE_STOP_LENGTH) failed = 8;
  free(ids);
  nibble_stream_free(stream);
  nibble_session_free(session);
  nibble_model_free(model);
  return failed;
}
