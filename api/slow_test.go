package api

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/internal/web"
)

// Many clients are slow in every way at once: headers that come a byte at a time, bodies that
// stop, answers and events that nobody reads. Who records waits for none of them, who reads
// is answered and hears all in its order, and who changes something is told to come again
// while the places are taken. Then the slow ones are ended, with no fault of the server's.
func TestSlowClientsKeepNobodyWaiting(t *testing.T) {
	const listeners, other = 200, 20
	w, _ := accepting(t, nil)
	server := web.NewServer(w.api, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.check(err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(web.LimitConnections(l, 512)) }()
	defer func() {
		w.api.Close()
		w.check(server.Close())
		<-ended
	}()
	base := "http://" + l.Addr().String()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(method, path, body string) (int, http.Header, string) {
		q, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		w.check(err)
		q.Header.Set("Content-Type", "application/json")
		r, err := client.Do(q)
		w.check(err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		w.check(err)
		return r.StatusCode, r.Header, string(text)
	}
	send := func(text string) net.Conn {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		w.check(err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, text)
		w.check(err)
		return c
	}
	slow := "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + strings.Repeat("x", 100)
	const head = " HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	for range listeners {
		send("GET " + eventsPath + head + "\r\n")
	}
	var headers, bodies []net.Conn
	for range other {
		headers = append(headers, send(slow[:3]))
		send("GET /openapi.json" + head + "\r\n")
	}
	for range maxChanges {
		bodies = append(bodies, send("POST /api/v1/tasks"+head+"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{"))
	}
	await.Until(t, "all are there", func() bool {
		return len(w.api.limits[""].places) == maxChanges && w.listening() == listeners
	})
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+eventsPath+"?kinds=round", nil)
	w.check(err)
	r, err := client.Do(q)
	w.check(err)
	defer r.Body.Close()
	heard := bufio.NewScanner(r.Body)
	for heard.Scan() && heard.Text() != "event: "+EventReady {
	}
	for i := 3; i < 103; i++ {
		w.round(1, i)
		for j, c := range headers {
			if _, err := io.WriteString(c, slow[i:i+1]); err != nil {
				t.Fatalf("connection %d, byte %d: %v", j, i, err)
			}
		}
	}
	for i := 3; i < 103; {
		if !heard.Scan() {
			t.Fatal("the events end")
		}
		if text := heard.Text(); strings.HasPrefix(text, "data: ") && strings.Contains(text, `"round":`) {
			if !strings.Contains(text, fmt.Sprintf(`"round":%d,`, i)) {
				t.Fatalf("%s, want round %d", text, i)
			}
			i++
		}
	}
	if code, _, text := ask("GET", "/api/v1/runs/1/rounds?limit=200", ""); code != http.StatusOK || strings.Count(text, `"index"`) < 103 {
		t.Errorf("%d %.300s", code, text)
	}
	if code, header, text := ask("POST", "/api/v1/queue/pause", ""); code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("while all places are taken: %d %s", code, text)
	}
	for _, c := range bodies { // the client goes away in the middle of it
		w.check(c.(*net.TCPConn).CloseWrite())
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode < 400 || answer.StatusCode >= 500 {
			t.Errorf("half a body is answered %s", answer.Status)
		}
	}
	if code, _, text := ask("POST", "/api/v1/queue/pause", ""); code != http.StatusOK {
		t.Errorf("afterwards: %d %s", code, text)
	}
}

// listening is how many listen to events.
func (w *world) listening() int {
	n, _ := w.api.hub.count()
	return n
}
