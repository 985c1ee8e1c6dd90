// Package cachelb routes requests to the replica that already holds their prompt, by the C library of cachelb.
//
// Build the library with `cargo build --release -p cachelb-c` and name its folder in CGO_LDFLAGS, as in
// `CGO_LDFLAGS=-L/path/to/target/release go test -race ./...`.
package cachelb

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#cgo LDFLAGS: -lcachelb_c -lpthread -ldl -lm
#include <cachelb.h>
#include <stdlib.h>

int cachelbGather(void *ctx, uint8_t *data, size_t len);
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/cgo"
	"time"
	"unsafe"
)

// Code is what a failed call returned.
type Code int

// The codes that a gateway acts on.
const (
	NoWorker Code = C.CACHELB_E_NO_WORKER
	Broken   Code = C.CACHELB_E_PANIC
)

// Error says why a call failed.
type Error struct {
	Code   Code
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("cachelb: %s (%d)", e.Reason, e.Code) }

// Router may be used by any number of goroutines until it is closed.
type Router struct {
	router *C.cachelb_router
	start  time.Time
}

// Pick is the worker picked for a request.
type Pick struct {
	Worker        string
	Reason        string
	PromptTokens  uint64
	MatchedTokens uint64
	id            C.uint64_t
}

// Usage is what the engine counted.
type Usage struct{ CachedTokens, PromptTokens, OutputTokens uint64 }

// Unknown stands for a count that the engine did not give.
const Unknown uint64 = C.CACHELB_UNKNOWN

// New makes a router without workers; options are a JSON object.
func New(options string) (*Router, error) {
	if C.cachelb_abi_version() != C.CACHELB_ABI_VERSION {
		return nil, errors.New("cachelb: the library is not that of the header")
	}
	made := &Router{start: time.Now()}
	var reason [256]C.char
	code := C.cachelb_router_new(bytesOf(options), C.size_t(len(options)), &made.router, &reason[0], 256)
	if code != C.CACHELB_OK {
		return nil, &Error{Code(code), C.GoString(&reason[0])}
	}
	return made, nil
}

// Close frees the router; no other call may be under way.
func (r *Router) Close() { C.cachelb_router_free(r.router) }

// AddWorker registers a worker.
func (r *Router) AddWorker(key string) error {
	return result(func() C.int {
		return C.cachelb_worker_add(r.router, bytesOf(key), C.size_t(len(key)), r.now())
	})
}

// Select picks a worker for a prompt of token ids and books its load.
func (r *Router) Select(tokens []uint32) (Pick, error) {
	var request C.cachelb_request
	var pick C.cachelb_pick
	request.size, pick.size = C.sizeof_cachelb_request, C.sizeof_cachelb_pick
	words := tokens
	if len(words) == 0 {
		words = make([]uint32, 1) // a pointer to no tokens
	}
	first := (*C.uint32_t)(unsafe.Pointer(&words[0]))
	err := result(func() C.int {
		return C.cachelb_select_tokens(r.router, &request, first, C.size_t(len(tokens)), r.now(), &pick)
	})
	return Pick{
		Worker:        C.GoStringN(&pick.worker[0], C.int(pick.worker_len)),
		Reason:        C.GoString(&pick.reason[0]),
		PromptTokens:  uint64(pick.prompt_tokens),
		MatchedTokens: uint64(pick.matched_tokens),
		id:            pick.id,
	}, err
}

// FirstToken says that the answer began. It returns whether the request is still open, as the calls below do.
func (r *Router) FirstToken(pick Pick) bool {
	return C.cachelb_first_token(r.router, pick.id, r.now()) == C.CACHELB_OK
}

// Complete ends a request.
func (r *Router) Complete(pick Pick, usage Usage) bool {
	given := usage.c()
	return C.cachelb_complete(r.router, pick.id, &given, r.now()) == C.CACHELB_OK
}

// Fail ends a request that failed with an HTTP status, or 0 if there was no answer.
func (r *Router) Fail(pick Pick, status int) bool {
	given := Usage{Unknown, Unknown, Unknown}.c()
	return C.cachelb_error(r.router, pick.id, C.int(status), &given, r.now()) == C.CACHELB_OK
}

// Stats returns options, workers and counters as JSON.
func (r *Router) Stats() ([]byte, error) {
	var text []byte
	handle := cgo.NewHandle(&text)
	defer handle.Delete()
	err := result(func() C.int {
		return C.cachelb_stats_json(r.router, r.now(), C.cachelb_sink(C.cachelbGather), unsafe.Pointer(&handle))
	})
	return text, err
}

//export cachelbGather
func cachelbGather(ctx unsafe.Pointer, data *C.uint8_t, length C.size_t) C.int {
	text := (*(*cgo.Handle)(ctx)).Value().(*[]byte)
	*text = append(*text, unsafe.Slice((*byte)(data), int(length))...)
	return 0
}

func (u Usage) c() C.cachelb_usage {
	return C.cachelb_usage{
		size:          C.sizeof_cachelb_usage,
		cached_tokens: C.uint64_t(u.CachedTokens),
		prompt_tokens: C.uint64_t(u.PromptTokens),
		output_tokens: C.uint64_t(u.OutputTokens),
	}
}

// now is in milliseconds of a clock that does not go back.
func (r *Router) now() C.uint64_t { return C.uint64_t(time.Since(r.start).Milliseconds()) }

// result turns a code into an error, with the reason that belongs to the thread of the call.
func result(call func() C.int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	code := call()
	if code >= 0 {
		return nil
	}
	var reason [256]C.char
	C.cachelb_last_error(&reason[0], 256)
	return &Error{Code(code), C.GoString(&reason[0])}
}

// bytesOf points to the bytes of a text during a call; the library does not keep it.
func bytesOf(text string) *C.char {
	if text == "" {
		return (*C.char)(unsafe.Pointer(&none))
	}
	return (*C.char)(unsafe.Pointer(unsafe.StringData(text)))
}

var none byte
