package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"slices"
	"strconv"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

const (
	shownEpisodes = 5
	shownSteps    = 25
	maxSaid       = 6 << 10   // bytes of a sample's answer
	maxAsked      = 3 << 10   // bytes of what it was asked
	maxSamples    = 120 << 10 // bytes of markup that a page has of samples
)

// rewards are the milestones, with what they say of an answer.
var rewards = []struct {
	Value, Colour int
	Means         string
}{{3, 0, "faster than torch.compile"}, {2, 5, "faster than eager"}, {1, 1, "correct"}, {-1, 2, "not correct"}}

// version is the name of a policy in training: of a program of a stage, and of how many
// steps it had taken.
type version struct {
	Name           string
	Pipeline       int64 // 0: it is of no stage of a pipeline
	Stage          string
	Attempt        int
	Part           string
	Step           int // from 1; 0: the policy is not trained between its answers
	Before, Follow string
}

var versionName = regexp.MustCompile(`^p([1-9][0-9]{0,17})-([a-z_]+)-([1-9][0-9]{0,8})-([a-z0-9_]+?)(?:-([0-9]{1,9}))?$`)

// readVersion takes a name apart.
func readVersion(name string) version {
	v := version{Name: name}
	m := versionName.FindStringSubmatch(name)
	if m == nil {
		return v
	}
	v.Pipeline, _ = strconv.ParseInt(m[1], 10, 64) // the pattern bounds them
	v.Stage, v.Part = m[2], m[4]
	v.Attempt, _ = strconv.Atoi(m[3])
	if m[5] != "" {
		n, _ := strconv.Atoi(m[5])
		v.Step = n + 1
	}
	return v
}

// sampledPart is the steps of a program of a stage that samples are recorded of.
type sampledPart struct {
	Part       string
	Rows       []sampledRow
	From       int // the place of the first row, from 0
	All        int
	Prev, Next *int
}

type sampledRow struct {
	version
	store.Sampled
}

// Correct is how many episodes are correct at least, and Faster how many are faster than eager.
func (r sampledRow) Correct() int64 { return r.Rewards[1] + r.Rewards[2] + r.Rewards[3] }

// Faster is how many episodes are faster than eager at least.
func (r sampledRow) Faster() int64 { return r.Rewards[2] + r.Rewards[3] }

// sampled returns what is recorded of the samples of a stage.
func (u *UI) sampled(r *http.Request, s store.Stage) (parts []sampledPart, err error) {
	first := 0
	if text := r.FormValue("step"); text != "" {
		if first, err = strconv.Atoi(text); err != nil || first < 1 {
			return nil, bad("A step is a whole number from 1.", "Go back to the stage's page.")
		}
		first--
	}
	names, err := u.o.Store.SampledVersions(r.Context(), fmt.Sprintf("p%d-%s-%d-", s.Pipeline, s.Stage, s.Attempt))
	if err != nil {
		return nil, err
	}
	versions := make([]version, 0, len(names))
	for _, name := range names {
		if v := readVersion(name); v.Pipeline == s.Pipeline && v.Stage == s.Stage && v.Attempt == s.Attempt {
			versions = append(versions, v)
		}
	}
	slices.SortStableFunc(versions, func(a, b version) int {
		return cmp.Or(-cmp.Compare(min(a.Step, 1), min(b.Step, 1)), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Step, b.Step))
	})
	for len(versions) > 0 {
		n := slices.IndexFunc(versions, func(v version) bool { return v.Part != versions[0].Part })
		if n < 0 {
			n = len(versions)
		}
		p := sampledPart{Part: versions[0].Part, All: n, From: min(first, (n-1)/shownSteps*shownSteps)}
		end := min(p.From+shownSteps, n)
		for _, v := range versions[p.From:end] {
			found, err := u.o.Store.Sampled(r.Context(), v.Name)
			if err != nil {
				return nil, err
			}
			p.Rows = append(p.Rows, sampledRow{v, found})
		}
		if p.From > 0 {
			p.Prev = new(max(p.From-shownSteps, 0) + 1)
		}
		if end < n {
			p.Next = new(end + 1)
		}
		parts, versions = append(parts, p), versions[n:]
	}
	return parts, nil
}

// samplesBody is episodes with what the policy said in them: of one version, or of all.
type samplesBody struct {
	Of       *sampledRow
	Rewards  []rewardCount
	From     int // episodes that were passed over
	Episodes []episodeRow
	Next     string // the query of what comes after
}

type rewardCount struct {
	Means string
	N     int64
}

type episodeRow struct {
	store.Episode
	version
	Operators []string
	Verdict   *kernelwright.Verdict // of its last round
	Samples   []sampleRow
}

type sampleRow struct {
	store.Sample
	Source []template.HTML // of the candidate that it is
	Origin string
	Asked  string // the last message of its prompt
	Text   string
	Tokens int
	Cut    int  // bytes of the answer that are not shown
	Left   bool // that nothing of it is shown: the page is full
}

func (u *UI) samplesPage(r *http.Request) (view, error) {
	var place int64
	var err error
	if text := r.FormValue("after"); text != "" {
		if place, err = strconv.ParseInt(text, 10, 64); err != nil || place < 0 || place > 1<<40 {
			return view{}, bad("A page begins after a whole number.", "Go back to the first page.")
		}
	}
	var b samplesBody
	name, title := r.FormValue("version"), "Samples"
	if name == "" {
		var last int64
		err = u.o.Store.Samples(r.Context(), place, shownEpisodes, b.add(&last))
		if err == nil && len(b.Episodes) == shownEpisodes {
			b.Next = fmt.Sprintf("after=%d", last)
		}
	} else if len(name) > maxParameter {
		return view{}, bad("The name of the version is too long.", "The page of a stage links its samples.")
	} else if title, err = u.ofVersion(r.Context(), &b, readVersion(name), int(place)); err == nil {
		err = u.o.Store.SamplesOf(r.Context(), name, int(place), shownEpisodes, b.add(new(int64)))
	}
	if err != nil {
		return view{}, err
	}
	if err := u.judged(r.Context(), b.Episodes); err != nil {
		return view{}, err
	}
	return view{Title: title, At: "training", Body: b}, nil
}

// ofVersion is what a page says of all samples of a version, and its title.
func (u *UI) ofVersion(ctx context.Context, b *samplesBody, v version, from int) (title string, err error) {
	b.From = from
	found, err := u.o.Store.Sampled(ctx, v.Name)
	if err != nil {
		return "", err
	}
	if found.Episodes == 0 {
		return "", missing("No sample of this version of a policy is recorded.", "The page of a stage links its samples.")
	}
	if v.Step > 0 {
		for step, to := range map[int]*string{v.Step - 1: &v.Before, v.Step + 1: &v.Follow} {
			name := fmt.Sprintf("p%d-%s-%d-%s-%d", v.Pipeline, v.Stage, v.Attempt, v.Part, step-1)
			near, err := u.o.Store.Sampled(ctx, name)
			if err != nil {
				return "", err
			}
			if near.Episodes > 0 {
				*to = name
			}
		}
	}
	b.Of = &sampledRow{v, found}
	for _, r := range rewards {
		b.Rewards = append(b.Rewards, rewardCount{r.Means, found.Rewards[r.Value]})
	}
	if int64(from+shownEpisodes) < found.Episodes {
		b.Next = template.URLQueryEscaper(v.Name)
		b.Next = fmt.Sprintf("version=%s&after=%d", b.Next, from+shownEpisodes)
	}
	switch {
	case v.Step > 0:
		return fmt.Sprintf("Samples of step %d", v.Step), nil
	case v.Pipeline > 0:
		return "Samples of " + report.Line(v.Part), nil
	}
	return "Samples of " + report.Line(v.Name), nil
}

// add gathers samples by episode.
func (b *samplesBody) add(last *int64) func(store.SampleRow) error {
	return func(s store.SampleRow) error {
		n := len(b.Episodes)
		if n == 0 || b.Episodes[n-1].Run != s.Episode.Run {
			b.Episodes = append(b.Episodes, episodeRow{Episode: s.Episode, version: readVersion(s.Sample.Policy)})
			n++
		}
		row := sampleRow{Sample: s.Sample, Text: report.Clean(s.Text), Tokens: len(s.TokenIDs)}
		if len(row.Text) > maxSaid {
			row.Text, row.Cut = cleanCut(row.Text, maxSaid), len(row.Text)-maxSaid
		}
		if k := len(s.Messages); k > 0 {
			row.Asked = cleanCut(report.Clean(s.Messages[k-1].Text), maxAsked)
		}
		b.Episodes[n-1].Samples = append(b.Episodes[n-1].Samples, row)
		*last = s.Place
		return nil
	}
}

// judged adds what came of each sample, until the page is full.
func (u *UI) judged(ctx context.Context, episodes []episodeRow) error {
	room := maxSamples
	for i := range episodes {
		e := &episodes[i]
		task, err := u.o.Store.RunTask(ctx, e.Run)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		e.Operators = task.Operators
		for j := range e.Samples {
			s := &e.Samples[j]
			round, err := u.o.Store.Round(ctx, e.Run, s.Round)
			switch {
			case errors.Is(err, store.ErrNotFound):
			case err != nil:
				return err
			default:
				v := report.Counts(round)
				e.Verdict = &v
				s.Source, s.Origin = report.Highlight(cleanCut(round.Candidate.Source, maxSaid)), round.Candidate.Origin
			}
			need := len(template.HTMLEscapeString(s.Text)) + len(template.HTMLEscapeString(s.Asked))
			for _, line := range s.Source {
				need += len(line) + len("<span></span>")
			}
			if room -= need; room < 0 {
				s.Source, s.Text, s.Asked, s.Left = nil, "", "", true
			}
		}
	}
	return nil
}
