package cachelb

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
)

func router(t testing.TB, options string, workers ...string) *Router {
	t.Helper()
	made, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	for _, worker := range workers {
		if err := made.AddWorker(worker); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func tokens(count int) []uint32 {
	ids := make([]uint32, count)
	for at := range ids {
		ids[at] = uint32(at)
	}
	return ids
}

func TestAPromptGoesBackToItsWorker(t *testing.T) {
	router := router(t, `{"seed": 7}`, "gpu0", "gpu1", "gpu2")
	defer router.Close()
	first, err := router.Select(tokens(1000))
	if err != nil {
		t.Fatal(err)
	}
	usage := Usage{CachedTokens: 0, PromptTokens: 1000, OutputTokens: 5}
	if !router.FirstToken(first) || !router.Complete(first, usage) || router.Complete(first, usage) {
		t.Fatal("a request ends once")
	}
	again, err := router.Select(tokens(1000))
	if err != nil || again.Worker != first.Worker || again.MatchedTokens != 992 || again.Reason != "prefix" {
		t.Fatal(first, again, err)
	}
	if !router.Fail(again, 503) {
		t.Fatal("it was open")
	}
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	var failed *Error
	if _, err := New(`{"polcy": 1}`); !errors.As(err, &failed) || failed.Reason != `policy "adaptive" has no option "polcy"` {
		t.Fatal(err)
	}
	router := router(t, `{}`)
	defer router.Close()
	if _, err := router.Select(nil); !errors.As(err, &failed) || failed.Code != NoWorker {
		t.Fatal(err)
	}
	if err := router.AddWorker(""); !errors.As(err, &failed) {
		t.Fatal(err)
	}
}

func TestGoroutinesShareARouter(t *testing.T) {
	router := router(t, `{}`, "gpu0", "gpu1")
	defer router.Close()
	var group sync.WaitGroup
	for worker := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			for round := range 1000 {
				pick, err := router.Select(tokens(worker*16 + round%64))
				if err != nil || !router.FirstToken(pick) || !router.Complete(pick, Usage{Unknown, Unknown, Unknown}) {
					t.Error(pick, err)
				}
			}
		}()
	}
	group.Wait()
	text, err := router.Stats()
	var stats struct {
		InFlight int            `json:"in_flight"`
		Endings  map[string]int `json:"endings"`
	}
	if err != nil || json.Unmarshal(text, &stats) != nil || stats.InFlight != 0 || stats.Endings["completed"] != 8000 {
		t.Fatal(string(text), err)
	}
}

func BenchmarkSelect(b *testing.B) {
	router := router(b, `{}`, "gpu0", "gpu1")
	defer router.Close()
	prompt := tokens(2048)
	for range b.N {
		pick, err := router.Select(prompt)
		if err != nil || !router.Complete(pick, Usage{Unknown, Unknown, Unknown}) {
			b.Fatal(err)
		}
	}
}

func ExampleRouter() {
	router, err := New(`{"policy": "adaptive", "seed": 7}`)
	if err != nil {
		panic(err)
	}
	defer router.Close()
	if err := router.AddWorker("http://gpu0:8000"); err != nil {
		panic(err)
	}
	pick, err := router.Select([]uint32{1, 2, 3})
	fmt.Println(pick.Worker, pick.PromptTokens, err)
	// Output: http://gpu0:8000 3 <nil>
}
