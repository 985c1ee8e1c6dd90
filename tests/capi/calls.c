/* What the header promises, in the part of C that C++ shares. The only argument is the number of requests per thread. */
#include <cachelb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" int cachelb_test_panic(cachelb_router *router);
#else
int cachelb_test_panic(cachelb_router *router);
#endif

#define THREADS 8
#define EQUAL(expected, found)                                                                        \
  do {                                                                                                \
    long long wanted_ = (long long)(expected), found_ = (long long)(found);                           \
    if (wanted_ != found_) {                                                                          \
      char why_[256];                                                                                 \
      cachelb_last_error(why_, sizeof why_);                                                          \
      fprintf(stderr, "%d: %s is %lld, not %lld (%s)\n", __LINE__, #found, found_, wanted_, why_);     \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)

static char err[256];
static const char KEYED[] = "{\"seed\": 1, \"namespace_key\": \"000102030405060708090a0b0c0d0e0f\"}";

static cachelb_router *router_of(const char *options, int workers) {
  cachelb_router *router = NULL;
  char key[] = "gpu0";
  EQUAL(CACHELB_OK, cachelb_router_new(options, strlen(options), &router, err, sizeof err));
  EQUAL(0, strlen(err));
  for (; workers > 0; workers--, key[3]++) {
    EQUAL(CACHELB_OK, cachelb_worker_add(router, key, 4, 0));
  }
  return router;
}

static cachelb_request request_of(void) {
  cachelb_request request;
  memset(&request, 0, sizeof request);
  request.size = sizeof request;
  return request;
}

static cachelb_usage usage_of(void) {
  cachelb_usage usage;
  usage.size = sizeof usage;
  usage.cached_tokens = usage.prompt_tokens = usage.output_tokens = CACHELB_UNKNOWN;
  return usage;
}

static cachelb_pick pick_of(void) {
  cachelb_pick pick;
  memset(&pick, 0xab, sizeof pick);
  pick.size = sizeof pick;
  return pick;
}

static cachelb_pick selected(cachelb_router *router, const uint32_t *tokens, size_t len) {
  cachelb_request request = request_of();
  cachelb_pick pick = pick_of();
  EQUAL(CACHELB_OK, cachelb_select_tokens(router, &request, tokens, len, 1, &pick));
  EQUAL(strlen(pick.worker), pick.worker_len);
  return pick;
}

struct text {
  char *bytes;
  size_t len;
};

static int gather(void *ctx, const uint8_t *data, size_t len) {
  struct text *text = (struct text *)ctx;
  text->bytes = (char *)realloc(text->bytes, text->len + len + 1);
  memcpy(text->bytes + text->len, data, len);
  text->len += len;
  text->bytes[text->len] = 0;
  return 0;
}

static int refuse(void *ctx, const uint8_t *data, size_t len) {
  (void)ctx, (void)data, (void)len;
  return 7;
}

static void stats_have(cachelb_router *router, const char *part) {
  struct text text = {NULL, 0};
  EQUAL(CACHELB_OK, cachelb_stats_json(router, 1, gather, &text));
  if (strstr(text.bytes, part) == NULL) {
    fprintf(stderr, "no %s in %s\n", part, text.bytes);
    exit(1);
  }
  free(text.bytes);
}

static void life(void) {
  uint32_t tokens[64] = {0};
  cachelb_router *router = router_of("{\"seed\": 7}", 3);
  cachelb_usage usage = usage_of();
  cachelb_pick first = selected(router, tokens, 64), second;
  stats_have(router, "\"in_flight\":1");
  EQUAL(CACHELB_OK, cachelb_first_token(router, first.id, 2));
  EQUAL(CACHELB_OK, cachelb_tokens(router, first.id, 3, 3));
  usage.prompt_tokens = 64, usage.cached_tokens = 0, usage.output_tokens = 4;
  EQUAL(CACHELB_OK, cachelb_complete(router, first.id, &usage, 4));
  second = selected(router, tokens, 64);
  EQUAL(0, strcmp(first.worker, second.worker));
  EQUAL(48, second.matched_tokens);
  EQUAL(0, strcmp("prefix", second.reason));
  EQUAL(CACHELB_OK, cachelb_cancel(router, second.id, &usage, 5));
  stats_have(router, "\"endings\":{\"cancelled\":1,\"completed\":1}");
  EQUAL(CACHELB_OK, cachelb_router_free(router));
}

static void late_ids(void) {
  cachelb_router *router = router_of("{}", 1);
  cachelb_usage usage = usage_of();
  uint32_t token = 5;
  uint64_t ids[] = {selected(router, &token, 1).id, 0, 1234567, UINT64_MAX};
  size_t at;
  EQUAL(CACHELB_OK, cachelb_error(router, ids[0], 502, &usage, 2));
  for (at = 0; at < 4; at++) {
    EQUAL(CACHELB_LATE, cachelb_first_token(router, ids[at], 3));
    EQUAL(CACHELB_LATE, cachelb_tokens(router, ids[at], 1, 3));
    EQUAL(CACHELB_LATE, cachelb_complete(router, ids[at], &usage, 3));
    EQUAL(CACHELB_LATE, cachelb_error(router, ids[at], 0, &usage, 3));
    EQUAL(CACHELB_LATE, cachelb_cancel(router, ids[at], &usage, 3));
  }
  ids[0] = selected(router, &token, 1).id;
  EQUAL(CACHELB_OK, cachelb_worker_remove(router, "gpu0", 4, 0));
  EQUAL(CACHELB_OK, cachelb_complete(router, ids[0], &usage, 4));
  EQUAL(CACHELB_LATE, cachelb_complete(router, ids[0], &usage, 4));
  EQUAL(CACHELB_LATE, cachelb_worker_remove(router, "gpu0", 4, 0));
  EQUAL(CACHELB_LATE, cachelb_worker_set_ready(router, "gpu0", 4, 1));
  stats_have(router, "\"in_flight\":0");
  cachelb_router_free(router);
}

static void nulls(void) {
  cachelb_router *router = router_of(KEYED, 1), *none = NULL;
  cachelb_request request = request_of();
  cachelb_usage usage = usage_of();
  cachelb_pick pick = pick_of();
  uint32_t token = 5;
  const uint8_t byte = 1;
  uint64_t id = selected(router, &token, 1).id;
  cachelb_request broken;
  EQUAL(CACHELB_E_NULL, cachelb_last_error(NULL, 1));
  EQUAL(CACHELB_E_NULL, cachelb_router_new(NULL, 0, &none, err, sizeof err));
  EQUAL(CACHELB_E_NULL, cachelb_router_new("{}", 2, NULL, err, sizeof err));
  EQUAL(CACHELB_E_NULL, cachelb_router_new("{}", 2, &none, NULL, 0));
  EQUAL(CACHELB_E_NULL, cachelb_router_free(NULL));
  EQUAL(CACHELB_E_NULL, cachelb_worker_add(NULL, "a", 1, 0));
  EQUAL(CACHELB_E_NULL, cachelb_worker_add(router, NULL, 1, 0));
  EQUAL(CACHELB_E_NULL, cachelb_worker_remove(NULL, "a", 1, 0));
  EQUAL(CACHELB_E_NULL, cachelb_worker_remove(router, NULL, 1, 0));
  EQUAL(CACHELB_E_NULL, cachelb_worker_set_ready(NULL, "a", 1, 0));
  EQUAL(CACHELB_E_NULL, cachelb_worker_set_ready(router, NULL, 1, 0));
  EQUAL(CACHELB_E_NULL, cachelb_select_tokens(NULL, &request, &token, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_tokens(router, NULL, &token, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_tokens(router, &request, NULL, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_tokens(router, &request, &token, 1, 1, NULL));
  EQUAL(CACHELB_E_NULL, cachelb_select_text(NULL, &request, "a", 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_text(router, NULL, "a", 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_text(router, &request, NULL, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_text(router, &request, "a", 1, 1, NULL));
  EQUAL(CACHELB_E_NULL, cachelb_select_body(NULL, &request, &byte, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_body(router, NULL, &byte, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_body(router, &request, NULL, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_select_body(router, &request, &byte, 1, 1, NULL));
  broken = request, broken.session.len = 1;
  EQUAL(CACHELB_E_NULL, cachelb_select_tokens(router, &broken, &token, 1, 1, &pick));
  broken = request, broken.exclude_len = 1;
  EQUAL(CACHELB_E_NULL, cachelb_select_tokens(router, &broken, &token, 1, 1, &pick));
  EQUAL(CACHELB_E_NULL, cachelb_first_token(NULL, id, 1));
  EQUAL(CACHELB_E_NULL, cachelb_tokens(NULL, id, 1, 1));
  EQUAL(CACHELB_E_NULL, cachelb_complete(NULL, id, &usage, 1));
  EQUAL(CACHELB_E_NULL, cachelb_complete(router, id, NULL, 1));
  EQUAL(CACHELB_E_NULL, cachelb_error(NULL, id, 0, &usage, 1));
  EQUAL(CACHELB_E_NULL, cachelb_error(router, id, 0, NULL, 1));
  EQUAL(CACHELB_E_NULL, cachelb_cancel(NULL, id, &usage, 1));
  EQUAL(CACHELB_E_NULL, cachelb_cancel(router, id, NULL, 1));
  EQUAL(CACHELB_E_NULL, cachelb_events_apply(NULL, "gpu0", 4, &byte, 1, 0, 1));
  EQUAL(CACHELB_E_NULL, cachelb_events_apply(router, NULL, 4, &byte, 1, 0, 1));
  EQUAL(CACHELB_E_NULL, cachelb_events_apply(router, "gpu0", 4, NULL, 1, 0, 1));
  EQUAL(CACHELB_E_NULL, cachelb_snapshot(NULL, 1, gather, NULL));
  EQUAL(CACHELB_E_NULL, cachelb_snapshot(router, 1, NULL, NULL));
  EQUAL(CACHELB_E_NULL, cachelb_restore(NULL, &byte, 1, 1));
  EQUAL(CACHELB_E_NULL, cachelb_restore(router, NULL, 1, 1));
  EQUAL(CACHELB_E_NULL, cachelb_stats_json(NULL, 1, gather, NULL));
  EQUAL(CACHELB_E_NULL, cachelb_stats_json(router, 1, NULL, NULL));
  stats_have(router, "\"in_flight\":1");
  cachelb_router_free(router);
}

static void wrong_arguments(void) {
  cachelb_router *router = router_of("{}", 1);
  cachelb_request request = request_of(), wrong;
  cachelb_usage usage = usage_of();
  cachelb_pick pick = pick_of();
  uint32_t tokens[2] = {1, 2};
  const uint8_t body[] = "{\"messages\": [";
  char key[CACHELB_KEY_BYTES];
  EQUAL(CACHELB_OK, cachelb_router_free(router));
  EQUAL(CACHELB_E_OPTIONS, cachelb_router_new("{", 1, &router, err, sizeof err));
  EQUAL(1, router == NULL && strlen(err) > 0);
  EQUAL(CACHELB_E_UTF8, cachelb_router_new("\xff", 1, &router, err, sizeof err));
  router = router_of("{}", 1);
  wrong = request, wrong.size--;
  EQUAL(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, tokens, 2, 1, &pick));
  wrong = request, wrong.size = (size_t)1 << 40;
  EQUAL(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, tokens, 2, 1, &pick));
  wrong = request, wrong.flags = 2;
  EQUAL(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, tokens, 2, 1, &pick));
  wrong = request, wrong.lora.data = "\xff", wrong.lora.len = 1;
  EQUAL(CACHELB_E_UTF8, cachelb_select_tokens(router, &wrong, tokens, 2, 1, &pick));
  EQUAL(CACHELB_E_ARGUMENT,
        cachelb_select_tokens(router, &request, (const uint32_t *)(const void *)((char *)tokens + 1), 1, 1, &pick));
  EQUAL(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &request, tokens, (size_t)-1, 1, &pick));
  pick.size = 8;
  EQUAL(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &request, tokens, 2, 1, &pick));
  pick.size = sizeof pick;
  usage.size = 0;
  EQUAL(CACHELB_E_ARGUMENT, cachelb_complete(router, 1, &usage, 1));
  usage.size = sizeof usage;
  EQUAL(CACHELB_E_ARGUMENT, cachelb_error(router, 1, 200, &usage, 1));
  EQUAL(CACHELB_E_ARGUMENT, cachelb_error(router, 1, -500, &usage, 1));
  EQUAL(CACHELB_E_BODY, cachelb_select_body(router, &request, body, sizeof body - 1, 1, &pick));
  memset(key, 'k', sizeof key);
  EQUAL(CACHELB_E_KEY, cachelb_worker_add(router, key, sizeof key, 0));
  EQUAL(CACHELB_E_KEY, cachelb_worker_add(router, "", 0, 0));
  EQUAL(CACHELB_OK, cachelb_worker_add(router, key, sizeof key - 1, 0));
  EQUAL(CACHELB_E_UTF8, cachelb_worker_add(router, "\xc3", 1, 0));
  EQUAL(CACHELB_E_UNKNOWN_WORKER, cachelb_events_apply(router, "z", 1, body, 1, 0, 1));
  EQUAL(CACHELB_OK, cachelb_worker_remove(router, "gpu0", 4, 0));
  EQUAL(sizeof key - 1, selected(router, tokens, 2).worker_len);
  EQUAL(CACHELB_OK, cachelb_worker_set_ready(router, key, sizeof key - 1, 0));
  EQUAL(CACHELB_E_NO_WORKER, cachelb_select_tokens(router, &request, tokens, 2, 1, &pick));
  EQUAL(CACHELB_E_SNAPSHOT, cachelb_restore(router, body, 4, 1));
  EQUAL(CACHELB_E_SINK, cachelb_stats_json(router, 1, refuse, NULL));
  EQUAL(CACHELB_OK, cachelb_last_error(err, sizeof err));
  EQUAL(0, strcmp("the sink returned 7", err));
  cachelb_router_free(router);
}

static void failed(int code, int found, const char *part) {
  EQUAL(code, found);
  EQUAL(CACHELB_OK, cachelb_last_error(err, sizeof err));
  if (strstr(err, part) == NULL) {
    fprintf(stderr, "no %s in %s\n", part, err);
    exit(1);
  }
}

/* Lengths and counts beyond any memory or sum: none is read, and nothing is booked. */
static void huge_counts(void) {
  const size_t lengths[] = {(size_t)-1, (size_t)-1 / 2 + 1, (size_t)-1 - 1000};
  const uint64_t counts[] = {UINT64_MAX - 1, (uint64_t)INT64_MAX, (uint64_t)UINT32_MAX + 1};
  cachelb_router *router = router_of(KEYED, 1), *none = NULL;
  cachelb_request request = request_of(), wrong;
  cachelb_usage usage = usage_of();
  cachelb_pick pick = pick_of();
  const uint32_t token = 5;
  const uint8_t byte = 1;
  uint64_t id = selected(router, &token, 1).id;
  size_t at;
  for (at = 0; at < sizeof lengths / sizeof *lengths; at++) {
    const size_t len = lengths[at];
    const char fits[] = "must be aligned and fit into memory";
    failed(CACHELB_E_ARGUMENT, cachelb_router_new("{}", len, &none, err, sizeof err), "json must");
    failed(CACHELB_E_ARGUMENT, cachelb_worker_add(router, "a", len, 0), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_worker_remove(router, "a", len, 0), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_worker_set_ready(router, "a", len, 0), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_events_apply(router, "a", len, &byte, 1, 0, 1), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_events_apply(router, "gpu0", 4, &byte, len, 0, 1), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_restore(router, &byte, len, 1), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &request, &token, len, 1, &pick), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &request, &token, (size_t)-1 / 4 + 2, 1, &pick), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_select_text(router, &request, "a", len, 1, &pick), fits);
    failed(CACHELB_E_ARGUMENT, cachelb_select_body(router, &request, &byte, len, 1, &pick), fits);
    failed(CACHELB_E_NULL, cachelb_select_body(router, &request, NULL, len, 1, &pick), "body is NULL");
    wrong = request, wrong.session.data = "a", wrong.session.len = len;
    failed(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, &token, 1, 1, &pick), "request.session must");
    wrong = request, wrong.exclude_len = len;
    wrong.exclude = &wrong.session;
    failed(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, &token, 1, 1, &pick), fits);
    wrong.exclude_len = 1, wrong.session.data = "a", wrong.session.len = len;
    failed(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, &token, 1, 1, &pick), "request.");
  }
  for (at = 0; at < sizeof counts / sizeof *counts; at++) {
    const uint64_t count = counts[at];
    wrong = request, wrong.expected_output_tokens = count;
    failed(CACHELB_E_ARGUMENT, cachelb_select_tokens(router, &wrong, &token, 1, 1, &pick), "expected_output_tokens");
    failed(CACHELB_E_ARGUMENT, cachelb_tokens(router, id, count, 1), "count must be at most 4294967295, got ");
    failed(CACHELB_E_ARGUMENT, cachelb_tokens(router, id, UINT64_MAX, 1), "count must be at most");
    usage = usage_of(), usage.cached_tokens = count;
    failed(CACHELB_E_ARGUMENT, cachelb_complete(router, id, &usage, 1), "usage.cached_tokens must be at most");
    usage = usage_of(), usage.prompt_tokens = count;
    failed(CACHELB_E_ARGUMENT, cachelb_error(router, id, 500, &usage, 1), "usage.prompt_tokens must be at most");
    usage = usage_of(), usage.output_tokens = count;
    failed(CACHELB_E_ARGUMENT, cachelb_cancel(router, id, &usage, 1), "usage.output_tokens must be at most");
  }
  stats_have(router, "\"in_flight\":1");
  for (at = 0; at < 2; at++) {
    EQUAL(CACHELB_OK, cachelb_tokens(router, id, UINT32_MAX, UINT64_MAX));
  }
  usage = usage_of();
  EQUAL(CACHELB_OK, cachelb_complete(router, id, &usage, UINT64_MAX));
  stats_have(router, "\"in_flight\":0");
  cachelb_router_free(router);
}

static void small_buffers(void) {
  cachelb_router *router = NULL;
  char buffer[8];
  size_t len;
  for (len = 0; len < sizeof buffer; len++) {
    memset(buffer, '#', sizeof buffer);
    EQUAL(CACHELB_E_OPTIONS, cachelb_router_new("{\"\xc3\xa9\": 1}", 9, &router, buffer, len));
    EQUAL('#', buffer[len]);
    EQUAL(len == 0 ? 0 : len - 1, len == 0 ? 0 : strlen(buffer));
  }
  memset(buffer, '#', sizeof buffer);
  EQUAL(CACHELB_OK, cachelb_last_error(buffer, 1));
  EQUAL(0, buffer[0]);
  EQUAL('#', buffer[1]);
}

static void later_header(void) {
  struct {
    cachelb_request request;
    uint64_t more[4];
  } request;
  struct {
    cachelb_pick pick;
    uint64_t more[4];
  } pick;
  cachelb_router *router = router_of("{}", 1);
  uint32_t token = 1;
  memset(&request, 0, sizeof request), memset(&pick, 0xab, sizeof pick);
  request.request.size = sizeof request, pick.pick.size = sizeof pick;
  EQUAL(CACHELB_OK, cachelb_select_tokens(router, &request.request, &token, 1, 1, &pick.pick));
  EQUAL(sizeof pick, pick.pick.size);
  EQUAL(0xabababababababab, pick.more[0]);
  cachelb_router_free(router);
}

static void requests(void) {
  static const char path[] = "/v1/chat/completions", other[] = "gpu1";
  static const char head[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"", tail[] = "\"}]}";
  char body[3000];
  cachelb_router *router = router_of("{\"seed\": 1}", 2);
  cachelb_request request = request_of();
  cachelb_pick pick = pick_of(), again = pick_of(), dry = pick_of();
  cachelb_slice exclude;
  memset(body, 'x', sizeof body);
  memcpy(body, head, sizeof head - 1);
  memcpy(body + sizeof body - sizeof tail, tail, sizeof tail);
  request.path.data = path, request.path.len = sizeof path - 1;
  EQUAL(CACHELB_OK, cachelb_select_body(router, &request, (const uint8_t *)body, sizeof body - 1, 1, &pick));
  EQUAL(CACHELB_OK, cachelb_select_body(router, &request, (const uint8_t *)body, sizeof body - 1, 1, &again));
  EQUAL(0, strcmp(pick.worker, again.worker));
  EQUAL(1, again.matched_tokens > 0);
  exclude.data = pick.worker, exclude.len = pick.worker_len;
  request.exclude = &exclude, request.exclude_len = 1, request.flags = CACHELB_DRY_RUN;
  EQUAL(CACHELB_OK, cachelb_select_text(router, &request, body, sizeof body - 1, 1, &dry));
  EQUAL(0, dry.id);
  EQUAL(1, strcmp(pick.worker, dry.worker) != 0);
  stats_have(router, "\"in_flight\":2");
  EQUAL(CACHELB_OK, cachelb_worker_remove(router, other, 4, 1));
  cachelb_router_free(router);
}

static void events(void) {
  /* [0.0, [["BlockStored", [1], nil, 16 tokens, 16, nil]]] in msgpack */
  static const uint8_t stored[] = "\x92\xca\0\0\0\0\x91\x96\xab"
                                  "BlockStored\x91\x01\xc0\xdc\0\x10\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\x10\xc0";
  uint32_t tokens[40];
  cachelb_router *router = router_of("{\"policy\": \"kv-aware\"}", 2);
  cachelb_pick pick;
  size_t at;
  for (at = 0; at < 40; at++) {
    tokens[at] = 1;
  }
  EQUAL(CACHELB_OK, cachelb_events_apply(router, "gpu1", 4, stored, sizeof stored - 1, CACHELB_UNKNOWN, 1));
  EQUAL(CACHELB_OK, cachelb_events_apply(router, "gpu1", 4, stored, 3, 5, 1));
  pick = selected(router, tokens, 40);
  EQUAL(0, strcmp("gpu1", pick.worker));
  EQUAL(16, pick.matched_tokens);
  cachelb_router_free(router);
}

static void snapshots(void) {
  uint32_t tokens[640] = {0};
  cachelb_router *old = router_of(KEYED, 2), *later = router_of(KEYED, 2), *other = router_of("{}", 2);
  struct text kept = {NULL, 0};
  cachelb_pick pick = selected(old, tokens, 640);
  EQUAL(CACHELB_OK, cachelb_snapshot(old, 1, gather, &kept));
  EQUAL(CACHELB_E_SINK, cachelb_snapshot(old, 1, refuse, NULL));
  EQUAL(CACHELB_E_SNAPSHOT, cachelb_snapshot(other, 1, gather, &kept));
  EQUAL(CACHELB_E_SNAPSHOT, cachelb_restore(other, (const uint8_t *)kept.bytes, kept.len, 1));
  EQUAL(CACHELB_E_SNAPSHOT, cachelb_restore(later, (const uint8_t *)kept.bytes, kept.len / 2, 1));
  EQUAL(CACHELB_OK, cachelb_restore(later, (const uint8_t *)kept.bytes, kept.len, 1));
  EQUAL(0, strcmp(pick.worker, selected(later, tokens, 640).worker));
  free(kept.bytes);
  cachelb_router_free(old), cachelb_router_free(later), cachelb_router_free(other);
}

static void broken(void) {
  cachelb_router *router = router_of("{}", 1), *well = router_of("{}", 1);
  cachelb_request request = request_of();
  cachelb_usage usage = usage_of();
  cachelb_pick pick = pick_of();
  uint32_t token = 1;
  uint64_t id = selected(router, &token, 1).id;
  EQUAL(CACHELB_E_PANIC, cachelb_test_panic(router));
  EQUAL(CACHELB_E_PANIC, cachelb_complete(router, id, &usage, 1));
  EQUAL(CACHELB_E_PANIC, cachelb_select_tokens(router, &request, &token, 1, 1, &pick));
  EQUAL(CACHELB_E_PANIC, cachelb_worker_add(router, "a", 1, 1));
  EQUAL(CACHELB_E_PANIC, cachelb_stats_json(router, 1, gather, NULL));
  EQUAL(CACHELB_OK, cachelb_router_free(router));
  EQUAL(1, selected(well, &token, 1).id != 0);
  cachelb_router_free(well);
}

struct job {
  cachelb_router *router;
  int number, rounds;
};

static void *work(void *argument) {
  const struct job *job = (const struct job *)argument;
  cachelb_usage usage = usage_of();
  uint32_t tokens[48];
  int round, at;
  for (round = 0; round < job->rounds; round++) {
    cachelb_pick pick;
    for (at = 0; at < 48; at++) {
      tokens[at] = (uint32_t)(job->number * 1000 + round % 50 + at);
    }
    pick = selected(job->router, tokens, 48);
    EQUAL(CACHELB_OK, cachelb_first_token(job->router, pick.id, 1));
    EQUAL(CACHELB_OK, round % 3 ? cachelb_complete(job->router, pick.id, &usage, 1)
                                : cachelb_cancel(job->router, pick.id, &usage, 1));
  }
  return NULL;
}

static void threads(int rounds) {
  cachelb_router *router = router_of("{}", 4);
  pthread_t ids[THREADS];
  struct job jobs[THREADS];
  int at;
  for (at = 0; at < THREADS; at++) {
    jobs[at].router = router, jobs[at].number = at, jobs[at].rounds = rounds;
    EQUAL(0, pthread_create(&ids[at], NULL, work, &jobs[at]));
  }
  for (at = 0; at < THREADS; at++) {
    EQUAL(0, pthread_join(ids[at], NULL));
  }
  stats_have(router, "\"in_flight\":0");
  stats_have(router, "\"no_worker\":0");
  cachelb_router_free(router);
}

int main(int count, char **words) {
  EQUAL(2, count);
  EQUAL(CACHELB_ABI_VERSION, cachelb_abi_version());
  life(), late_ids(), nulls(), wrong_arguments(), huge_counts(), small_buffers(), later_header(), requests(), events(), snapshots();
  broken();
  threads(atoi(words[1]));
  printf("all as in the header\n");
  return 0;
}
