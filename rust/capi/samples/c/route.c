/* Routes a prompt twice over three workers: the second request finds the worker that holds it.
 *
 *     cargo build --release -p cachelb-c
 *     cc -std=c11 -I rust/capi/include rust/capi/samples/c/route.c target/release/libcachelb_c.a -lpthread -ldl -lm -o route
 */
#include <cachelb.h>
#include <stdio.h>
#include <string.h>

/* A gateway has a clock of its own that does not go back. */
static uint64_t now_ms = 0;

static int fail(const char *what) {
  char why[256];
  cachelb_last_error(why, sizeof why);
  fprintf(stderr, "%s: %s\n", what, why);
  return 1;
}

/* Picks a worker for a prompt, and forwards the request to it. */
static int serve(cachelb_router *router, const uint32_t *prompt, size_t len) {
  cachelb_request request;
  cachelb_pick pick;
  cachelb_usage usage;
  memset(&request, 0, sizeof request);
  request.size = sizeof request;
  pick.size = sizeof pick;
  if (cachelb_select_tokens(router, &request, prompt, len, ++now_ms, &pick) != CACHELB_OK) {
    /* A gateway goes on without the router: any worker will do. */
    return fail("select");
  }
  printf("%s: %llu of %llu tokens are cached there (%s)\n", pick.worker, (unsigned long long)pick.matched_tokens,
         (unsigned long long)pick.prompt_tokens, pick.reason);

  /* Here the request goes to the worker, and its answer comes back. */
  cachelb_first_token(router, pick.id, ++now_ms);
  usage.size = sizeof usage;
  usage.prompt_tokens = pick.prompt_tokens;
  usage.cached_tokens = CACHELB_UNKNOWN;
  usage.output_tokens = 20;
  return cachelb_complete(router, pick.id, &usage, ++now_ms) == CACHELB_OK ? 0 : fail("complete");
}

static int print(void *ctx, const uint8_t *data, size_t len) {
  return fwrite(data, 1, len, (FILE *)ctx) == len ? 0 : 1;
}

int main(void) {
  static const char options[] = "{\"policy\": \"adaptive\", \"seed\": 7}";
  static const char *const workers[] = {"http://gpu0:8000", "http://gpu1:8000", "http://gpu2:8000"};
  cachelb_router *router = NULL;
  uint32_t prompt[1000];
  char why[256];
  size_t at;
  int failed = 0;

  if (cachelb_abi_version() != CACHELB_ABI_VERSION) {
    fprintf(stderr, "the library is not that of the header\n");
    return 1;
  }
  if (cachelb_router_new(options, strlen(options), &router, why, sizeof why) != CACHELB_OK) {
    fprintf(stderr, "router: %s\n", why);
    return 1;
  }
  for (at = 0; at < 3; at++) {
    cachelb_worker_add(router, workers[at], strlen(workers[at]), now_ms);
  }
  for (at = 0; at < 1000; at++) {
    prompt[at] = (uint32_t)at;
  }
  failed |= serve(router, prompt, 1000);
  failed |= serve(router, prompt, 1000);
  cachelb_stats_json(router, now_ms, print, stdout);
  printf("\n");
  cachelb_router_free(router);
  return failed;
}
