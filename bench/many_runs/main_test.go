package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-serve" { // the server of a test
		main()
		return
	}
	os.Exit(m.Run())
}

// Sixteen whole runs at once, soaking sixty-four: no reply of the server is lost,
// or recorded twice, though one request in ten is refused at first.
func TestNoReplyIsLost(t *testing.T) {
	s := settings{runs: 16, rounds: 2, wait: 100 * time.Millisecond, busy: 10, dir: t.TempDir()}
	if soak.Long() {
		s.runs = 64
	}
	server, err := startServer(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	m, err := bring(t.Context(), s, server.url)
	by, served := server.stop()
	if err != nil || served != nil {
		t.Fatal(err, served)
	}
	if err := m.check(s, by); err != nil {
		t.Error(err)
	}
	if by.Refused == 0 || m.peakKB <= m.beforeKB || m.goroutines < s.runs {
		t.Errorf("%+v, %d refused", m, by.Refused)
	}
	t.Logf("%d MB, %d goroutines, %v", m.peakKB>>10, m.goroutines, m.took)

	// What is lost is told.
	m.words[by.Replies[5]]--
	m.recorded--
	if err := m.check(s, by); err == nil || !strings.Contains(err.Error(), "reply5end is recorded 0 times") || !strings.Contains(err.Error(), fmt.Sprintf("%d replies were sent and %d recorded", 3*s.runs, 3*s.runs-1)) {
		t.Errorf("%v", err)
	}
}
