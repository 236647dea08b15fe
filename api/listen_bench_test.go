package api

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
)

// Rounds are recorded, twenty a second, while nobody listens, while two hundred read what
// happens, and while two hundred never read. It says how long recording a round takes, and
// from when recording began to when a listener has its event:
//
//	go test ./api -run - -bench Listeners -benchtime 400x
func BenchmarkListeners(b *testing.B) {
	for _, c := range []struct {
		name         string
		reads, stuck int
	}{{"none", 0, 0}, {"reading", 200, 0}, {"stuck", 1, 200}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, nil)
			run, err := w.store.CreateRun(b.Context(), kernelwright.Run{TaskName: "measured", Status: kernelwright.RunRunning})
			w.check(err)
			recorded := make([]time.Time, b.N) // when that began
			var mu sync.Mutex
			var late []time.Duration
			var all sync.WaitGroup
			for range c.reads {
				r, err := http.Get(w.http.URL + eventsPath + "?kinds=round")
				w.check(err)
				ready := make(chan struct{})
				all.Go(func() {
					defer r.Body.Close()
					var mine []time.Duration
					for lines := bufio.NewScanner(r.Body); lines.Scan() && len(mine) < b.N; {
						if lines.Text() == "event: ready" {
							close(ready)
						}
						if _, rest, found := strings.Cut(lines.Text(), `"round":`); found {
							digits, _, _ := strings.Cut(rest, ",")
							if index, err := strconv.Atoi(digits); err == nil {
								mu.Lock()
								mine = append(mine, time.Since(recorded[index]))
								mu.Unlock()
							}
						}
					}
					mu.Lock()
					late = append(late, mine...)
					mu.Unlock()
				})
				<-ready
			}
			for range c.stuck {
				conn, err := net.Dial("tcp", w.http.Listener.Addr().String())
				w.check(err)
				defer conn.Close()
				_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", eventsPath)
				w.check(err)
			}
			took := make([]time.Duration, b.N)
			b.ResetTimer()
			for i := range b.N {
				time.Sleep(50 * time.Millisecond)
				mu.Lock()
				recorded[i] = time.Now()
				mu.Unlock()
				w.round(run.ID, i)
				took[i] = time.Since(recorded[i])
			}
			all.Wait()
			report := func(what string, d []time.Duration) {
				if slices.Sort(d); len(d) > 0 {
					b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, what+"-p50-ms")
					b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, what+"-p99-ms")
				}
			}
			report("round", took)
			report("event", late)
		})
	}
}
