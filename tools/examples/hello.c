/* hello.c: the same through the C ABI.
 *   hello_c CHECKPOINT ["prompt"] */
#include <stdio.h>
#include <string.h>

#include "nibble/nibble.h"

enum { kMaxPrompt = 4096 };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, nibble_last_error());
  return 1;
}

int main(int argc, char** argv) {
  const char* prompt = argc > 2 ? argv[2] : "The capital of France is";
  nibble_model* model = NULL;
  nibble_session* session = NULL;
  nibble_stream* stream = NULL;
  nibble_sampling sampling;
  int32_t ids[kMaxPrompt];
  size_t count = 0, length = 0;
  const char* text = NULL;
  nibble_status status;
  int result = 1;

  if (argc < 2) {
    fprintf(stderr, "usage: %s CHECKPOINT [PROMPT]\n", argv[0]);
    return 2;
  }
  if (nibble_model_load(argv[1], NULL, &model) != NIBBLE_OK) return failed("load");
  nibble_sampling_init(&sampling, sizeof sampling);
  sampling.max_new_tokens = 32;
  if (nibble_session_create(model, &session) != NIBBLE_OK) {
    failed("session");
  } else if (nibble_tokenize(model, prompt, strlen(prompt), 1, ids, kMaxPrompt, &count) !=
             NIBBLE_OK) {
    failed("tokenize");
  } else if (nibble_generate(session, ids, count, &sampling, &stream) != NIBBLE_OK) {
    failed("generate");
  } else {
    while ((status = nibble_stream_next(stream, NULL, &text, &length)) == NIBBLE_OK) {
      fwrite(text, 1, length, stdout);
      fflush(stdout);
    }
    putchar('\n');
    result = status == NIBBLE_END ? 0 : failed("next");
  }
  nibble_stream_free(stream);
  nibble_session_free(session);
  nibble_model_free(model);
  return result;
}
