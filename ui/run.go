package ui

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// How much of foreign texts a page has, in bytes. The rest is one link away.
const (
	maxSource  = 20 << 10
	maxOutput  = 6 << 10  // of a compiler's log, and of what a candidate printed
	maxLines   = 60       // of a compiler
	maxTalk    = 90 << 10 // of a page
	maxMessage = 12 << 10
)

// runBody is a run.
type runBody struct {
	ID       int64
	Page     report.Page
	Run      kernelwright.Run
	Result   string
	Live     bool
	Can      store.Offers
	Talks    bool
	Spend    kernelwright.Spend
	Lessons  []kernelwright.Lesson
	Source   string // of the reference
	Longer   bool   // than it is shown
	LastSeen int
}

// roundBody is a round.
type roundBody struct {
	ID           int64
	Task         string
	Round        report.PageRound
	Before, Next *int
	Others       []int // that it can be compared with
	Longer       bool
	Talks        bool
	Explained    *kernelwright.Explanation
	Families     []kernelwright.FamilyReport
	Level        string
}

func roundLink(run int64) func(int) string {
	return func(round int) string { return fmt.Sprintf("/runs/%d/rounds/%d", run, round) }
}

func (u *UI) run() {
	u.get("/runs/{run}", "run", u.runPage)
	u.get("/runs/{run}/rounds/{round}", "round", u.roundPage)
	u.get("/runs/{run}/talk", "talk", u.talkPage)
	u.download("/runs/{run}/kernel.py", u.kernelFile)
	u.download("/runs/{run}/certificate.json", u.certificateFile)
	u.download("/runs/{run}/report.html", u.reportFile)
	u.download("/runs/{run}/reference.py", func(d report.Data, _ *http.Request) (string, []byte, error) {
		return fileName(d) + ".py", []byte(d.Task.Source), nil
	})
	u.download("/runs/{run}/rounds/{round}/source.py", func(d report.Data, r *http.Request) (string, []byte, error) {
		round, err := roundOf(d, r)
		return fmt.Sprintf("%s.round%d.py", fileName(d), round.Index), []byte(round.Candidate.Source), err
	})
}

func (u *UI) runPage(r *http.Request) (view, error) {
	d, err := u.load(r, false)
	if err != nil {
		return view{}, err
	}
	b := runBody{ID: d.Run.ID, Run: d.Run, Spend: d.Spend, Talks: d.Spend.Calls > 0, Result: report.Result(d.Run.Status, d.Rounds), LastSeen: len(d.Rounds)}
	b.Live = d.Run.Status == kernelwright.RunRunning || d.Run.Status == kernelwright.RunQueued
	if b.Can, err = u.o.Store.Offers(r.Context(), d.Run.ID); err != nil {
		return view{}, err
	}
	b.Source, b.Longer = shortened(d.Task.Source)
	d.Task.Source = b.Source
	b.Page = report.NewPage(d, roundLink(d.Run.ID))
	if t := b.Page.Take; t != nil {
		at := fmt.Sprintf("/runs/%d/", d.Run.ID)
		t.Links = []report.TakeLink{{To: at + "kernel.py", Name: "The kernel", Note: "the certified file"}, {To: at + "certificate.json", Name: "The certificate", Note: "what was certified, on which device, with the file's hash"}, {To: at + "report.html", Name: "The report", Note: "this page with all rounds as one file, to send"}}
	}
	if b.Lessons, err = u.o.Store.RunLessons(r.Context(), d.Run.ID); err != nil {
		return view{}, err
	}
	return view{Title: fmt.Sprintf("Run %d: %s", d.Run.ID, report.Line(d.Run.TaskName)), At: "history", Events: fmt.Sprintf("/api/v1/events?run=%d", d.Run.ID), Body: b}, nil
}

// load gathers a run with its status as it is shown.
func (u *UI) load(r *http.Request, talk bool) (report.Data, error) {
	id, err := number(r, "run")
	if err != nil {
		return report.Data{}, err
	}
	d, err := u.o.Run(r.Context(), id, talk)
	if err != nil {
		return d, err
	}
	one := []kernelwright.Run{d.Run}
	u.shown(one)
	d.Run = one[0]
	return d, nil
}

// shortened cuts a source to what a page has of it.
func shortened(source string) (string, bool) {
	if len(source) <= maxSource {
		return source, false
	}
	return source[:maxSource], true
}

func roundOf(d report.Data, r *http.Request) (kernelwright.Round, error) {
	index, err := number(r, "round")
	if err != nil {
		return kernelwright.Round{}, err
	}
	i := slices.IndexFunc(d.Rounds, func(x kernelwright.Round) bool { return int64(x.Index) == index })
	if i < 0 {
		return kernelwright.Round{}, missing(fmt.Sprintf("Run %d has no round %d.", d.Run.ID, index), "The page of the run lists its rounds.")
	}
	return d.Rounds[i], nil
}

func (u *UI) roundPage(r *http.Request) (view, error) {
	d, err := u.load(r, false)
	if err != nil {
		return view{}, err
	}
	round, err := roundOf(d, r)
	if err != nil {
		return view{}, err
	}
	b := roundBody{ID: d.Run.ID, Task: d.Run.TaskName, Talks: d.Spend.Calls > 0, Explained: round.Verdict.Explained}
	counts := report.Counts(round)
	b.Families, b.Level = counts.Correctness.Families, string(counts.Level)
	since := round.After()
	if text := r.FormValue("with"); text != "" {
		if since, err = strconv.Atoi(text); err != nil || since < 0 {
			return view{}, bad("A round to compare with is a whole number.", "Choose one of the list.")
		}
	}
	for i := range d.Rounds {
		index := d.Rounds[i].Index
		if index != round.Index {
			b.Others = append(b.Others, index)
		}
		if index < round.Index {
			b.Before = &index
		}
		if index > round.Index && b.Next == nil {
			b.Next = &index
		}
		var cut bool
		if d.Rounds[i].Candidate.Source, cut = shortened(d.Rounds[i].Candidate.Source); cut && index == round.Index {
			b.Longer = true
		}
		if index == round.Index {
			bound(&d.Rounds[i].Verdict)
		}
	}
	b.Round = report.NewRound(d, round.Index, since)
	return view{Title: fmt.Sprintf("Run %d, round %d: %s", d.Run.ID, round.Index, report.Line(d.Run.TaskName)), At: "history", Body: b}, nil
}

// bound cuts what a verdict quotes of others to what a page has of it.
func bound(v *kernelwright.Verdict) {
	v.Build.Log, v.Output = cleanCut(v.Build.Log, maxOutput), cleanCut(v.Output, maxOutput)
	for _, lines := range []*[]kernelwright.Diagnostic{&v.Build.Errors, &v.Build.Vectorised, &v.Build.Missed} {
		*lines = (*lines)[:min(len(*lines), maxLines)]
	}
}

// talkBody is what was said to language models for a round, and what they said.
type talkBody struct {
	ID     int64
	Task   string
	Round  int
	Rounds []int
	Turns  []talkTurn
	Left   int // turns that are not shown
}

type talkTurn struct {
	report.Turn
	Text string
	Cut  int // bytes that are not shown
}

func (u *UI) talkPage(r *http.Request) (view, error) {
	d, err := u.load(r, true)
	if err != nil {
		return view{}, err
	}
	b := talkBody{ID: d.Run.ID, Task: d.Run.TaskName}
	for _, c := range d.Talk {
		if !slices.Contains(b.Rounds, c.Key.Round) {
			b.Rounds = append(b.Rounds, c.Key.Round)
		}
	}
	slices.Sort(b.Rounds)
	if len(b.Rounds) > 0 {
		b.Round = b.Rounds[0]
	}
	if text := r.FormValue("round"); text != "" {
		if b.Round, err = strconv.Atoi(text); err != nil {
			return view{}, bad("A round is a whole number.", "Choose one of the list.")
		}
	}
	calls := slices.DeleteFunc(slices.Clone(d.Talk), func(c llm.Record) bool { return c.Key.Round != b.Round })
	tried := slices.DeleteFunc(slices.Clone(d.Attempts), func(c llm.Charge) bool { return c.Key.Round != b.Round })
	room := maxTalk
	for _, t := range report.Talk(calls, tried) {
		text := report.Clean(t.Text)
		if room <= 0 {
			b.Left++
			continue
		}
		turn := talkTurn{Turn: t, Text: text}
		if most := min(maxMessage, room); len(text) > most {
			turn.Text, turn.Cut = cleanCut(text, most), len(text)-most
		}
		room -= len(turn.Text)
		b.Turns = append(b.Turns, turn)
	}
	return view{Title: fmt.Sprintf("Run %d: the conversation", d.Run.ID), At: "history", Body: b}, nil
}

// cleanCut cuts a text between two of its characters.
func cleanCut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xC0 == 0x80 {
		most--
	}
	return s[:most]
}

// download mounts a file of a run. A browser saves it: it is never shown as a page.
func (u *UI) download(pattern string, file func(report.Data, *http.Request) (name string, text []byte, err error)) {
	u.mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
		d, err := u.load(r, pattern == "/runs/{run}/report.html")
		if err != nil {
			u.fail(w, r, err)
			return
		}
		name, text, err := file(d, r)
		if err != nil {
			u.fail(w, r, err)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
		h.Set("Content-Security-Policy", "sandbox")
		_, _ = w.Write(text) // who went away reads nothing
	})
}

var plainName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// fileName is the task's name as a file may have it.
func fileName(d report.Data) string {
	name := plainName.ReplaceAllString(d.Run.TaskName, "_")
	return fmt.Sprintf("run%d.%.80s", d.Run.ID, name)
}

func (u *UI) kernelFile(d report.Data, _ *http.Request) (string, []byte, error) {
	_, text, ok, err := report.Certify(d, fileName(d)+".best.py")
	if err != nil {
		return "", nil, err
	}
	if best, v, found := report.Best(d.Rounds); !ok && found && v.Status == kernelwright.Certified || ok && text == "" {
		if text, _, err = report.Exported(best); err != nil {
			return "", nil, err
		}
	}
	if text == "" {
		return "", nil, missing("This run has no certified kernel.", "Its rounds have the candidates.")
	}
	return fileName(d) + ".best.py", []byte(text), nil
}

func (u *UI) certificateFile(d report.Data, _ *http.Request) (string, []byte, error) {
	text, _, ok, err := report.Certify(d, fileName(d)+".best.py")
	if err == nil && !ok {
		err = missing("This run has no certificate.", "Its rounds have the verdicts.")
	}
	return fileName(d) + ".certificate.json", text, err
}

func (u *UI) reportFile(d report.Data, _ *http.Request) (string, []byte, error) {
	var b bytes.Buffer
	err := report.HTML(&b, d)
	return fileName(d) + ".report.html", b.Bytes(), err
}
