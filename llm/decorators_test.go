package llm_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// scripted is a model that answers with what answer returns for each call, from
// 0.
type scripted struct {
	answer func(ctx context.Context, n int, r llm.Request) (llm.Reply, error)

	mu    sync.Mutex
	calls int
}

func (m *scripted) Name() string { return "test:scripted" }

func (m *scripted) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	m.mu.Lock()
	n := m.calls
	m.calls++
	m.mu.Unlock()
	return m.answer(ctx, n, r)
}

func (m *scripted) made() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// failing answers with errors of these kinds, then with "ok".
func failing(kinds ...llm.Kind) *scripted {
	return &scripted{answer: func(_ context.Context, n int, _ llm.Request) (llm.Reply, error) {
		if n < len(kinds) {
			return llm.Reply{}, &llm.Error{Kind: kinds[n], Model: "test:scripted", Text: "it failed"}
		}
		return llm.Reply{Text: "ok", Stop: llm.StopEnd, Usage: llm.Usage{In: 10, Out: 5}}, nil
	}}
}

func TestRetry(t *testing.T) {
	after := func(d time.Duration) *scripted {
		return &scripted{answer: func(_ context.Context, n int, _ llm.Request) (llm.Reply, error) {
			if n == 0 {
				return llm.Reply{}, &llm.Error{Kind: llm.RateLimited, Model: "m", Text: "slowly", RetryAfter: d}
			}
			return llm.Reply{Text: "ok"}, nil
		}}
	}
	for _, test := range []struct {
		name     string
		model    *scripted
		random   float64
		attempts int // to allow
		made     int
		waited   time.Duration
		kind     llm.Kind
		says     string
	}{
		{"at once", failing(), 0, 5, 1, 0, "", ""},
		{"waits double", failing(llm.Unavailable, llm.Late, llm.Truncated), 0, 5, 4, 7 * time.Second, "", ""},
		{"chance is added", failing(llm.Unavailable, llm.Malformed), 0.8, 5, 3, 3*time.Second + 600*time.Millisecond, "", ""},
		{"attempts are bounded", failing(llm.Unreachable, llm.Unreachable, llm.Unreachable, llm.Unreachable), 0, 3, 3, 3 * time.Second, llm.Unreachable, "it failed (attempt 3 of 3)"},
		{"one attempt", failing(llm.Unavailable), 0, 1, 1, 0, llm.Unavailable, "it failed"},
		{"what does not pass", failing(llm.BadKey), 0, 5, 1, 0, llm.BadKey, "it failed"},
		{"over budget", failing(llm.Unavailable, llm.OverBudget), 0, 5, 2, time.Second, llm.OverBudget, ""},
		{"the server's wait", after(40 * time.Second), 0, 5, 2, 40 * time.Second, "", ""},
		{"the server's wait and chance", after(40 * time.Second), 1, 5, 2, 40*time.Second + 250*time.Millisecond, "", ""},
		{"a short wait of the server's", after(time.Millisecond), 0, 5, 2, time.Second, "", ""},
		{"a wait that is too long", after(time.Hour), 0, 5, 1, 0, llm.RateLimited, "left alone for 1h0m0s"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				m := llm.WithRetry(test.model, test.attempts, func() float64 { return test.random }, nil)
				reply, err := m.Generate(t.Context(), llmtest.Ask("hello"))
				var e *llm.Error
				if kindOf(err) != test.kind || errors.As(err, &e) && !strings.Contains(e.Text+" "+e.Hint, test.says) || err == nil && reply.Text != "ok" {
					t.Errorf("%+v, %v", reply, err)
				}
				if took := time.Since(began); test.model.made() != test.made || took != test.waited {
					t.Errorf("%d calls in %v, want %d in %v", test.model.made(), took, test.made, test.waited)
				}
			})
		})
	}
	// Who waits is told why, and for how long; the last failure is an error.
	synctest.Test(t, func(t *testing.T) {
		var told strings.Builder
		log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		_, err := llm.WithRetry(failing(llm.Unavailable, llm.Unavailable, llm.Unavailable), 3, func() float64 { return 0 }, log).Generate(t.Context(), llmtest.Ask("hello"))
		const want = `level=INFO msg="a model is asked again" in=1s attempt="2 of 3" error="test:scripted: it failed"
level=INFO msg="a model is asked again" in=2s attempt="3 of 3" error="test:scripted: it failed"
`
		if kindOf(err) != llm.Unavailable || told.String() != want {
			t.Errorf("%v, and told:\n%s", err, told.String())
		}
	})
	// Whoever leaves does not wait.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := llm.WithRetry(failing(llm.Unavailable, llm.Unavailable, llm.Unavailable), 5, func() float64 { return 0 }, nil).Generate(ctx, llmtest.Ask("hello"))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 1500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
	// The waits are bounded.
	synctest.Test(t, func(t *testing.T) {
		kinds := make([]llm.Kind, 12)
		for i := range kinds {
			kinds[i] = llm.Unavailable
		}
		began := time.Now()
		if _, err := llm.WithRetry(failing(kinds...), 20, func() float64 { return 0 }, nil).Generate(t.Context(), llmtest.Ask("hello")); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != (1+2+4+8+16+32+6*60)*time.Second {
			t.Errorf("12 failures took %v", took)
		}
	})
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &scripted{answer: func(ctx context.Context, _ int, _ llm.Request) (llm.Reply, error) {
			select {
			case <-time.After(time.Minute):
				return llm.Reply{Text: "ok"}, nil
			case <-ctx.Done():
				return llm.Reply{}, ctx.Err()
			}
		}}
		if _, err := llm.WithDeadline(slow, time.Second).Generate(t.Context(), llmtest.Ask("a")); kindOf(err) != llm.Late || !strings.Contains(err.Error(), "no reply within 1s") {
			t.Errorf("too slow: %v", err)
		}
		if reply, err := llm.WithDeadline(slow, time.Hour).Generate(t.Context(), llmtest.Ask("a")); err != nil || reply.Text != "ok" {
			t.Errorf("in time: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := llm.WithDeadline(slow, time.Hour).Generate(ctx, llmtest.Ask("a")); !errors.Is(err, context.DeadlineExceeded) || kindOf(err) != "" {
			t.Errorf("the caller's own deadline: %v", err)
		}
	})
}

func TestLimits(t *testing.T) {
	// n calls at once through the limits; each takes most of a second and 100 + 500
	// tokens.
	run := func(t *testing.T, n, concurrency, requests, tokens int) (took time.Duration, most int) {
		var mu sync.Mutex
		inside := 0
		limits := llm.NewLimits(concurrency, requests, tokens)
		models := []llm.Model{} // of one account
		for range 2 {
			models = append(models, limits.Watch(&scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(900 * time.Millisecond)
				mu.Lock()
				inside--
				mu.Unlock()
				return llm.Reply{Usage: llm.Usage{In: 100, Out: 500}}, nil
			}}))
		}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if _, err := models[i%2].Generate(t.Context(), llmtest.Ask(strings.Repeat("abc", 92))); err != nil { // 100 tokens as estimated
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return time.Since(began).Round(time.Second), most
	}
	for _, test := range []struct {
		name                             string
		n, concurrency, requests, tokens int
		took                             time.Duration
		most                             int
	}{
		{"none", 50, 0, 0, 0, time.Second, 50},
		{"concurrency", 20, 4, 0, 0, 5 * time.Second, 4},
		{"requests by the minute", 16, 0, 60, 0, 11 * time.Second, 6}, // six at once, then one a second
		// Before the sixth begins five times 600 and its 100 must be there: 600 at once, the rest at 10 a second.
		{"tokens by the minute", 6, 1, 0, 600, 251 * time.Second, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, most := run(t, test.n, test.concurrency, test.requests, test.tokens)
				if took != test.took || most != test.most {
					t.Errorf("%v with %d at once, want %v with %d", took, most, test.took, test.most)
				}
			})
		})
	}
	// A prompt larger than a minute's tokens waits, and is asked.
	synctest.Test(t, func(t *testing.T) {
		m := llm.NewLimits(0, 0, 100).Watch(failing())
		if _, err := m.Generate(t.Context(), llmtest.Ask(strings.Repeat("x", 10_000))); err != nil {
			t.Error(err)
		}
	})
	// Whoever leaves while waiting gets the context's error.
	synctest.Test(t, func(t *testing.T) {
		m := llm.NewLimits(0, 1, 0).Watch(failing())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, first := m.Generate(ctx, llmtest.Ask("a"))
		_, second := m.Generate(ctx, llmtest.Ask("a"))
		if first != nil || !errors.Is(second, context.DeadlineExceeded) || ctx.Err() == nil {
			t.Errorf("%v, then %v", first, second)
		}
	})
}
