package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
)

const shownNights = 30

// trainingBody is what was trained and when.
type trainingBody struct {
	Nights    []store.Night
	Pipelines []pipelineRow
	Timeline  *timeline
	Next      int64
}

// pipelineRow is a pipeline with its stages.
type pipelineRow struct {
	store.Pipeline
	Stages   []store.Stage
	Seconds  float64
	Verdicts int64
}

// stageBody is an attempt at a stage, with its curves.
type stageBody struct {
	store.Stage
	Inputs, Budget, Outputs string
	Curves                  []stageCurve
	Sampled                 []sampledPart
	Attempts                []store.Stage
}

// stageCurve is the metrics of a program: curves over its steps, or figures where it has one.
type stageCurve struct {
	Part    string
	Step    float64
	Steps   int
	Figures []namedPlot // without curves
	Rewards *plot       // shares of the milestones
	Keys    []plotKey
	Plots   []namedPlot // those that are read first
	Others  []namedPlot
	Table   [][]string // of the last steps: a row of names, then one a step
}

type plotKey struct {
	Colour int
	Name   string
}

type namedPlot struct {
	Name, Meaning, Last string
	Plot                plot
}

// policyRow is a policy in the list.
type policyRow struct {
	store.Policy
	Serves bool
}

// policyBody is a policy.
type policyBody struct {
	policyRow
	Lineage    []policyRow
	From       string // what the first of them was trained from
	Gates      []gateText
	Promotions []store.Promotion
	Reason     string
}

type gateText struct {
	store.Gate
	Text string
}

// confirmBody is a change that is asked for once more.
type confirmBody struct {
	Title, Said, To, Name, Back string
	Danger                      bool
}

func (u *UI) training() {
	u.get("/training", "training", u.trainingPage)
	u.get("/training/samples", "samples", u.samplesPage)
	u.get("/training/{pipeline}", "pipeline", u.pipelinePage)
	u.get("/training/{pipeline}/{stage}", "stage", u.stagePage)
	u.get("/policies", "policies", func(r *http.Request) (view, error) {
		all, err := u.policies(r.Context())
		return view{Title: "Policies", At: "policies", Body: all}, err
	})
	u.get("/policies/{policy}", "policy", u.policyPage)
	u.get("/policies/{policy}/promote", "confirm", func(r *http.Request) (view, error) {
		id, err := number(r, "policy")
		if err != nil {
			return view{}, err
		}
		p, err := u.o.Store.Policy(r.Context(), id)
		return view{Title: fmt.Sprintf("Promote policy v%d", id), At: "policies", Body: confirmBody{
			Title: fmt.Sprintf("Promote policy v%d?", id), To: fmt.Sprintf("/policies/%d/promote", id), Name: "Promote", Back: fmt.Sprintf("/policies/%d", id),
			Said: "It is asked once first, and one that cannot answer does not serve. From the next call on policy:current is this version. It was made from " + report.Line(p.Base) + " and is recorded as a person's decision.",
		}}, err
	})
	u.get("/policies/rollback", "confirm", func(r *http.Request) (view, error) {
		said := "Nothing served before."
		all, err := u.o.Store.Promotions(r.Context())
		if n := len(all); n > 0 {
			said = fmt.Sprintf("Policy v%d serves. From the next call on the version that served before it does again. What was taken back stays recorded.", all[n-1].Policy)
		}
		return view{Title: "Roll back", At: "policies", Body: confirmBody{Title: "Roll back the policy?", Said: said, To: "/policies/rollback", Name: "Roll back", Back: "/policies", Danger: true}}, err
	})
	u.post("/policies/{policy}/promote", func(r *http.Request) (string, error) {
		id, err := number(r, "policy")
		if err != nil {
			return "", err
		}
		_, err = u.change(r, http.MethodPost, fmt.Sprintf("/policies/%d/promote", id), reason(r))
		return fmt.Sprintf("/policies/%d", id), err
	})
	u.post("/policies/rollback", func(r *http.Request) (string, error) {
		_, err := u.change(r, http.MethodPost, "/policies/rollback", reason(r))
		return "/policies", err
	})
}

// reason is why a person changed which policy serves.
func reason(r *http.Request) map[string]string {
	text := report.Line(r.PostFormValue("reason"))
	if text == "" {
		text = "a person said so"
	}
	return map[string]string{"reason": text[:min(len(text), maxParameter)]}
}

func (u *UI) trainingPage(r *http.Request) (view, error) {
	var b trainingBody
	from, err := paged(r)
	if err != nil {
		return view{}, err
	}
	if b.Nights, err = u.o.Store.Nights(r.Context(), store.Page{Limit: shownNights}); err != nil {
		return view{}, err
	}
	pipelines, err := u.o.Store.Pipelines(r.Context(), store.Page{From: from, Limit: shownNights})
	if err != nil {
		return view{}, err
	}
	for _, p := range pipelines {
		row, err := u.pipelineRow(r.Context(), p)
		if err != nil {
			return view{}, err
		}
		b.Pipelines = append(b.Pipelines, row)
	}
	b.Next = after(len(pipelines), shownNights, func() int64 { return pipelines[len(pipelines)-1].ID })
	b.Timeline = newTimeline(b.Nights, b.Pipelines)
	return view{Title: "Training", At: "training", Body: b}, nil
}

func (u *UI) pipelineRow(ctx context.Context, p store.Pipeline) (row pipelineRow, err error) {
	row.Pipeline = p
	row.Stages, err = u.o.Store.Stages(ctx, p.ID)
	for _, s := range row.Stages {
		row.Seconds, row.Verdicts = row.Seconds+s.Seconds, row.Verdicts+s.Verdicts
	}
	return row, err
}

func (u *UI) pipelinePage(r *http.Request) (view, error) {
	id, err := number(r, "pipeline")
	if err != nil {
		return view{}, err
	}
	p, err := u.o.Store.Pipeline(r.Context(), id)
	if err != nil {
		return view{}, err
	}
	row, err := u.pipelineRow(r.Context(), p)
	b := struct {
		pipelineRow
		Settings string
		Timeline *timeline
	}{row, pretty(p.Settings), newTimeline(nil, []pipelineRow{row})}
	return view{Title: fmt.Sprintf("Pipeline %d", id), At: "training", Body: b}, err
}

func pretty(text json.RawMessage) string {
	var v any
	if len(text) == 0 || json.Unmarshal(text, &v) != nil {
		return string(text)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return string(text)
	}
	return string(b)
}

func (u *UI) stagePage(r *http.Request) (view, error) {
	id, err := number(r, "pipeline")
	if err != nil {
		return view{}, err
	}
	if _, err := u.o.Store.Pipeline(r.Context(), id); err != nil {
		return view{}, err
	}
	all, err := u.o.Store.Stages(r.Context(), id)
	if err != nil {
		return view{}, err
	}
	all = slices.DeleteFunc(all, func(s store.Stage) bool { return s.Stage != r.PathValue("stage") })
	if len(all) == 0 {
		return view{}, missing(fmt.Sprintf("Pipeline %d has begun no such stage.", id), "Its page lists those that it has.")
	}
	s := all[len(all)-1]
	if text := r.FormValue("attempt"); text != "" {
		n, err := strconv.Atoi(text)
		i := slices.IndexFunc(all, func(s store.Stage) bool { return s.Attempt == n })
		if err != nil || i < 0 {
			return view{}, missing("There is no such attempt.", "The page of the stage lists them.")
		}
		s = all[i]
	}
	b := stageBody{Stage: s, Attempts: all, Inputs: pretty(s.Inputs), Budget: pretty(s.Budget), Outputs: pretty(s.Outputs)}
	if u.o.Curves != nil {
		curves, err := u.o.Curves(s)
		if err != nil {
			return view{}, err
		}
		for _, c := range curves {
			b.Curves = append(b.Curves, newStageCurve(c))
		}
	}
	b.Sampled, err = u.sampled(r, s)
	return view{Title: fmt.Sprintf("Pipeline %d, %s", id, report.Line(s.Stage)), At: "training", Body: b}, err
}

// first are the metrics that are shown first, with what they are.
var first = []struct{ name, meaning string }{
	{"reward", "mean of the rewards, from -1 to 3"}, {"compiled_rate", "share of answers that compile"}, {"correct_rate", "share that is correct"}, {"faster_eager_rate", "share faster than eager"},
	{"faster_compile_rate", "share faster than torch.compile"}, {"speedup_p50", "median speedup of correct answers"}, {"loss", "of the objective, nats a token"}, {"entropy", "of the policy, nats a token"}, {"kl_k3", "divergence from the reference policy, nats a token"},
	{"value_loss", "of the critic"}, {"explained_variance", "of returns, by the critic"}, {"length", "tokens of an answer"}, {"turns", "calls of the policy in an episode"}, {"truncated_rate", "share of answers that were cut"},
	{"distinct_rate", "share of answers that are unlike the others"}, {"cached_rate", "share of verdicts that were remembered"}, {"gradient_norm", "before clipping"},
	{"tokens_per_second", "tokens trained on, a second"}, {"evaluation_seconds_p50", "median time of a verdict, s"}, {"sampling_seconds", "time of sampling a step, s"},
}

const (
	maxPlots = 48
	// tabled is how many metrics and steps a stage's table has.
	tabled = 8
)

// values are a metric's, over the steps that have it.
func (c Curve) values(name string) (xs, ys []float64) {
	for i, s := range c.Steps {
		if v, there := s[name]; there {
			x, known := s["step"]
			if !known {
				x = float64(i)
			}
			xs, ys = append(xs, x), append(ys, v)
		}
	}
	return xs, ys
}

func newStageCurve(c Curve) stageCurve {
	out := stageCurve{Part: c.Part, Steps: len(c.Steps)}
	if len(c.Steps) == 0 {
		return out
	}
	out.Step = c.Steps[len(c.Steps)-1]["step"]
	seen := map[string]bool{"step": true}
	for _, r := range rewards {
		seen[fmt.Sprintf("reward_is_%d", r.Value)] = true
	}
	add := func(to *[]namedPlot, name, meaning string) {
		seen[name] = true
		xs, ys := c.values(name)
		if len(ys) == 0 || len(out.Plots)+len(out.Others)+len(out.Figures) == maxPlots {
			return
		}
		p := namedPlot{Name: strings.ReplaceAll(report.Line(name), "_", " "), Meaning: meaning, Last: digits(ys[len(ys)-1])}
		if len(c.Steps) == 1 {
			out.Figures = append(out.Figures, p)
			return
		}
		p.Plot = linePlot(p.Name, series{p.Name, 1, xs, ys})
		*to = append(*to, p)
	}
	for _, f := range first {
		add(&out.Plots, f.name, f.meaning)
	}
	var others []string
	for _, s := range c.Steps {
		for name := range s {
			if !seen[name] {
				seen[name] = true
				others = append(others, name)
			}
		}
	}
	slices.Sort(others)
	for _, name := range others {
		add(&out.Others, name, "")
	}
	if len(c.Steps) > 1 {
		out.histogram(c)
		out.table(c)
	}
	return out
}

// histogram draws which share of the answers had which reward.
func (s *stageCurve) histogram(c Curve) {
	var all []series
	for _, r := range rewards {
		xs, ys := c.values(fmt.Sprintf("reward_is_%d", r.Value))
		if len(ys) == 0 {
			continue
		}
		all = append(all, series{r.Means, r.Colour, xs, ys})
		s.Keys = append(s.Keys, plotKey{r.Colour, fmt.Sprintf("%d: %s", r.Value, r.Means)})
	}
	if len(all) > 0 {
		p := linePlot("share of answers", all...)
		s.Rewards = &p
	}
}

// table has the last steps in figures.
func (s *stageCurve) table(c Curve) {
	names := []string{"step"}
	for _, f := range first {
		if _, ys := c.values(f.name); len(ys) > 0 && len(names) <= tabled {
			names = append(names, f.name)
		}
	}
	head := make([]string, len(names))
	for i, name := range names {
		head[i] = strings.ReplaceAll(name, "_", " ")
	}
	s.Table = [][]string{head}
	for _, step := range c.Steps[max(len(c.Steps)-tabled, 0):] {
		row := make([]string, len(names))
		for i, name := range names {
			row[i] = "–"
			if v, there := step[name]; there {
				row[i] = digits(v)
			}
		}
		s.Table = append(s.Table, row)
	}
}

// policies are all, the newest first.
func (u *UI) policies(ctx context.Context) ([]policyRow, error) {
	all, err := u.o.Store.Policies(ctx, store.Page{Limit: 200})
	if err != nil {
		return nil, err
	}
	promotions, err := u.o.Store.Promotions(ctx)
	rows := make([]policyRow, len(all))
	for i, p := range all {
		rows[i] = policyRow{p, len(promotions) > 0 && promotions[len(promotions)-1].Policy == p.Version}
	}
	return rows, err
}

func (u *UI) policyPage(r *http.Request) (view, error) {
	id, err := number(r, "policy")
	if err != nil {
		return view{}, err
	}
	p, err := u.o.Store.Policy(r.Context(), id)
	if err != nil {
		return view{}, err
	}
	b := policyBody{policyRow: policyRow{Policy: p}}
	promotions, err := u.o.Store.Promotions(r.Context())
	if err != nil {
		return view{}, err
	}
	for i, t := range promotions {
		if t.Policy == id || i > 0 && promotions[i-1].Policy == id {
			b.Promotions = append(b.Promotions, t)
		}
		b.Serves = t.Policy == id
	}
	if b.Lineage, b.From, err = u.lineage(r.Context(), p); err != nil {
		return view{}, err
	}
	gates, err := u.o.Store.GatesOf(r.Context(), kernelwright.PolicyPrefix+fmt.Sprintf("v%d", id))
	if err != nil {
		return view{}, err
	}
	for _, g := range gates {
		read, err := gate.Read(r.Context(), u.o.Store, g.Name)
		if err != nil {
			return view{}, err
		}
		var text strings.Builder
		if err := gate.Page(&text, read); err != nil {
			return view{}, err
		}
		b.Gates = append(b.Gates, gateText{g, text.String()})
	}
	return view{Title: fmt.Sprintf("Policy v%d", id), At: "policies", Body: b}, nil
}

// lineage is the policies that one was trained from, itself last.
func (u *UI) lineage(ctx context.Context, p store.Policy) (way []policyRow, from string, err error) {
	for {
		way = append(way, policyRow{Policy: p})
		from = p.Base
		name, isPolicy := strings.CutPrefix(p.Base, "v")
		version, noNumber := strconv.ParseInt(name, 10, 64)
		if !isPolicy || noNumber != nil || slices.ContainsFunc(way, func(w policyRow) bool { return w.Version == version }) {
			slices.Reverse(way)
			return way, from, nil //nolint:nilerr // what is no policy's name is where it began
		}
		before, err := u.o.Store.Policy(ctx, version)
		if errors.Is(err, store.ErrNotFound) {
			slices.Reverse(way)
			return way, from, nil
		}
		if err != nil {
			return nil, "", err
		}
		p = before
	}
}

// timeline has nights and stages as bars over time, placed.
type timeline struct {
	Width, Height float64
	Marks         []mark
	Rows          []timelineRow
	Text          string
}

type timelineRow struct {
	Y    float64
	Name string
	Bars []bar
}

// newTimeline places what was done; nil where nothing was.
func newTimeline(nights []store.Night, pipelines []pipelineRow) *timeline {
	const width, left, row = 960.0, 130.0, 26.0
	type span struct {
		from, to int64
		row      int
		colour   int
		title    string
	}
	var spans []span
	var names []string
	end := func(ms int64) int64 {
		if ms == 0 {
			return time.Now().UnixMilli()
		}
		return ms
	}
	for i, n := range nights {
		if i == 0 {
			names = append(names, "nights")
		}
		spans = append(spans, span{n.BegunMS, end(max(n.EndedMS, n.SeenMS)), 0, 1, fmt.Sprintf("night %d: %s", n.ID, report.Line(string(n.Stop)))})
	}
	for _, p := range slices.Backward(pipelines) {
		for _, s := range p.Stages {
			name := report.Line(s.Stage)
			at := slices.Index(names, name)
			if at < 0 {
				at, names = len(names), append(names, name)
			}
			colour := 0
			if s.Status != "" && !s.Status.Finished() {
				colour = 3
			}
			spans = append(spans, span{s.BegunMS, end(s.EndedMS), at, colour, fmt.Sprintf("pipeline %d, %s, attempt %d: %s, %.0f s", p.ID, name, s.Attempt, s.Status, s.Seconds)})
		}
	}
	if len(spans) == 0 {
		return nil
	}
	from, to := spans[0].from, spans[0].to
	for _, s := range spans {
		from, to = min(from, s.from), max(to, s.to)
	}
	t := &timeline{Width: width, Height: row*float64(len(names)) + 30, Text: fmt.Sprintf("When training was at work: %d spans", len(spans))}
	x := func(ms int64) float64 {
		return left + (width-left-12)*float64(ms-from)/float64(max(to-from, 1))
	}
	for i, name := range names {
		t.Rows = append(t.Rows, timelineRow{Y: row*float64(i) + 17, Name: name})
	}
	for _, s := range spans {
		t.Rows[s.row].Bars = append(t.Rows[s.row].Bars, bar{X: tenth(x(s.from)), Y: row*float64(s.row) + 5, W: tenth(max(x(s.to)-x(s.from), 3)), H: 16, Colour: s.colour, Title: s.title})
	}
	for i := range 5 {
		ms := from + (to-from)*int64(i)/4
		t.Marks = append(t.Marks, mark{tenth(x(ms)), time.UnixMilli(ms).UTC().Format("01-02 15:04")})
	}
	return t
}
