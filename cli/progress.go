package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
)

// progress shows what goes on: on a terminal one line that is redrawn below
// those that stay, elsewhere the lines that stay alone.
type progress struct {
	mu     sync.Mutex
	w      io.Writer
	redraw bool
	task   string
	state  string // of the line that is redrawn
	begun  time.Time
	drawn  bool
	last   string // the last stage said, so that it is not said twice
	said   time.Time
	shared time.Time // when a bar was drawn last
	now    func() time.Time
}

// betweenShares is how often a bar is drawn.
const betweenShares = 100 * time.Millisecond

// betweenSteps is how long a step of many stays unsaid where nothing can be drawn over.
const betweenSteps = 30 * time.Second

func newProgress(w io.Writer) *progress {
	return &progress{w: w, redraw: terminal(w), now: time.Now}
}

// beside returns progress for n devices that work at the same time, of which only
// the lines that stay are shown.
func (p *progress) beside(n int) []*progress {
	all := make([]*progress, n)
	for i := range all {
		all[i] = &progress{w: lines{p}, now: p.now}
	}
	return all
}

// lines writes whole lines above the one that is redrawn.
type lines struct{ above *progress }

func (l lines) Write(line []byte) (int, error) {
	l.above.mu.Lock()
	defer l.above.mu.Unlock()
	l.above.erase()
	return l.above.w.Write(line)
}

// begin names the task that follows.
func (p *progress) begin(task string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.task, p.begun = report.Line(task), p.now()
}

// stage tells what the hardware is doing.
func (p *progress) stage(stage, note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := report.Line(stage)
	if note != "" {
		text += ": " + report.Line(note)
	}
	// Making the environment takes minutes: that is said everywhere. The rest
	// only where it can be drawn over.
	if !p.redraw && stage != "python" {
		return
	}
	if !p.redraw {
		// The same step with more seconds on it is not worth another line.
		if step, _, _ := strings.Cut(text, " ("); step != p.last {
			fmt.Fprintln(p.w, text)
			p.last = step
		}
		return
	}
	p.draw(text)
}

// step tells how far something is that takes minutes: elsewhere than on a terminal by a
// line now and then.
func (p *progress) step(stage, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := report.Line(stage) + ": " + report.Line(text)
	if p.redraw {
		p.draw(line)
		return
	}
	if now := p.now(); now.Sub(p.said) >= betweenSteps {
		p.said = now
		fmt.Fprintln(p.w, line)
	}
}

// barWidth is that of a bar, in characters.
const barWidth = 24

// share tells how much of something long is done: on a terminal with a bar.
func (p *progress) share(stage string, done, all int64, what string) {
	p.mu.Lock()
	now := p.now()
	if p.said.IsZero() {
		p.said = p.begun // what is over soon needs no line that stays
	}
	often := p.redraw && now.Sub(p.shared) < betweenShares
	if !often {
		p.shared = now
	}
	p.mu.Unlock()
	if often {
		return
	}
	text := fmt.Sprintf("%d of %d %s", done, all, what)
	if all > 0 {
		text = fmt.Sprintf("%d %% (%s)", 100*done/all, text)
		if full := int(barWidth * done / all); p.redraw {
			text = strings.Repeat("█", full) + strings.Repeat("░", barWidth-full) + " " + text
		}
	}
	p.step(stage, text)
}

// observe tells the steps of a run.
func (p *progress) observe(e forge.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	round := fmt.Sprintf("round %d of %d", e.Index, e.Rounds)
	switch e.Kind {
	case forge.RoundStarted:
		p.state = round
		p.draw("writing a candidate")
	case forge.Proposed:
		p.draw("evaluating it")
	case forge.RoundDone:
		if e.Verdict != nil {
			p.keep(roundLine(round, e))
		}
	case forge.Certifying:
		p.state = "certifying"
		p.draw(fmt.Sprintf("round %d", e.Index))
	case forge.Certified:
		if v := e.Verdict; v != nil {
			line := fmt.Sprintf("round %d: %s", e.Index, words(v.Status))
			if v.Status.OK() {
				line += fmt.Sprintf("  %s  %s", report.Milliseconds(v.CandidateMS), speedup(v))
				if v.Cached {
					line += "  remembered"
				}
			} else {
				line += "  " + report.Line(v.Reason)
			}
			p.keep(line)
		}
	case forge.Finished:
		p.clear()
		if o := e.Outcome; o != nil && o.Stop != kernelwright.StopRounds {
			p.keep(lower(report.Line(o.Summary)))
		}
	case forge.Feedback:
		if why := notTaken(e.Feedback); why != "" {
			p.keep(fmt.Sprintf("%s  %s: the built-in Judge's finding takes its place", round, why))
		}
	case forge.Verdict, forge.Idle: // it goes on
	}
}

// notTaken says why a model's answer as Judge was not taken; "" where it was.
func notTaken(f *kernelwright.Feedback) string {
	switch {
	case f == nil:
		return ""
	case f.WantedStop != "":
		return report.Line(fmt.Sprintf("the Judge wanted to stop (%s), and there is something to try", strings.TrimSuffix(f.WantedStop, ".")))
	}
	return report.Line(f.Unusable)
}

func roundLine(round string, e forge.Event) string {
	v := e.Verdict
	parts := []string{round, report.Standing(*v)}
	if v.Status.OK() {
		parts = append(parts, report.Milliseconds(v.CandidateMS), speedup(v))
	} else {
		parts = append(parts, report.Line(v.Reason))
	}
	switch {
	case e.Duplicate:
		parts = append(parts, "the same as before")
	case v.Cached:
		parts = append(parts, "remembered")
	}
	if e.Best != nil && e.Best.Verdict.CandidateMS > 0 && e.Best.Index != e.Index { // the fastest, whatever its baselines took
		parts = append(parts, fmt.Sprintf("best so far %s (round %d)", report.Milliseconds(e.Best.Verdict.CandidateMS), e.Best.Index))
	}
	if e.Candidate != nil && e.Candidate.Note != "" {
		parts = append(parts, report.Line(e.Candidate.Note))
	}
	return strings.Join(parts, "  ")
}

func speedup(v *kernelwright.Verdict) string {
	if v.Speedup == nil {
		return "not timed"
	}
	return report.Speedup(v.Speedup) + " against " + report.Line(v.Speedup.Against)
}

func words(s kernelwright.Status) string { return strings.ReplaceAll(report.Line(string(s)), "_", " ") }

// keep writes a line that stays.
func (p *progress) keep(line string) {
	p.erase()
	fmt.Fprintf(p.w, "%s  %s\n", p.task, line)
}

// draw replaces the line at the bottom.
func (p *progress) draw(text string) {
	if !p.redraw {
		return
	}
	line := text
	if p.state != "" {
		line = p.state + "  " + line
	}
	if p.task != "" {
		line = fmt.Sprintf("%s  %s  %s", p.task, line, p.now().Sub(p.begun).Truncate(time.Second))
	}
	// A line that wraps could not be erased.
	width := 80
	if f, ok := p.w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			width = n
		}
	}
	if utf8.RuneCountInString(line) >= width {
		line = string([]rune(line)[:width-2]) + "…"
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	p.drawn = true
}

func (p *progress) erase() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// clear takes the line at the bottom away.
func (p *progress) clear() {
	p.erase()
	p.state = ""
}

// done is clear for those who do not hold the lock.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

// say writes a line that stays, without a task.
func (p *progress) say(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	fmt.Fprintln(p.w, line)
}
