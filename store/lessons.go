package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"modernc.org/sqlite"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// LessonFilter chooses lessons. Empty fields do not narrow.
type LessonFilter struct {
	Devices []string // keys: lessons of any of them
	// Like is kinds of operators: only of tasks that have at least half of the
	// kinds in common with these, the likest first.
	Like []string
	// Holding is kinds that the task must all have.
	Holding []string
	// Bottleneck is the name of the rule that advised the change, or a word of
	// the bottleneck that a language model named.
	Bottleneck string
	Limit      int // 0 means DefaultLimit
	// BeforeRun and BeforeRound page where neither Like nor Holding is asked for: only
	// lessons before that of this round. 0: from the newest.
	BeforeRun   int64
	BeforeRound int

	// Of LessonsFor alone: only of runs that had ended when this bench began and
	// were of another task than this one.
	bench   int64
	without string
}

// MaxLessons is how many lessons are looked at for one question.
const MaxLessons = 300

// Bounds of what is read for them, and of what a lesson holds.
const (
	maxLessonRuns = 24
	alike         = 0.5 // share of the kinds of two tasks that both have

	maxKinds        = 32
	maxKindBytes    = 80
	maxLessonWords  = 240 // bytes of a sentence
	maxMoved        = 4   // metrics of a lesson
	leastMoved      = 0.05
	leastShare      = 0.01 // that a share has to move besides
	maxLessonsKept  = 48   // of a run
	maxLessonsAlike = 4    // of these, with the same advice and the same steps
)

// teaching is the rounds r of runs that ended with a certified kernel whose
// candidate was made from another one, p, that was correct and timed.
const teaching = ` FROM runs JOIN rounds b ON b.run = runs.id AND b.idx = runs.best AND b.standing = 2
	JOIN rounds r ON r.run = runs.id
	JOIN rounds p ON p.run = r.run AND p.idx = coalesce(r.parent, r.idx - 1) AND p.standing > 0 AND p.candidate <> r.candidate
	LEFT JOIN feedback f ON f.run = p.run AND f.idx = p.idx
	WHERE runs.status = 'done' AND runs.task_detail IS NOT NULL`

// learnAll notes the lessons of all runs. Noting them again does nothing. The
// rule of a finding that stands in for a language model's has its reason in
// brackets behind its name.
const learnAll = `INSERT OR IGNORE INTO lessons (run, idx, device_key, kinds, rule)
	SELECT r.run, r.idx, r.device_key, (SELECT operator_kinds(body) FROM texts WHERE id = runs.task_detail),
		CASE WHEN instr(f.rule, ' (') > 0 THEN substr(f.rule, 1, instr(f.rule, ' (') - 1) ELSE coalesce(f.rule, '') END` + teaching

// LearnQuery notes the lessons of one run: for who records in bulk.
const LearnQuery = learnAll + ` AND runs.id = ?`

func init() {
	// Of a task that cannot be read nothing is alike: the history stays usable.
	sqlite.MustRegisterDeterministicScalarFunction("operator_kinds", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		body, _ := args[0].([]byte)
		return strings.Join(kindsOf(body), " "), nil
	})
}

var kindsDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(maxReaders), zstd.WithDecoderMaxMemory(maxTextBytes))
})

// kindsOf reads the kinds of operators from a task's compressed detail.
func kindsOf(body []byte) []string { return kinds(operatorsOf(body)) }

// operatorsOf reads the operators from a task's compressed detail.
func operatorsOf(body []byte) []string {
	dec, err := kindsDecoder()
	if err != nil {
		return nil
	}
	text, err := dec.DecodeAll(body, nil)
	if err != nil {
		return nil
	}
	var t struct {
		Operators []string `json:"operators"`
	}
	if json.Unmarshal(text, &t) != nil {
		return nil
	}
	return t.Operators
}

// kinds returns operators sorted, each once. Names that no operator has are left
// out: a reference may define its own.
func kinds(operators []string) []string {
	var all []string
	for _, o := range operators {
		if o != "" && len(o) <= maxKindBytes && !strings.ContainsFunc(o, func(r rune) bool { return r <= ' ' || r > '~' }) {
			all = append(all, o)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxKinds)]
}

// Lessons returns what changes brought, in runs that ended with a certified
// kernel. Without Like the newest come first.
func (s *Store) Lessons(ctx context.Context, f LessonFilter) ([]kernelwright.Lesson, error) {
	if f.Limit <= 0 {
		f.Limit = DefaultLimit
	}
	places, err := s.lessonPlaces(ctx, f)
	if err != nil {
		return nil, err
	}
	runs := ofRuns(places)
	var found []kernelwright.Lesson
	for len(runs) > 0 && len(found) < f.Limit {
		n := 0
		for most := len(found); n < len(runs) && most < f.Limit; n++ { // no more than may be wanted
			most += len(runs[n])
		}
		read, err := aside(runs[:n], func(places []place) ([]kernelwright.Lesson, error) { return s.lessonsOf(ctx, places, f.Bottleneck) })
		if err != nil {
			return nil, err
		}
		for _, lessons := range read {
			found = append(found, lessons...)
		}
		runs = runs[n:]
	}
	return found[:min(len(found), f.Limit)], nil
}

// ofRuns returns places by run, in their order, of as many runs as are read.
func ofRuns(places []place) (runs [][]place) {
	at := map[int64]int{}
	for _, p := range places {
		i, known := at[p.run]
		if !known {
			if len(runs) == maxLessonRuns {
				break
			}
			i, at[p.run] = len(runs), len(runs)
			runs = append(runs, nil)
		}
		runs[i] = append(runs[i], p)
	}
	return runs
}

// lessonsOf returns the lessons at places of a run; those of a bottleneck where one is given.
func (s *Store) lessonsOf(ctx context.Context, places []place, bottleneck string) (found []kernelwright.Lesson, err error) {
	t, err := s.taught(ctx, places[0].run)
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		l, ok, err := t.lesson(ctx, p.index, func(named string) bool {
			return bottleneck == "" || p.rule == bottleneck || strings.Contains(strings.ToLower(named), strings.ToLower(bottleneck))
		})
		if err != nil {
			return nil, err
		}
		if ok {
			l.Kinds, l.Rule = strings.Fields(p.kinds), p.rule
			found = append(found, l)
		}
	}
	return found, nil
}

// LessonsFor returns the lessons for a run that begins on a task: of the same
// device alone, and few of the same advice and the same steps. A run of a bench
// gets what was known when the bench began, and nothing of its own task: what is
// compared learns neither from each other nor its own answer.
func (s *Store) LessonsFor(ctx context.Context, run int64, t kernelwright.Task, d kernelwright.Device) ([]kernelwright.Lesson, error) {
	if len(kinds(t.Operators)) == 0 {
		return nil, nil
	}
	f := LessonFilter{Devices: []string{d.Key}, Like: t.Operators, Limit: MaxLessons, without: t.Fingerprint}
	err := s.read.QueryRowContext(ctx, `SELECT bench FROM bench_runs WHERE run = ?`, run).Scan(&f.bench)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	all, err := s.Lessons(ctx, f)
	if err != nil {
		return nil, err
	}
	var kept []kernelwright.Lesson
	seen := map[string]int{}
	for _, l := range all {
		same := l.Rule + fmt.Sprint(l.Steps)
		if l.Rule == "" {
			same += l.Method
		}
		if seen[same]++; seen[same] > maxLessonsAlike {
			continue
		}
		if kept = append(kept, l); len(kept) == maxLessonsKept {
			break
		}
	}
	return kept, nil
}

// place is where a lesson stands.
type place struct {
	run         int64
	index       int
	kinds, rule string
}

// lessonPlaces returns where the lessons stand that may match, in their order.
func (s *Store) lessonPlaces(ctx context.Context, f LessonFilter) ([]place, error) {
	const narrow = ` AND (?1 = '' OR rule = ?1 OR rule = '')`
	const fair = ` AND (?5 = 0 OR run NOT IN (SELECT run FROM bench_runs WHERE bench = ?5)
		AND EXISTS (SELECT 1 FROM runs r JOIN benches b ON b.id = ?5 WHERE r.id = lessons.run AND r.finished <= b.created AND r.task <> ?6))`
	scan := func(r *sql.Rows) (p place, err error) { return p, r.Scan(&p.run, &p.index, &p.kinds, &p.rule) }
	if len(f.Like) == 0 && len(f.Holding) == 0 {
		devices, err := json.Marshal(f.Devices)
		if err != nil {
			return nil, err
		}
		rows, err := s.read.QueryContext(ctx, `SELECT run, idx, kinds, rule FROM lessons WHERE (?2 = 0 OR device_key IN (SELECT value FROM json_each(?3))) AND (?5 = 0 OR (run, idx) < (?5, ?6))`+narrow+`
			ORDER BY run DESC, idx DESC LIMIT ?4`, f.Bottleneck, len(f.Devices), string(devices), MaxLessons, f.BeforeRun, f.BeforeRound)
		if err != nil {
			return nil, err
		}
		return scanAll(rows, scan)
	}
	if len(f.Like) == 0 {
		return s.lessonsHolding(ctx, f)
	}
	sets, err := s.kindSets(ctx, f)
	if err != nil {
		return nil, err
	}
	var all []place
	for _, set := range sets {
		rows, err := s.read.QueryContext(ctx, lessonsOfKinds+narrow+fair+` ORDER BY run DESC, idx LIMIT ?4`, f.Bottleneck, set.device, set.kinds, MaxLessons, f.bench, f.without)
		if err != nil {
			return nil, err
		}
		found, err := scanAll(rows, scan)
		if err != nil {
			return nil, err
		}
		if all = append(all, found...); len(all) >= MaxLessons {
			break
		}
	}
	return all[:min(len(all), MaxLessons)], nil
}

// lessonsHolding returns where the newest lessons stand whose tasks have all of some kinds of
// operators: from the runs on such tasks.
func (s *Store) lessonsHolding(ctx context.Context, f LessonFilter) ([]place, error) {
	holding := kinds(f.Holding)
	var c facetFilter
	for _, kind := range holding {
		sets, err := s.operatorSets(ctx, kind)
		if err != nil || sets == "[]" {
			return nil, err
		}
		c.indexed = append(c.indexed, facetCondition{"f.operators IN (SELECT value FROM json_each(?))", "run_facets_operators", sets, false})
	}
	match, with := []string{"(? = '' OR rule = ? OR rule = '')"}, []any{f.Bottleneck, f.Bottleneck}
	if len(f.Devices) > 0 {
		devices, err := json.Marshal(f.Devices)
		if err != nil {
			return nil, err
		}
		match, with = append(match, "device_key IN (SELECT value FROM json_each(?))"), append(with, string(devices))
	}
	for _, kind := range holding {
		match, with = append(match, "instr(' ' || kinds || ' ', ?) > 0"), append(with, " "+kind+" ")
	}
	these := `l.run = f.run AND ` + strings.Join(match, " AND ")
	runs, args, err := s.facetQuery(ctx, c, Page{})
	if err != nil {
		return nil, err
	}
	// Runs come in order, and whether one has lessons is asked until enough have.
	rows, err := s.read.QueryContext(ctx, `SELECT l.run, idx, kinds, rule FROM (SELECT run FROM (`+runs+`) f WHERE EXISTS (SELECT 1 FROM lessons l WHERE `+these+`) LIMIT ?) f
		CROSS JOIN lessons l WHERE `+these+` ORDER BY l.run DESC, idx LIMIT ?`, slices.Concat(args, with, []any{maxLessonRuns}, with, []any{MaxLessons})...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (p place, err error) { return p, r.Scan(&p.run, &p.index, &p.kinds, &p.rule) })
}

const lessonsOfKinds = `SELECT run, idx, kinds, rule FROM lessons WHERE device_key = ?2 AND kinds = ?3`

// kindSet is the kinds of the tasks that some lessons on a device are of.
type kindSet struct {
	device, kinds string
	like          float64
}

// kindSets returns those that are alike, the likest first.
func (s *Store) kindSets(ctx context.Context, f LessonFilter) ([]kindSet, error) {
	like := kinds(f.Like)
	var sets []kindSet
	for last := (kindSet{}); ; {
		err := s.read.QueryRowContext(ctx, kindSetQuery, last.device, last.kinds).Scan(&last.device, &last.kinds)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(f.Devices) > 0 && !slices.Contains(f.Devices, last.device) {
			continue
		}
		have := strings.Fields(last.kinds)
		if last.like = likeness(have, like); last.like >= alike {
			sets = append(sets, last)
		}
	}
	slices.SortStableFunc(sets, func(a, b kindSet) int { return cmp.Compare(b.like, a.like) })
	return sets, nil
}

const kindSetQuery = `SELECT device_key, kinds FROM lessons WHERE (device_key, kinds) > (?, ?) ORDER BY device_key, kinds LIMIT 1`

// likeness is the share of the kinds of two tasks that both have.
func likeness(a, b []string) float64 {
	both := 0
	for _, k := range a {
		if slices.Contains(b, k) {
			both++
		}
	}
	if both == 0 {
		return 0
	}
	return float64(both) / float64(len(a)+len(b)-both)
}

// taught is a run that has lessons. Its texts are read at once, and opened as they are
// needed: before, a round has neither source nor feedback, and of its verdict the status
// and the time alone.
type taught struct {
	s      *Store
	run    kernelwright.Run
	rounds []taughtRound
}

type taughtRound struct {
	kernelwright.Round
	source, verdict keptText
	feedback        keptText // its id is 0 where there is none
	opened          bool
	schedule        kernelwright.Schedule
	stated          bool // the source states a schedule
}

func (s *Store) taught(ctx context.Context, run int64) (*taught, error) {
	t := &taught{s: s, run: kernelwright.Run{ID: run}}
	err := s.read.QueryRowContext(ctx, `SELECT task, task_name, device, device_key FROM runs WHERE id = ?`, run).
		Scan(&t.run.Task, &t.run.TaskName, &t.run.Device, &t.run.DeviceKey)
	if err != nil {
		return nil, err
	}
	rows, err := s.read.QueryContext(ctx, `SELECT r.run, r.idx, r.note, r.parent, v.status, v.candidate_ms, c.id, c.hash, c.body, t.id, t.hash, t.body, coalesce(f.text, 0), b.hash, b.body
		FROM rounds r JOIN verdicts v ON v.id = r.verdict JOIN texts c ON c.id = r.candidate JOIN texts t ON t.id = v.text
		LEFT JOIN feedback f ON f.run = r.run AND f.idx = r.idx LEFT JOIN texts b ON b.id = f.text WHERE r.run = ? ORDER BY r.idx`, run)
	if err != nil {
		return nil, err
	}
	t.rounds, err = scanAll(rows, func(r *sql.Rows) (of taughtRound, err error) {
		return of, r.Scan(&of.RunID, &of.Index, &of.Candidate.Note, &of.Parent, &of.Verdict.Status, &of.Verdict.CandidateMS, &of.source.id, &of.source.hash, &of.source.body,
			&of.verdict.id, &of.verdict.hash, &of.verdict.body, &of.feedback.id, &of.feedback.hash, &of.feedback.body)
	})
	return t, err
}

// round is a round with its source and its verdict.
func (t *taught) round(ctx context.Context, at int) (of *taughtRound, err error) {
	if of = &t.rounds[at]; of.opened {
		return of, nil
	}
	if of.Candidate.Source, err = t.s.open(ctx, t.s.read, of.source); err != nil {
		return of, err
	}
	text, err := t.s.open(ctx, t.s.read, of.verdict)
	if err != nil {
		return of, err
	}
	var v kernelwright.Verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return of, err
	}
	of.schedule, of.stated = kernelwright.ParseSchedule(of.Candidate.Source)
	of.Verdict, of.opened = v, true
	return of, nil
}

// lesson is what the round of this index brought; false where that is none, or where it is
// not wanted of the bottleneck that was named for it. What it is held against is the round
// that it was made from; with a schedule, where its step began.
func (t *taught) lesson(ctx context.Context, index int, wanted func(bottleneck string) bool) (l kernelwright.Lesson, ok bool, err error) {
	at := slices.IndexFunc(t.rounds, func(r taughtRound) bool { return r.Index == index })
	if at < 1 {
		return l, false, nil
	}
	from := at - 1
	if parent := t.rounds[at].Parent; parent != nil {
		from = slices.IndexFunc(t.rounds, func(p taughtRound) bool { return p.Index == *parent })
	}
	if from < 0 || from >= at {
		return l, false, nil
	}
	var advised kernelwright.Feedback
	if kept := t.rounds[from].feedback; kept.id != 0 {
		text, err := t.s.open(ctx, t.s.read, kept)
		if err == nil {
			err = json.Unmarshal([]byte(text), &advised)
		}
		if err != nil {
			return l, false, err
		}
	}
	l.Bottleneck, l.Method = sentence(advised.Bottleneck, maxLessonWords), sentence(advised.Method, maxLessonWords)
	if !wanted(l.Bottleneck) {
		return l, false, nil
	}
	r, err := t.round(ctx, at)
	if err != nil {
		return l, false, err
	}
	if r.stated {
		if from, err = t.start(ctx, from, r.schedule); err != nil {
			return l, false, err
		}
	}
	p, err := t.round(ctx, from)
	if err != nil {
		return l, false, err
	}
	was, now := strict(p.Verdict), strict(r.Verdict)
	if !timed(was) || p.Candidate.Source == r.Candidate.Source {
		return l, false, nil
	}
	l.Run, l.Round, l.From, l.Task, l.TaskName, l.Device, l.DeviceKey = r.RunID, r.Index, p.Index, t.run.Task, sentence(t.run.TaskName, maxKindBytes), t.run.Device, t.run.DeviceKey
	l.Tried, l.FromMS, l.Status, l.Outcome = sentence(r.Candidate.Note, maxLessonWords), was.CandidateMS, now.Status, outcome(was, now)
	if p.stated && r.stated {
		l.Steps = kernelwright.Steps(p.schedule, r.schedule)
		for i := range l.Steps {
			l.Steps[i].Knob = sentence(l.Steps[i].Knob, maxKindBytes)
		}
		l.Steps = l.Steps[:min(len(l.Steps), maxKinds)]
	}
	if l.Outcome == kernelwright.LessonFailed {
		l.Reason = sentence(now.Reason, maxLessonWords)
		return l, true, nil
	}
	l.ToMS, l.Moved = now.CandidateMS, Moved(was, now)
	return l, true, nil
}

// strict is the verdict that strict inputs would have brought: nobody is to learn
// that it pays to take something for granted.
func strict(v kernelwright.Verdict) kernelwright.Verdict {
	if v.Status.OK() && len(v.Assumes) > 0 {
		v.Status, v.Reason, v.CandidateMS, v.Speedup = kernelwright.Wrong, "it "+v.Assumes[0], 0, nil
	}
	return v
}

// start is the round from which the built-in Judge had a Coder take its step to a
// schedule: it sends it back to one that was fast, whatever the last one was. So
// it is the fastest up to the given round of those that are one step away, else
// the given one.
func (t *taught) start(ctx context.Context, given int, to kernelwright.Schedule) (int, error) {
	away := func(i int) (int, error) {
		if !timed(t.rounds[i].Verdict) {
			return 0, nil
		}
		r, err := t.round(ctx, i)
		if err != nil || !r.stated {
			return 0, err
		}
		return len(kernelwright.Steps(r.schedule, to)), nil
	}
	at := given
	least, err := away(at)
	for i := 0; i < given && err == nil; i++ {
		var n int
		if n, err = away(i); n == 1 && (least != 1 || t.rounds[i].Verdict.CandidateMS < t.rounds[at].Verdict.CandidateMS) {
			at, least = i, n
		}
	}
	return at, err
}

func timed(v kernelwright.Verdict) bool { return v.Status.OK() && v.CandidateMS > 0 }

// outcome says what came of a change, beyond the noise of measuring.
func outcome(from, to kernelwright.Verdict) kernelwright.LessonOutcome {
	a, b := from.Timing.Candidate, to.Timing.Candidate
	switch {
	case !timed(to):
		return kernelwright.LessonFailed
	case b.HighMS > 0 && b.HighMS < a.LowMS:
		return kernelwright.LessonFaster
	case a.HighMS > 0 && b.LowMS > a.HighMS:
		return kernelwright.LessonSlower
	}
	return kernelwright.LessonUnchanged
}

// Metrics that say how the machine was, and those that are the time in another
// unit: of these the one that bounds the task is enough.
var (
	circumstances = []string{metrics.SMMHz, metrics.Celsius, metrics.SlowedShare, metrics.ContextSwitches, metrics.PageFaults}
	timeAgain     = []string{metrics.AchievedGBs, metrics.AchievedGFLOPs, metrics.MemoryShare, metrics.CacheShare, metrics.ComputeShare, metrics.CallOverheadShare}
)

// Moved returns the metrics that changed most, by their change relative to the
// larger of both values: at most four.
func Moved(from, to kernelwright.Verdict) []kernelwright.Movement {
	before, after := measured(from), measured(to)
	change := func(m kernelwright.Movement) float64 {
		return math.Abs(m.To-m.From) / max(math.Abs(m.From), math.Abs(m.To))
	}
	var all []kernelwright.Movement
	for _, name := range slices.Sorted(maps.Keys(after)) {
		x, ok := before[name]
		m := kernelwright.Movement{Metric: name, From: x, To: after[name]}
		if !ok || slices.Contains(circumstances, name) || slices.Contains(timeAgain, name) && name != to.Floor.Bound+"_share" || len(name) > maxKindBytes {
			continue
		}
		if strings.HasSuffix(name, "_share") && math.Abs(m.To-m.From) < leastShare {
			continue
		}
		if c := change(m); c >= leastMoved { // of two zeros it is NaN
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b kernelwright.Movement) int { return cmp.Compare(change(b), change(a)) })
	return all[:min(len(all), maxMoved)]
}

// measured returns a verdict's finite metrics, with those of its profile.
func measured(v kernelwright.Verdict) map[string]float64 {
	all := map[string]float64{}
	if v.Profile != nil {
		maps.Copy(all, v.Profile.Metrics)
	}
	maps.Copy(all, v.Metrics)
	maps.DeleteFunc(all, func(_ string, x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	return all
}

// sentence makes one line of a text, of at most so many bytes.
func sentence(s string, most int) string {
	if len(s) > 16*most {
		s = s[:16*most]
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// pinLessons records the lessons that a run goes by.
func (s *Store) pinLessons(ctx context.Context, tx *sql.Tx, run int64, all []kernelwright.Lesson) error {
	text, err := s.putJSON(ctx, tx, all, "")
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE runs SET lessons = ? WHERE id = ?`, text, run)
	return err
}

// RunLessons returns the lessons that a run goes by; none where it was
// given none.
func (s *Store) RunLessons(ctx context.Context, run int64) ([]kernelwright.Lesson, error) {
	var text sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT lessons FROM runs WHERE id = ?`, run).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !text.Valid {
		return nil, nil
	}
	var all []kernelwright.Lesson
	if err == nil {
		err = s.textJSON(ctx, s.read, text.Int64, &all)
	}
	return all, err
}
