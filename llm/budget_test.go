package llm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

var someDay = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// charge is one that the ledger already has.
func charge(run int64, model string, at time.Time, tokens int64, usd float64, wall time.Duration) llm.Charge {
	return llm.Charge{Key: llm.Key{Run: run}, Model: model, Usage: llm.Usage{In: tokens}, USD: &usd, EndedMS: at.UnixMilli(), Took: wall}
}

func TestBudgetRefuses(t *testing.T) {
	const name = "test:scripted"
	yesterday, dear := someDay.Add(-13*time.Hour), 12.5
	prices := llm.Prices{name: {In: 10, Out: 100, AsOf: "2026-11-23"}}
	// A request of 1000 bytes: at most 1544 tokens in, and 100 out: 1644, or
	// 0.01544 + 0.01 USD.
	for _, test := range []struct {
		name    string
		allowed llm.Allowances
		prices  llm.Prices
		spent   []llm.Charge
		want    string // "": it is asked
	}{
		{"nothing is limited", llm.Allowances{}, nil, nil, ""},
		{"money is enough", llm.Allowances{Run: llm.Allowance{USD: 0.02545}}, prices, nil, ""},
		{"money is enough, were there no cache to write to", llm.Allowances{Run: llm.Allowance{USD: 0.02545}}, llm.Prices{name: {In: 10, CacheWrite: &dear, Out: 100, AsOf: "2026-11-23"}}, nil,
			"the call could cost $0.0293"}, // 0.0193 + 0.01
		{"money is enough, were what is cached not dearer", llm.Allowances{Run: llm.Allowance{USD: 0.02545}}, llm.Prices{name: {In: 10, CachedIn: &dear, Out: 100, AsOf: "2026-11-23"}}, nil,
			"the call could cost $0.0293"},
		{"money is not enough", llm.Allowances{Run: llm.Allowance{USD: 0.0254}}, prices, nil,
			"the budget of this run ([budget.run]): $0.0254 of $0.0254 are left, and the call could cost $0.0254"},
		{"money was spent", llm.Allowances{Run: llm.Allowance{USD: 1}}, prices, []llm.Charge{charge(7, name, someDay, 1, 0.98, 0)},
			"the budget of this run ([budget.run]): $0.0200 of $1.0000 are left, and the call could cost $0.0254"},
		{"by another run", llm.Allowances{Run: llm.Allowance{USD: 1}}, prices, []llm.Charge{charge(8, name, someDay, 1, 0.98, 0)}, ""},
		{"on this day", llm.Allowances{Day: llm.Allowance{USD: 1}}, prices, []llm.Charge{charge(8, "a:b", someDay, 1, 0.98, 0)}, "the budget of today, UTC ([budget.day]): $0.0200"},
		{"yesterday", llm.Allowances{Day: llm.Allowance{USD: 1}}, prices, []llm.Charge{charge(8, name, yesterday, 1, 0.98, 0)}, ""},
		{"by this model", llm.Allowances{Models: map[string]llm.Allowance{name: {Tokens: 2000}}}, nil, []llm.Charge{charge(8, name, someDay, 400, 0, 0)},
			"the budget of this model today, UTC ([budget.models.\"test:scripted\"]): 1600 of 2000 tokens are left, and the call could take 1644"},
		{"by another model", llm.Allowances{Models: map[string]llm.Allowance{name: {Tokens: 2000}}}, nil, []llm.Charge{charge(8, "a:b", someDay, 400, 0, 0)}, ""},
		{"a limit of another model", llm.Allowances{Models: map[string]llm.Allowance{"a:b": {Tokens: 1}}}, nil, nil, ""},
		{"the price is not known", llm.Allowances{Day: llm.Allowance{USD: 1}}, llm.Prices{"test:other": prices[name]}, nil, "the price of the model is not known"},
		{"tokens need no price", llm.Allowances{Day: llm.Allowance{Tokens: 5000}}, nil, nil, ""},
		{"calls", llm.Allowances{Run: llm.Allowance{Calls: 2}}, nil, []llm.Charge{charge(7, name, someDay, 1, 0, 0), charge(7, name, someDay, 1, 0, 0)}, "0 of 2 calls are left"},
		{"time", llm.Allowances{Run: llm.Allowance{Wall: time.Hour}}, nil, []llm.Charge{charge(7, name, someDay, 1, 0, time.Hour)}, "nothing of 1h0m0s of waiting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ledger := &llmtest.Ledger{}
			for _, c := range test.spent {
				if _, err := ledger.Book(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			inner := failing()
			b := llm.NewBudget(test.allowed, test.prices, ledger, func() time.Time { return someDay })
			r := llmtest.Ask(strings.Repeat("x", 1000))
			r.Key, r.MaxTokens = llm.Key{Run: 7, Agent: "coder"}, 100
			_, err := b.Watch(inner, 9999, time.Minute).Generate(t.Context(), r)
			if test.want == "" {
				if err != nil || inner.made() != 1 || len(ledger.Charges()) != len(test.spent)+1 {
					t.Errorf("%v; %d calls", err, inner.made())
				}
				return
			}
			if kindOf(err) != llm.OverBudget || !strings.Contains(err.Error(), test.want) || inner.made() != 0 || len(ledger.Charges()) != len(test.spent) {
				t.Errorf("%v; %d calls; want %q", err, inner.made(), test.want)
			}
		})
	}
}

// A day is one of UTC, wherever the machine is.
func TestBudgetOfADayElsewhere(t *testing.T) {
	for _, zone := range []int{-11, 0, 13} {
		now := time.Date(2026, 11, 23, 12, 30, 0, 0, time.UTC).In(time.FixedZone("", zone*3600))
		for at, want := range map[time.Time]llm.Kind{
			time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC):              llm.OverBudget,
			time.Date(2026, 11, 22, 23, 59, 59, 999_000_000, time.UTC): "",
		} {
			ledger := &llmtest.Ledger{}
			if _, err := ledger.Book(t.Context(), charge(8, "a:b", at, 1, 0, 0)); err != nil {
				t.Fatal(err)
			}
			b := llm.NewBudget(llm.Allowances{Day: llm.Allowance{Calls: 1}}, nil, ledger, func() time.Time { return now })
			_, err := b.Watch(failing(), 10, time.Minute).Generate(t.Context(), llmtest.Ask("hello"))
			if kindOf(err) != want {
				t.Errorf("at %v, after a call at %v: %v", now, at, err)
			}
		}
	}
}

func TestBudgetBooks(t *testing.T) {
	const name = "test:scripted"
	prices := llm.Prices{name: {In: 1e6, Out: 2e6, AsOf: "2026-11-23"}} // a dollar a token in, two out
	worst := llm.Usage{In: 5 + 512 + 32, Out: 64, Estimated: true}
	for _, test := range []struct {
		name   string
		err    error
		usage  llm.Usage
		usd    float64
		failed llm.Kind
	}{
		{"a reply", nil, llm.Usage{In: 10, Out: 5}, 20, ""},
		{"what was not asked", &llm.Error{Kind: llm.Unreachable}, llm.Usage{}, 0, llm.Unreachable},
		{"what was refused", &llm.Error{Kind: llm.RateLimited, Status: 429}, llm.Usage{}, 0, llm.RateLimited},
		{"a server's failure", &llm.Error{Kind: llm.Unavailable, Status: 503}, llm.Usage{}, 0, llm.Unavailable},
		{"a connection that broke", &llm.Error{Kind: llm.Unavailable}, worst, 549 + 128, llm.Unavailable},
		{"an error in the reply", &llm.Error{Kind: llm.Unavailable, Status: 200}, worst, 549 + 128, llm.Unavailable},
		{"a reply that broke off", &llm.Error{Kind: llm.Truncated, Status: 200}, worst, 549 + 128, llm.Truncated},
		{"a reply that cannot be read", &llm.Error{Kind: llm.Malformed, Status: 200}, worst, 549 + 128, llm.Malformed},
		{"late", &llm.Error{Kind: llm.Late}, worst, 549 + 128, llm.Late},
		{"given up by nobody", context.Canceled, worst, 549 + 128, llm.Late},
	} {
		t.Run(test.name, func(t *testing.T) {
			ledger := &llmtest.Ledger{}
			inner := &scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
				if test.err != nil {
					return llm.Reply{}, test.err
				}
				return llm.Reply{Usage: llm.Usage{In: 10, Out: 5}}, nil
			}}
			// Money for exactly one worst case: what is held is let go of.
			b := llm.NewBudget(llm.Allowances{Run: llm.Allowance{USD: 677 * 2}}, prices, ledger, func() time.Time { return someDay })
			r := llmtest.Ask("hello")
			r.Key = llm.Key{Run: 1}
			m := b.Watch(inner, 9999, time.Minute)
			for i := range 2 {
				if _, err := m.Generate(t.Context(), r); !errors.Is(err, test.err) {
					t.Fatalf("%v", err)
				}
				c := ledger.Charges()[i]
				if c.Usage != test.usage || c.USD == nil || *c.USD != test.usd || c.Failed != test.failed || c.Model != name || c.Key != r.Key || c.EndedMS != someDay.UnixMilli() {
					t.Errorf("booked %+v", c)
				}
			}
		})
	}
}

func TestBudgetOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &llmtest.Ledger{}
		slow := &scripted{answer: func(ctx context.Context, _ int, _ llm.Request) (llm.Reply, error) {
			<-ctx.Done()
			return llm.Reply{}, ctx.Err()
		}}
		b := llm.NewBudget(llm.Allowances{Run: llm.Allowance{Wall: 90 * time.Second}}, nil, ledger, nil)
		m := b.Watch(llm.WithDeadline(slow, time.Minute), 100, time.Minute)
		r := llmtest.Ask("hello")
		r.Key = llm.Key{Run: 1}
		began := time.Now()
		if _, err := m.Generate(t.Context(), r); kindOf(err) != llm.Late {
			t.Errorf("the first: %v", err)
		}
		if _, err := m.Generate(t.Context(), r); kindOf(err) != llm.OverBudget || !strings.Contains(err.Error(), "ended after the 30s") {
			t.Errorf("the second: %v", err)
		}
		if _, err := m.Generate(t.Context(), r); kindOf(err) != llm.OverBudget || !strings.Contains(err.Error(), "nothing of 1m30s") {
			t.Errorf("the third: %v", err)
		}
		if took := time.Since(began); took != 90*time.Second {
			t.Errorf("%v were waited", took)
		}
	})
}

// Calls that stand in each other's way only by what they could cost wait for
// each other, and are all made.
func TestBudgetWaitsForCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &llmtest.Ledger{}
		inner := &scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
			time.Sleep(time.Second)
			return llm.Reply{Usage: llm.Usage{In: 10, Out: 10}}, nil
		}}
		// Each could take 613 tokens and a minute.
		b := llm.NewBudget(llm.Allowances{Day: llm.Allowance{Tokens: 1500, Wall: time.Hour}}, nil, ledger, nil)
		m := b.Watch(inner, 64, time.Minute)
		began := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := m.Generate(t.Context(), llmtest.Ask("hello")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took != 5*time.Second { // two at a time
			t.Errorf("%v were waited", took)
		}
		// Who leaves while waiting is not asked for.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		go func() { _, _ = m.Generate(t.Context(), llmtest.Ask("a")) }()
		synctest.Wait()
		r := llmtest.Ask("b")
		r.MaxTokens = 450
		if _, err := m.Generate(ctx, r); !errors.Is(err, context.DeadlineExceeded) || inner.made() != 11 {
			t.Errorf("%v; %d calls", err, inner.made())
		}
		time.Sleep(time.Minute) // the other one ends
	})
}

// Whatever is asked at once, however it ends: no limit is ever passed.
func TestBudgetIsNeverPassed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		allowed := llm.Allowance{
			USD: rapid.Float64Range(0.01, 5).Draw(t, "usd"), Tokens: rapid.Int64Range(1000, 50_000).Draw(t, "tokens"),
			Calls: rapid.Int64Range(1, 30).Draw(t, "calls"),
		}
		prices := llm.Prices{"test:*": {In: rapid.Float64Range(0, 50).Draw(t, "in"), Out: rapid.Float64Range(0, 200).Draw(t, "out")}}
		ledger := &llmtest.Ledger{}
		b := llm.NewBudget(llm.Allowances{Day: allowed}, prices, ledger, nil)
		seed := rapid.Uint64().Draw(t, "seed")
		m := b.Watch(&scripted{answer: func(_ context.Context, n int, r llm.Request) (llm.Reply, error) {
			random := rand.New(rand.NewPCG(seed, uint64(n)))
			if random.IntN(4) == 0 {
				return llm.Reply{}, &llm.Error{Kind: llm.Truncated}
			}
			in, out := llm.PromptBound(r), int64(r.MaxTokens)
			return llm.Reply{Usage: llm.Usage{In: random.Int64N(in + 1), Out: random.Int64N(out + 1)}}, nil
		}}, 0, time.Minute)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				r := llmtest.Ask(strings.Repeat("x", 100*(i%7)))
				r.MaxTokens = 1 + 100*(i%5)
				_, err := m.Generate(context.Background(), r)
				if k := kindOf(err); k != "" && k != llm.OverBudget && k != llm.Truncated {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		sum, err := ledger.Spent(context.Background(), llm.Scope{})
		if err != nil || sum.USD > allowed.USD+1e-9 || sum.TokensIn+sum.TokensOut > allowed.Tokens || sum.Calls > allowed.Calls {
			t.Fatalf("spent %+v of %+v: %v", sum, allowed, err)
		}
	})
}

// Who has left already is asked for nothing, so nothing is booked.
func TestBudgetOfTheGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ledger := &llmtest.Ledger{}
	inner := failing()
	m := llm.NewBudget(llm.Allowances{}, nil, ledger, nil).Watch(inner, 10, time.Minute)
	if _, err := m.Generate(ctx, llmtest.Ask("a")); !errors.Is(err, context.Canceled) || inner.made() != 0 || len(ledger.Charges()) != 0 {
		t.Errorf("%v; %d calls, booked %+v", err, inner.made(), ledger.Charges())
	}
	// Who leaves in the middle may have been billed.
	ctx, cancel = context.WithCancel(t.Context())
	leaving := &scripted{answer: func(ctx context.Context, _ int, _ llm.Request) (llm.Reply, error) {
		cancel()
		return llm.Reply{}, ctx.Err()
	}}
	m = llm.NewBudget(llm.Allowances{}, nil, ledger, nil).Watch(leaving, 10, time.Minute)
	if _, err := m.Generate(ctx, llmtest.Ask("a")); !errors.Is(err, context.Canceled) || len(ledger.Charges()) != 1 || ledger.Charges()[0].Usage.Out != 64 || ledger.Charges()[0].Failed != llm.Interrupted {
		t.Errorf("%v; booked %+v", err, ledger.Charges())
	}
}

type brokenLedger struct{ llmtest.Ledger }

func (*brokenLedger) Book(context.Context, llm.Charge) (int64, error) {
	return 0, errors.New("disk full")
}

// What cannot be booked is not asked.
func TestBudgetThatCannotBook(t *testing.T) {
	b := llm.NewBudget(llm.Allowances{}, nil, &brokenLedger{}, nil)
	inner := failing()
	if _, err := b.Watch(inner, 10, time.Minute).Generate(t.Context(), llmtest.Ask("a")); err == nil || !strings.Contains(err.Error(), "disk full") || inner.made() != 0 {
		t.Errorf("%v; %d calls", err, inner.made())
	}
}

// A process that dies while it waits for a reply leaves what that can have cost,
// and so does one that still waits, for another.
func TestBudgetAfterACrash(t *testing.T) {
	const name = "test:scripted"
	ledger := &llmtest.Ledger{}
	prices := llm.Prices{name: {In: 1e6, Out: 2e6, AsOf: "2026-11-23"}}
	allowed := llm.Allowances{Run: llm.Allowance{USD: 677 + 600}} // two calls could cost more
	r := llmtest.Ask("hello")
	r.Key = llm.Key{Run: 1}
	asked, leave := make(chan struct{}), make(chan struct{})
	defer close(leave)
	first := llm.NewBudget(allowed, prices, ledger, nil).Watch(&scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
		close(asked)
		<-leave // this is where it dies
		return llm.Reply{}, nil
	}}, 9999, time.Minute)
	go func() { _, _ = first.Generate(context.Background(), r) }()
	<-asked
	inner := failing()
	_, err := llm.NewBudget(allowed, prices, ledger, nil).Watch(inner, 9999, time.Minute).Generate(t.Context(), r)
	if kindOf(err) != llm.OverBudget || !strings.Contains(err.Error(), "$600.0000 of $1277.0000 are left") || inner.made() != 0 {
		t.Errorf("%v; %d calls", err, inner.made())
	}
	if c := ledger.Charges()[0]; c.Failed != llm.Unfinished || *c.USD != 677 || c.Took != time.Minute || c.Key != r.Key || c.Model != name {
		t.Errorf("booked %+v", c)
	}
}

// A model at a loopback address costs nothing, whatever its provider is called,
// unless a price is written; one elsewhere costs what is written alone.
func TestModelsOnThisMachineCostNothing(t *testing.T) {
	written := llm.Prices{"priced:*": {In: 2, AsOf: "2026-11-23"}}
	for _, test := range []struct {
		model, url string
		want       float64 // of a token in; -1: not known
	}{
		{"llamacpp:m", "", 0}, {"sglang:m", "", 0}, {"vllm:m", "", 0}, {"mine:m", "http://127.0.0.2:9/v1", 0}, {"mine:m", "http://[::1]:9/v1", 0},
		{"openai:m", "http://localhost:8080/v1", 0}, {"mine:m", "http://gpu-box:9/v1", -1}, {"openai:m", "", -1}, {"vllm:m", "http://10.0.0.1:8000/v1", -1},
		{"priced:m", "http://localhost:9/v1", 2}, {"mine:m", "http://localhost.example.org/v1", -1}, {"policy:m", "", 0}, {"training:m", "", -1}, {"recorded:m", "", -1}, {"nonsense", "", -1},
	} {
		o := llm.Options{BaseURL: test.url}
		cost := written.With(test.model, o).Cost(test.model, llm.Usage{In: 1e6})
		if test.want < 0 && cost != nil || test.want >= 0 && (cost == nil || *cost != test.want) {
			t.Errorf("%s at %q costs %v, want %v", test.model, test.url, cost, test.want)
		}
	}
	if len(written) != 1 {
		t.Errorf("what was written has changed: %v", written)
	}
	// Where money is limited it is asked all the same, and booked with $0.
	s, ledger, journal := llmtest.NewCompatible(t), &llmtest.Ledger{}, &llmtest.Journal{}
	b := llm.NewBudget(llm.Allowances{Day: llm.Allowance{USD: 0.01}}, written, ledger, nil)
	m, err := llm.New("mine:m", s.Options(), llm.Services{Prices: written, Budget: b, Journal: journal})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Generate(t.Context(), keyed("hello", llm.Key{Run: 1})); err != nil {
		t.Fatal(err)
	}
	if c := ledger.Charges(); len(c) != 1 || c[0].USD == nil || *c[0].USD != 0 {
		t.Errorf("booked %+v", c)
	}
	if r := journal.Records(); len(r) != 1 || r[0].CostUSD == nil || *r[0].CostUSD != 0 {
		t.Errorf("recorded %+v", r)
	}
	if err := b.Allows("other:m"); err == nil {
		t.Error("a model of which nothing is known is allowed")
	}
}

func TestPrices(t *testing.T) {
	half, more := 0.5, 1.25
	p := llm.Prices{
		"anthropic:c":        {In: 1, CachedIn: &half, CacheWrite: &more, Out: 10, AsOf: "2026-11-23"},
		"openai:gpt-5":       {In: 1, CachedIn: &half, Out: 10, AsOf: "2026-11-23"},
		"openai:gpt-5*":      {In: 2, Out: 20, AsOf: "2026-11-23"},
		"openai:*":           {In: 3, Out: 30, AsOf: "2026-11-23"},
		"openrouter:meta/l*": {In: 4, Out: 40, AsOf: "2026-11-23"},
	}
	for name, want := range map[string]float64{"openai:gpt-5": 1, "openai:gpt-5-mini": 2, "openai:o3": 3, "openrouter:meta/llama": 4} {
		if got, ok := p.Of(name); !ok || got.In != want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
	u := llm.Usage{In: 1_000_000, Out: 100_000, CachedIn: 400_000}
	if got := p.Cost("openai:gpt-5", u); got == nil || math.Abs(*got-(0.6+0.2+1)) > 1e-12 {
		t.Errorf("with cached tokens: %v", got)
	}
	if got := p.Cost("openai:gpt-5-mini", u); got == nil || math.Abs(*got-4) > 1e-12 {
		t.Errorf("without a price of cached ones: %v", *got)
	}
	u.CacheWrite = 500_000
	if got := p.Cost("anthropic:c", u); got == nil || math.Abs(*got-(0.1+0.2+0.625+1)) > 1e-12 {
		t.Errorf("with tokens that were written to a cache: %v", *got)
	}
	if got := p.Cost("openai:gpt-5", u); got == nil || math.Abs(*got-(0.6+0.2+1)) > 1e-12 {
		t.Errorf("without a price of those: %v", *got)
	}
	for _, name := range []string{"anthropic:claude", "openrouter:meta", "openai", ""} {
		if got := p.Cost(name, u); got != nil {
			t.Errorf("%s costs %v, which nobody said", name, *got)
		}
	}
	minus := -2.0
	for name, bad := range map[string]llm.Prices{
		"a * may stand":  {"openai:*-mini": {AsOf: "2026-11-23"}},
		"is no price":    {"a:b": {In: -1, AsOf: "2026-11-23"}},
		"-2 is no price": {"a:b": {CacheWrite: &minus, AsOf: "2026-11-23"}},
		"as_of is \"\"":  {"a:b": {}},
		"as_of is \"x\"": {"a:b": {AsOf: "x"}},
	} {
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q: %v", name, err)
		}
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if err := (llm.Allowances{Models: map[string]llm.Allowance{"a:b": {Calls: -1}}}).Validate(); err == nil || !strings.Contains(fmt.Sprint(err), `models."a:b"`) {
		t.Errorf("a negative limit: %v", err)
	}
}

// A reply that a server's own error ends has been begun, and may be billed.
func TestErrorInAReplyIsBooked(t *testing.T) {
	for _, d := range doubles {
		s := d.start(t)
		ledger := &llmtest.Ledger{}
		m := llm.NewBudget(llm.Allowances{}, nil, ledger, nil).Watch(open(t, d.model, s, nil), 100, time.Minute)
		s.Say(llmtest.Answer{Text: "half of a kernel", Fault: llmtest.InStream}, llmtest.Answer{Problem: llmtest.Overloaded})
		for i, billed := range []bool{true, false} {
			_, err := m.Generate(t.Context(), llmtest.Ask("hello"))
			if c := ledger.Charges()[i]; kindOf(err) != llm.Unavailable || (c.Usage.Out > 0) != billed {
				t.Errorf("%s: %v is booked as %+v", d.model, err, c)
			}
		}
	}
}

// A bound holds for what is sent: arguments that are no JSON go back within one.
func TestPromptBoundOfArguments(t *testing.T) {
	for _, arguments := range []string{strings.Repeat("\"", 10_000), strings.Repeat("\x01", 10_000), `{"a":1}`} {
		r := llm.Request{Messages: []llm.Message{{Role: llm.Assistant, ToolCalls: []llm.ToolCall{{ID: "a", Name: "f", Arguments: arguments}}},
			{Role: llm.ToolRole, Call: "a", Name: "f", Text: "no"}}}
		s := llmtest.NewCompatible(t)
		body := sent(t, "vllm:m", s, nil, r)
		call := body["messages"].([]any)[0].(map[string]any)["tool_calls"].([]any)[0].(map[string]any)["function"].(map[string]any)
		if n := len(call["arguments"].(string)); int64(n) > llm.PromptBound(r) {
			t.Errorf("%d bytes of arguments are sent, and the bound is %d tokens", n, llm.PromptBound(r))
		}
	}
}

// A model without a price is refused at once where money is limited, and not with its
// first call.
func TestBudgetInMoneyNeedsAPrice(t *testing.T) {
	const name = "vllm:m"
	money := llm.Allowance{USD: 1}
	for _, test := range []struct {
		name    string
		allowed llm.Allowances
		prices  llm.Prices
		want    string
	}{
		{"of a run", llm.Allowances{Run: money}, nil, "budget.run.usd limits what it may cost, and its price is not known"},
		{"of a day", llm.Allowances{Day: money, Run: llm.Allowance{Tokens: 1}}, nil, "budget.day.usd limits"},
		{"of the model", llm.Allowances{Models: map[string]llm.Allowance{name: money}}, nil, `budget.models."vllm:m".usd limits`},
		{"of another model", llm.Allowances{Models: map[string]llm.Allowance{"vllm:n": money}}, nil, ""},
		{"not of money", llm.Allowances{Run: llm.Allowance{Tokens: 1}}, nil, ""},
		{"for nothing", llm.Allowances{Run: money}, llm.Prices{"vllm:*": {}}, ""},
	} {
		b := llm.NewBudget(test.allowed, test.prices, &llmtest.Ledger{}, nil)
		_, err := llm.New(name, llm.Options{BaseURL: "http://gpu-box:8000/v1"}, llm.Services{Budget: b, Prices: test.prices})
		var e *llm.Error
		if test.want == "" && err == nil {
			continue
		}
		if !errors.As(err, &e) || e.Kind != llm.BadRequest || test.want == "" || !strings.Contains(err.Error(), test.want) || !strings.Contains(e.Hint, `[llm.prices."vllm:m"]`) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
