package cli

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
)

// openTerminal returns both ends of a pseudo-terminal of a width.
func openTerminal(t *testing.T, columns uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// screen is what a terminal of a width shows of what was written to it. It
// knows the three controls that progress uses.
type screen struct {
	columns  int
	lines    [][]rune
	row, col int
	wrapped  int // how often a line ran over the right edge
}

func (s *screen) write(text string) {
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, nil)
	}
	for len(text) > 0 {
		if rest, ok := strings.CutPrefix(text, "\x1b[K"); ok {
			s.lines[s.row] = s.lines[s.row][:min(s.col, len(s.lines[s.row]))]
			text = rest
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch r {
		case '\r':
			s.col = 0
			continue
		case '\n':
			s.row++
		default:
			if s.col == s.columns {
				s.row, s.col = s.row+1, 0
				s.wrapped++
			}
		}
		for len(s.lines) <= s.row {
			s.lines = append(s.lines, nil)
		}
		if r == '\n' {
			continue
		}
		line := s.lines[s.row]
		for len(line) <= s.col {
			line = append(line, ' ')
		}
		line[s.col] = r
		s.lines[s.row] = line
		s.col++
	}
}

// shown returns the lines with something on them.
func (s *screen) shown() []string {
	var out []string
	for _, l := range s.lines {
		if text := strings.TrimRight(string(l), " "); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// On a terminal one line at the bottom is drawn over again and again, those
// that stay stay above it, and at the end nothing else is left.
func TestTheBottomLineIsDrawnOver(t *testing.T) {
	master, slave := openTerminal(t, 60)
	p := newProgress(slave)
	if !p.redraw {
		t.Fatal("a terminal was not recognised")
	}
	now := time.Unix(0, 0)
	p.now = func() time.Time { return now }
	s := &screen{columns: 60}
	// update reads up to a bell that is rung now: what was written before it has
	// come then.
	update := func() []string {
		t.Helper()
		if _, err := slave.WriteString("\a"); err != nil {
			t.Fatal(err)
		}
		var come []byte
		buf := make([]byte, 64<<10)
		for !bytes.HasSuffix(come, []byte("\a")) {
			n, err := master.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			come = append(come, buf[:n]...)
		}
		s.write(strings.TrimSuffix(string(come), "\a"))
		return s.shown()
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := update(); !slices.Equal(got, want) {
			t.Fatalf("%s: the screen shows\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}

	p.stage("device", "measuring what this machine can reach")
	expect("before a task", "device: measuring what this machine can reach")
	p.done()
	expect("nothing goes on")
	p.begin("softmax")
	p.say("softmax: going on with run 7")
	p.observe(forge.Event{Kind: forge.RoundStarted, Index: 0, Rounds: 2})
	expect("a round", "softmax: going on with run 7", "softmax  round 0 of 2  writing a candidate  0s")
	p.observe(forge.Event{Kind: forge.Proposed, Index: 0, Rounds: 2})
	now = now.Add(12 * time.Second)
	// Far longer than the terminal is wide: cut, or it could not be drawn over.
	p.stage("verify", strings.Repeat("family scaled_up ", 20))
	lines := update()
	if len(lines) != 2 || len([]rune(lines[1])) >= 60 || !strings.HasSuffix(lines[1], "…") {
		t.Fatalf("a long line shows as\n%s", strings.Join(lines, "\n"))
	}
	p.stage("time", "quick")
	expect("a shorter line over it", "softmax: going on with run 7", "softmax  round 0 of 2  time: quick  12s")
	v := &kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "it is not"}
	p.observe(forge.Event{Kind: forge.RoundDone, Index: 0, Rounds: 2, Verdict: v})
	kept := []string{"softmax: going on with run 7", "softmax  round 0 of 2  wrong  it is not"}
	expect("what stays", kept...)
	p.observe(forge.Event{Kind: forge.RoundStarted, Index: 1, Rounds: 2})
	p.say("finishing the round")
	kept = append(kept, "finishing the round")
	expect("a line that stays, between two drawings", kept...)
	p.stage("build", "g++")
	expect("drawn again below it", append(kept, "softmax  round 1 of 2  build: g++  12s")...)
	p.observe(forge.Event{Kind: forge.Finished})
	expect("the end", kept...)
	if s.wrapped != 0 {
		t.Errorf("%d lines ran over the edge", s.wrapped)
	}
}

// Elsewhere only the lines that stay are written, without any control.
func TestWhatIsNoTerminalIsNotDrawnOn(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.begin("softmax")
	p.observe(forge.Event{Kind: forge.RoundStarted, Rounds: 1})
	p.stage("time", "quick")
	p.observe(forge.Event{Kind: forge.Feedback, Rounds: 1, Feedback: &kernelwright.Feedback{Rule: "idle_cores"}})
	p.observe(forge.Event{Kind: forge.Feedback, Rounds: 1, Feedback: &kernelwright.Feedback{Rule: "idle_cores", Unusable: "the answer of p:m could not be used: no\x1b[2J JSON"}})
	p.observe(forge.Event{Kind: forge.Feedback, Rounds: 1, Feedback: &kernelwright.Feedback{Rule: "idle_cores", WantedStop: "It is\nfast."}})
	p.observe(forge.Event{Kind: forge.RoundDone, Rounds: 1, Verdict: &kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "no\x1b[2Jt"}})
	p.observe(forge.Event{Kind: forge.RoundDone, Rounds: 1, Verdict: &kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "not"}, Duplicate: true})
	p.done()
	if got, want := b.String(), "softmax  round 0 of 1  the answer of p:m could not be used: no⟨U+001B⟩[2J JSON: the built-in Judge's finding takes its place\n"+
		"softmax  round 0 of 1  the Judge wanted to stop (It is fast), and there is something to try: the built-in Judge's finding takes its place\n"+
		"softmax  round 0 of 1  wrong  no⟨U+001B⟩[2Jt\n"+
		"softmax  round 0 of 1  wrong  not  the same as before\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Where nothing can be drawn over, a step of many is said now and then.
func TestStepsAreSaidNowAndThen(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	now := time.Unix(100, 0)
	p.now = func() time.Time { return now }
	for i := range 7 {
		p.step("synthesise", fmt.Sprintf("tasks %d of 7", i+1))
		now = now.Add(10 * time.Second)
	}
	want := "synthesise: tasks 1 of 7\nsynthesise: tasks 4 of 7\nsynthesise: tasks 7 of 7\n"
	if b.String() != want {
		t.Errorf("%q, not %q", b.String(), want)
	}
}
