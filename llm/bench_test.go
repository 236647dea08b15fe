package llm_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

const atOnce = 64

// slowServer holds every reply until all calls are there, and then for wait. A
// reply is a kernel's length, in that many pieces, and names who asked.
func slowServer(t testing.TB, start func(testing.TB) *llmtest.Server, wait time.Duration, pieces int) *llmtest.Server {
	s := start(t)
	body := strings.Repeat("    acc += x[i];\n", 1000)
	var mu sync.Mutex
	waiting, release := 0, make(chan struct{})
	s.Reply = func(a llmtest.Asked) llmtest.Answer {
		mu.Lock()
		defer mu.Unlock()
		waiting++
		gate := release
		if waiting == atOnce {
			waiting, release = 0, make(chan struct{})
			time.AfterFunc(wait, func() { close(gate) })
		}
		return llmtest.Answer{Text: a.Last + "\n" + body, Pieces: pieces, Hold: gate}
	}
	return s
}

// askAll asks as many at once as the server waits for, and returns how many
// replies were not those of who asked.
func askAll(t testing.TB, m llm.Model, round int) (lost int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range atOnce {
		wg.Go(func() {
			who := fmt.Sprintf("run %d of round %d", i, round)
			reply, err := m.Generate(t.Context(), keyed(who, llm.Key{Run: int64(i + 1), Round: round, Agent: "coder"}))
			if err != nil || !strings.HasPrefix(reply.Text, who+"\n") {
				mu.Lock()
				lost++
				mu.Unlock()
				t.Errorf("%s: %.40q, %v", who, reply.Text, err)
			}
		})
	}
	wg.Wait()
	return lost
}

func TestManyAtASlowServer(t *testing.T) {
	for _, d := range []struct {
		name, model string
		start       func(testing.TB) *llmtest.Server
	}{{"openai", "openai:gpt-4.1", llmtest.NewOpenAI}, {"anthropic", "anthropic:m", llmtest.NewAnthropic}} {
		s := slowServer(t, d.start, 10*time.Millisecond, 10)
		journal := &llmtest.Journal{}
		m, err := llm.New(d.model, s.Options(), llm.Services{Journal: journal})
		if err != nil {
			t.Fatal(err)
		}
		askAll(t, m, 0)
		if n := len(journal.Records()); n != atOnce {
			t.Errorf("%s: %d of %d calls recorded", d.name, n, atOnce)
		}
	}
}

// BenchmarkManyAtASlowServer is 64 runs that ask at once and wait 100 ms, with
// the stack of production. peak-MB is what the heap and the stacks took beyond
// what there was before, the double's own part included.
func BenchmarkManyAtASlowServer(b *testing.B) {
	for _, stream := range []bool{true, false} {
		b.Run(fmt.Sprintf("stream=%v", stream), func(b *testing.B) {
			s := slowServer(b, llmtest.NewOpenAI, 100*time.Millisecond, 500)
			o := s.Options()
			o.Stream = &stream
			m, err := llm.New("openai:gpt-4.1", o, llm.Services{
				Journal: &llmtest.Journal{}, Budget: llm.NewBudget(llm.Allowances{Day: llm.Allowance{Calls: 1 << 40}}, nil, &llmtest.Ledger{}, nil),
			})
			if err != nil {
				b.Fatal(err)
			}
			var before, now runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			stop, stopped := make(chan struct{}), make(chan struct{})
			peak := uint64(0)
			go func() {
				defer close(stopped)
				for {
					runtime.ReadMemStats(&now)
					peak = max(peak, now.HeapInuse+now.StackInuse)
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			}()
			lost := 0
			for round := 0; b.Loop(); round++ {
				lost += askAll(b, m, round)
			}
			close(stop)
			<-stopped
			b.ReportMetric(float64(peak-min(peak, before.HeapInuse+before.StackInuse))/1e6, "peak-MB")
			b.ReportMetric(float64(lost), "lost")
		})
	}
}

// BenchmarkCall is what a call costs beside the model and the network: the
// server is a function.
func BenchmarkCall(b *testing.B) {
	text := strings.Repeat("    acc += x[i];\\n", 1000)
	var events strings.Builder
	for range 1000 {
		events.WriteString("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"    acc += x[i];\\n\"}}]}\n\n")
	}
	events.WriteString("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
	for _, test := range []struct {
		name string
		s    says
	}{
		{"stream", says{200, asEvents, events.String()}},
		{"whole", says{200, asJSON, `{"choices":[{"message":{"content":"` + text + `"},"finish_reason":"stop"}]}`}},
	} {
		b.Run(test.name, func(b *testing.B) {
			m := from(b, "openai:gpt-4.1", test.s)
			r := llmtest.Ask(strings.Repeat("the reference and the last candidate\n", 500))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Generate(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
