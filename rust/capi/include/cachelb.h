/* The C interface of cachelb. Written by `CACHELB_WRITE_HEADER=1 cargo test -p cachelb-c --test header`; do not edit.
 *
 * Every function but cachelb_router_free may be called from any thread at any time. Time comes in, in milliseconds of any
 * clock that does not go back. Functions return CACHELB_OK, CACHELB_LATE or a negative CACHELB_E_ code, and change nothing
 * if they fail; cachelb_last_error has the reason. No pointer may be NULL unless its text says so, and none is kept: what
 * the library returns goes into structs and buffers of the caller or to its function, so nothing has to be freed but the
 * router. Texts are UTF-8 of the length given and need no null character.
 */

#ifndef CACHELB_H
#define CACHELB_H

#include <stddef.h>
#include <stdint.h>

/**
 * Version of this header. A library of another version has other structs or functions.
 */
#define CACHELB_ABI_VERSION 1

/**
 * Done.
 */
#define CACHELB_OK 0

/**
 * The id or key names nothing any more: the request ended before, or its worker left. Nothing was changed.
 */
#define CACHELB_LATE 1

/**
 * A pointer is NULL.
 */
#define CACHELB_E_NULL -1

/**
 * A size, length, count, alignment, flag or status is wrong.
 */
#define CACHELB_E_ARGUMENT -2

/**
 * A text is no UTF-8.
 */
#define CACHELB_E_UTF8 -3

/**
 * An option of the router is unknown or has a wrong value.
 */
#define CACHELB_E_OPTIONS -4

/**
 * A worker's key is empty, too long for `CACHELB_KEY_BYTES`, or begins with a null character.
 */
#define CACHELB_E_KEY -5

/**
 * There is no worker of that key.
 */
#define CACHELB_E_UNKNOWN_WORKER -6

/**
 * No worker may be picked.
 */
#define CACHELB_E_NO_WORKER -7

/**
 * The body cannot be read. It can still be routed by load, as tokens of length 0.
 */
#define CACHELB_E_BODY -8

/**
 * A snapshot cannot be written or restored.
 */
#define CACHELB_E_SNAPSHOT -9

/**
 * The sink refused its piece.
 */
#define CACHELB_E_SINK -10

/**
 * The router is broken and answers this for ever. Free it, and route without it or make another one.
 */
#define CACHELB_E_PANIC -11

/**
 * Anything else.
 */
#define CACHELB_E_INTERNAL -12

/**
 * Bytes of the longest key of a worker, with the null character behind it.
 */
#define CACHELB_KEY_BYTES 512

/**
 * A count that is not known.
 */
#define CACHELB_UNKNOWN UINT64_MAX

/**
 * Flag of a request: only say what would be picked; the id of the pick is 0.
 */
#define CACHELB_DRY_RUN 1

/**
 * A router.
 */
typedef struct cachelb_router cachelb_router;

/**
 * Some bytes of the caller's. `data` may be NULL for none if `len` is 0.
 */
typedef struct cachelb_slice {
  /**
   * The first byte.
   */
  const char *data;
  /**
   * How many.
   */
  size_t len;
} cachelb_slice;

/**
 * The facts of a request beside its prompt. Set all to 0, then `size`, then the known ones.
 */
typedef struct cachelb_request {
  /**
   * `sizeof(cachelb_request)`.
   */
  size_t size;
  /**
   * `CACHELB_DRY_RUN`, or 0.
   */
  uint32_t flags;
  /**
   * Name of the session, for policies that keep a session on its worker.
   */
  struct cachelb_slice session;
  /**
   * Name of the adapter: blocks of one adapter are no blocks of another.
   */
  struct cachelb_slice lora;
  /**
   * The cache salt, likewise.
   */
  struct cachelb_slice cache_salt;
  /**
   * Name of the model, if workers serve several; likewise. None otherwise.
   */
  struct cachelb_slice model;
  /**
   * Path of the request, of `cachelb_select_body` alone, which tells how to read the body.
   */
  struct cachelb_slice path;
  /**
   * Output tokens that are expected, 0 for not known.
   */
  uint64_t expected_output_tokens;
  /**
   * Keys of workers that must not be picked, such as those that failed for this request before. NULL for none.
   */
  const struct cachelb_slice *exclude;
  /**
   * How many.
   */
  size_t exclude_len;
} cachelb_request;

/**
 * The worker picked for a request.
 */
typedef struct cachelb_pick {
  /**
   * `sizeof(cachelb_pick)`, set by the caller.
   */
  size_t size;
  /**
   * Names the request in later calls, 0 for a dry run.
   */
  uint64_t id;
  /**
   * Length of the prompt.
   */
  uint64_t prompt_tokens;
  /**
   * Prompt tokens the worker need not compute again.
   */
  uint64_t matched_tokens;
  /**
   * Those that the worker which holds most need not compute.
   */
  uint64_t best_matched_tokens;
  /**
   * Bytes of the key.
   */
  size_t worker_len;
  /**
   * Key of the worker, ended by a null character.
   */
  char worker[CACHELB_KEY_BYTES];
  /**
   * Why it was picked, ended by a null character.
   */
  char reason[32];
} cachelb_pick;

/**
 * Token counts of the engine; `CACHELB_UNKNOWN` for those it does not report.
 */
typedef struct cachelb_usage {
  /**
   * `sizeof(cachelb_usage)`.
   */
  size_t size;
  /**
   * Prompt tokens from its cache.
   */
  uint64_t cached_tokens;
  /**
   * Prompt tokens.
   */
  uint64_t prompt_tokens;
  /**
   * Output tokens.
   */
  uint64_t output_tokens;
} cachelb_usage;

/**
 * Takes one piece of an output; anything but 0 ends the output. The bytes are valid during the call. It must not
 * throw, and may call the router.
 */
typedef int (*cachelb_sink)(void *ctx, const uint8_t *data, size_t len);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Version of the library's interface, to be compared with `CACHELB_ABI_VERSION`.
 */
uint32_t cachelb_abi_version(void);

/**
 * Writes why the latest failed call of this thread failed to `buffer`, cut to `len` bytes with the null character.
 */
int cachelb_last_error(char *buffer,
                       size_t len);

/**
 * Makes a router without workers. `json` holds its options: an object with the names and defaults of the Python
 * `Router`, such as `{"policy": "adaptive", "block_size": 16}`; `{}` for none. If that fails, `err` gets the reason,
 * cut to `err_len` bytes with the null character, and `router` gets NULL.
 */
int cachelb_router_new(const char *json,
                       size_t json_len,
                       struct cachelb_router **router,
                       char *err,
                       size_t err_len);

/**
 * Frees a router. No other call of it may be under way, and none may follow.
 */
int cachelb_router_free(struct cachelb_router *router);

/**
 * Registers a worker under any text that names it, such as its URL. One that is registered becomes ready.
 */
int cachelb_worker_add(struct cachelb_router *router, const char *key, size_t key_len, uint64_t now_ms);

/**
 * Forgets a worker and what it holds; its requests still end as usual. With a `drain` other than 0, it takes no new
 * ones and is forgotten with the last that it has.
 */
int cachelb_worker_remove(struct cachelb_router *router,
                          const char *key,
                          size_t key_len,
                          int drain);

/**
 * Marks a worker ready (other than 0) or not; what it holds stays known.
 */
int cachelb_worker_set_ready(struct cachelb_router *router, const char *key, size_t key_len, int ready);

/**
 * Picks a worker for a prompt of token ids, books its load and remembers that it will hold the prompt, in one step.
 * `len` 0 routes by load.
 */
int cachelb_select_tokens(struct cachelb_router *router,
                          const struct cachelb_request *request,
                          const uint32_t *tokens,
                          size_t len,
                          uint64_t now_ms,
                          struct cachelb_pick *pick);

/**
 * Picks for a prompt that is a text of `len` bytes.
 */
int cachelb_select_text(struct cachelb_router *router,
                        const struct cachelb_request *request,
                        const char *text,
                        size_t len,
                        uint64_t now_ms,
                        struct cachelb_pick *pick);

/**
 * Picks for the body of a request to `request.path`, such as `/v1/chat/completions`.
 */
int cachelb_select_body(struct cachelb_router *router,
                        const struct cachelb_request *request,
                        const uint8_t *body,
                        size_t len,
                        uint64_t now_ms,
                        struct cachelb_pick *pick);

/**
 * The first token of a request arrived.
 */
int cachelb_first_token(struct cachelb_router *router, uint64_t id, uint64_t now_ms);

/**
 * `count` more output tokens of a request arrived.
 */
int cachelb_tokens(struct cachelb_router *router, uint64_t id, uint64_t count, uint64_t now_ms);

/**
 * A request is complete.
 */
int cachelb_complete(struct cachelb_router *router,
                     uint64_t id,
                     const struct cachelb_usage *usage,
                     uint64_t now_ms);

/**
 * A request failed with an HTTP `status` of 400 to 999, or 0 if there was no answer.
 */
int cachelb_error(struct cachelb_router *router,
                  uint64_t id,
                  int status,
                  const struct cachelb_usage *usage,
                  uint64_t now_ms);

/**
 * A request was given up.
 */
int cachelb_cancel(struct cachelb_router *router,
                   uint64_t id,
                   const struct cachelb_usage *usage,
                   uint64_t now_ms);

/**
 * Applies one message of KV events of a worker's engine: the msgpack payload that vLLM and `SGLang` publish. `seq` is
 * its number, by which lost messages are noticed, or `CACHELB_UNKNOWN`. A payload that cannot be read is counted and
 * left out.
 */
int cachelb_events_apply(struct cachelb_router *router,
                         const char *key,
                         size_t key_len,
                         const uint8_t *payload,
                         size_t len,
                         uint64_t seq,
                         uint64_t now_ms);

/**
 * Writes every worker's cached prefixes to `sink`, for a router that starts later. Others may select meanwhile.
 * `unix_ms` is the time of day, in milliseconds of 1970. The router needs the option `namespace_key`.
 */
int cachelb_snapshot(struct cachelb_router *router,
                     uint64_t unix_ms,
                     cachelb_sink sink,
                     void *ctx);

/**
 * Restores the registered workers from a snapshot, which is checked as a whole first.
 */
int cachelb_restore(struct cachelb_router *router, const uint8_t *data, size_t len, uint64_t now_ms);

/**
 * Writes options, workers and counters to `sink`, as a JSON object.
 */
int cachelb_stats_json(struct cachelb_router *router, uint64_t now_ms, cachelb_sink sink, void *ctx);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CACHELB_H */
