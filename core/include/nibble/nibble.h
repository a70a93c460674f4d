/* nibble.h: the C ABI. C11 and C++ clean; no C++ exception crosses it.
 *
 *   nibble_model* model = NULL;
 *   if (nibble_model_load("checkpoint", NULL, &model) != NIBBLE_OK) puts(nibble_last_error());
 *
 * Rules that hold everywhere:
 * - A function that can fail returns a nibble_status. On failure its outputs are left as they were,
 * and nibble_last_error() says, on the same thread, who complained, what was expected, what was
 * found.
 * - Text is UTF-8. A `char**` output is owned by the caller: nibble_free_string().
 * - Ids go to the caller's array: `*count` becomes the number there is, also when `capacity` is
 * below it (NIBBLE_BUFFER_TOO_SMALL, nothing else is written) and when `out` is NULL (nothing else
 * is done).
 * - Handles may be freed in any order, NULL is fine; a session keeps what it needs of its model, a
 *   stream of its session. The memory of a session is free again once its streams are freed too.
 * - A model may be used by many threads; a session, its stream and its marks by one at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "nibble/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nibble_status {
  NIBBLE_OK = 0,
  NIBBLE_INVALID_ARGUMENT = 1, /* out of range, of the wrong kind, NULL where it must not be */
  NIBBLE_NOT_FOUND = 2,        /* a file, tensor or model that does not exist */
  NIBBLE_BAD_FILE = 3,         /* a file (or JSON text) that breaks its format */
  NIBBLE_UNSUPPORTED = 4,      /* well formed, but nothing here can run it (yet) */
  NIBBLE_OUT_OF_MEMORY = 5,
  NIBBLE_CONTEXT_FULL = 6, /* longer than the context that was reserved */
  NIBBLE_CANCELLED = 7,    /* the progress callback said stop */
  NIBBLE_INTERNAL = 8,     /* a bug in nibble */
  NIBBLE_NO_DEVICE = 9,    /* not on this machine or in this build: backend, card, kernels, mirror */
  NIBBLE_BUFFER_TOO_SMALL = 100,
  NIBBLE_END = 101 /* not an error: the stream has ended */
} nibble_status;

typedef enum nibble_activations {
  NIBBLE_ACTIVATIONS_A16 = 0,      /* not quantised */
  NIBBLE_ACTIVATIONS_DECLARED = 1, /* as the checkpoint declares for each module */
  NIBBLE_ACTIVATIONS_A8 = 2        /* lossy: NVFP4 weights re-encoded to FP8, inputs FP8 per token */
} nibble_activations;

typedef enum nibble_kv_cache_dtype {
  NIBBLE_KV_CACHE_DTYPE_AUTO = 0, /* the profile's operand type */
  NIBBLE_KV_CACHE_DTYPE_FP8 = 1   /* lossy: e4m3 with a scale for each position of a head */
} nibble_kv_cache_dtype;

typedef enum nibble_stop_reason {
  NIBBLE_STOP_NONE = 0, /* still running */
  NIBBLE_STOP_TOKEN = 1,
  NIBBLE_STOP_TEXT = 2,
  NIBBLE_STOP_LENGTH = 3,
  NIBBLE_STOP_CONTEXT = 4
} nibble_stop_reason;

typedef struct nibble_model nibble_model;
typedef struct nibble_session nibble_session;
typedef struct nibble_stream nibble_stream;
typedef struct nibble_mark nibble_mark;

NIBBLE_API const char* nibble_version(void);                /* "major.minor.patch" */
NIBBLE_API const char* nibble_status_name(nibble_status s); /* "bad_file" */
NIBBLE_API const char* nibble_stop_reason_name(nibble_stop_reason r);
/* Text of the latest failure on this thread, "" before the first; valid until the next failure. */
NIBBLE_API const char* nibble_last_error(void);
NIBBLE_API void nibble_free_string(char* text);

/* Options begin with their size, so that a program and a library of different ages understand each
 * other: call the init function with sizeof the struct, then change what you want. */

/* `stage` lives for the call only; return 0 to cancel the load. */
typedef int (*nibble_progress_fn)(void* user, const char* stage, uint64_t done, uint64_t total);
typedef void (*nibble_message_fn)(void* user, const char* message);

typedef struct nibble_load_options {
  size_t struct_size;
  /* NULL: the best there is. An empty text is refused: it is most often a variable that nobody set. What
   * kernels and threads say must not differ from what backend says ("cpu:threads=2"). */
  const char* backend; /* "cpu", "cuda:1", "cpu:mirror=sm90", "cpu:profile=bf16" */
  const char* kernels; /* "avx512", "avx2", "neon", "portable"; in profile bf16 also "amx", "avx512_bf16" */
  int32_t threads;     /* 0: all the machine's; at most 256 or twice its processors */
  int32_t activations; /* nibble_activations */
  int64_t kv_tokens;   /* positions of KV cache, shared by all sessions */
  int32_t max_sequences;
  int32_t step_tokens; /* rows of the largest step, a multiple of 64 */
  int32_t max_drafts;
  int32_t kv_cache_dtype; /* nibble_kv_cache_dtype */
  nibble_progress_fn on_progress;
  nibble_message_fn on_message;
  void* user; /* for both callbacks */
  /* Start a step before the host has seen the tokens of the one before: 1 or 0; -1: where the device computes beside
   * the host. Answers are the same. */
  int32_t run_ahead;
  int32_t reserved_2; /* 0 */
} nibble_load_options;
NIBBLE_API void nibble_load_options_init(nibble_load_options* options, size_t struct_size);

typedef struct nibble_synthetic_options {
  size_t struct_size;
  const char* shape; /* "qwen3_5-27b" */
  const char* mix;   /* "nvfp4", "mlp-nvfp4-rest-fp8", "bf16", "f32" */
  uint64_t seed;
  int32_t layers; /* 0: the shape's own number */
  int32_t reserved;
} nibble_synthetic_options;
NIBBLE_API void nibble_synthetic_options_init(nibble_synthetic_options* options,
                                              size_t struct_size);

typedef struct nibble_sampling {
  size_t struct_size;
  float temperature;        /* 0: greedy */
  float top_p;              /* 1: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off */
  uint64_t seed;
  int32_t top_k; /* 0: all */
  int32_t max_new_tokens;
  const char* const* stop; /* texts that end the answer and are not part of it */
  size_t stop_count;
  const int32_t* stop_tokens; /* beside the model's own */
  size_t stop_token_count;
  int32_t ignore_model_stop_tokens; /* 0 or 1 */
  int32_t reserved;
} nibble_sampling;
NIBBLE_API void nibble_sampling_init(nibble_sampling* sampling, size_t struct_size);

/* ---- model ---------------------------------------------------------------------------------- */

/* `options` NULL: the defaults. `path` is the folder of config.json, safetensors, tokenizer.json, or
   a GGUF file. */
NIBBLE_API nibble_status nibble_model_load(const char* path, const nibble_load_options* options,
                                           nibble_model** out);
/* Random weights in the shape of a real model; it has no tokenizer. */
NIBBLE_API nibble_status nibble_model_synthetic(const nibble_synthetic_options* what,
                                                const nibble_load_options* options,
                                                nibble_model** out);
NIBBLE_API void nibble_model_free(nibble_model* model);

/* JSON objects: what was loaded and reserved; what the steps so far did. `length` may be NULL. */
NIBBLE_API nibble_status nibble_model_info(const nibble_model* model, char** json, size_t* length);
NIBBLE_API nibble_status nibble_model_stats(const nibble_model* model, char** json, size_t* length);

/* ---- text ----------------------------------------------------------------------------------- */

/* NIBBLE_NOT_FOUND for a model without a tokenizer, here and below. */
NIBBLE_API nibble_status nibble_tokenize(const nibble_model* model, const char* text, size_t length,
                                         int add_special, int32_t* out, size_t capacity,
                                         size_t* count);
NIBBLE_API nibble_status nibble_detokenize(const nibble_model* model, const int32_t* ids,
                                           size_t count, int skip_special, char** text,
                                           size_t* length);
/* `messages_json`: [{"role": "user", "content": "Hello"}, ...]. `extra_json`: NULL, or an object
 * with more arguments of the template, {"enable_thinking": false}. */
NIBBLE_API nibble_status nibble_render_chat(const nibble_model* model, const char* messages_json,
                                            const char* extra_json, int add_generation_prompt,
                                            char** text, size_t* length);

/* ---- session -------------------------------------------------------------------------------- */

/* NIBBLE_OUT_OF_MEMORY when max_sequences sessions already hold state. */
NIBBLE_API nibble_status nibble_session_create(const nibble_model* model, nibble_session** out);
NIBBLE_API void nibble_session_free(nibble_session* session);
NIBBLE_API nibble_status nibble_session_clear(nibble_session* session);
NIBBLE_API nibble_status nibble_session_tokens(const nibble_session* session, int32_t* out,
                                               size_t capacity, size_t* count);
NIBBLE_API nibble_status nibble_session_room(const nibble_session* session, int64_t* tokens);

/* Appends the prompt and starts an answer; `sampling` NULL: the defaults (greedy). One stream of a
 * session at a time: free it before the next call on the session that changes it. */
NIBBLE_API nibble_status nibble_generate(nibble_session* session, const int32_t* prompt,
                                         size_t count, const nibble_sampling* sampling,
                                         nibble_stream** out);
/* The next piece, or NIBBLE_END. `*text` ends with a zero byte and is valid until the next call on
 * this stream; it is empty while a character or a possible stop text is incomplete. `*token` is -1
 * for text that was held back. Any output may be NULL. */
NIBBLE_API nibble_status nibble_stream_next(nibble_stream* stream, int32_t* token,
                                            const char** text, size_t* length);
NIBBLE_API nibble_stop_reason nibble_stream_stop_reason(const nibble_stream* stream);
/* Rows that prefill ran, tokens made so far. Any output may be NULL. */
NIBBLE_API nibble_status nibble_stream_counts(const nibble_stream* stream, int64_t* prompt_tokens,
                                              int64_t* new_tokens);
/* Freeing it early stops the answer at the last piece that was taken. */
NIBBLE_API void nibble_stream_free(nibble_stream* stream);

/* out[i] = log p(token | all before it) for every token after the session's first: `count` values,
 * one less for an empty session. With too small a `capacity` nothing is run and `*written` says
 * what is needed. The tokens become part of the session. `written` may be NULL. */
NIBBLE_API nibble_status nibble_score(nibble_session* session, const int32_t* tokens, size_t count,
                                      double* out, size_t capacity, size_t* written);

/* A place to come back to; it keeps a copy of the recurrent state. */
NIBBLE_API nibble_status nibble_mark_create(const nibble_session* session, nibble_mark** out);
NIBBLE_API nibble_status nibble_session_rewind(nibble_session* session, const nibble_mark* mark);
NIBBLE_API nibble_status nibble_mark_tokens(const nibble_mark* mark, int64_t* tokens);
NIBBLE_API nibble_status nibble_mark_bytes(const nibble_mark* mark, uint64_t* bytes);
NIBBLE_API void nibble_mark_free(nibble_mark* mark);

#ifdef __cplusplus
}
#endif
