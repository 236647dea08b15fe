package hwfeedback

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // the self-test
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// A task and a candidate that are known to be right: when they pass, the
// machinery works.
var (
	//go:embed selftest/reference.py
	selfTestReference string
	//go:embed selftest/candidate.py
	selfTestCandidate string
	//go:embed selftest/candidate_cuda.py
	selfTestCUDA string
)

// Evaluate says what the hardware makes of a candidate. The error is for
// infrastructure, cancellation, or a reference that is no task; whatever the
// candidate does is a verdict. A verdict reached before under the same
// conditions is returned with Cached set, unless Options.Again is.
func (e *Evaluator) Evaluate(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	return e.evaluate(ctx, task, cand, batch{profile: e.options.Profile}, level)
}

// Profiling is an Evaluator whose verdicts have another profile than
// Options.Profile. It has no resources of its own.
type Profiling struct {
	*Evaluator
	Profile string // SelectedProfile, FullProfile; empty: none
}

// Evaluate is Evaluator.Evaluate with that profile.
func (p Profiling) Evaluate(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	return p.evaluate(ctx, task, cand, batch{profile: p.Profile}, level)
}

// Untimed is an Evaluator that verifies candidates at quick as Evaluate does, and
// times nothing: a correct verdict has no time and no speedup, and lacks what is seen
// of a candidate while it is timed. A timed verdict that is remembered serves, and no
// untimed one serves who wants times. It has no resources of its own.
type Untimed struct {
	*Evaluator
	// Baselines has the baselines of a correct candidate timed, and them alone.
	Baselines bool
}

// Evaluate is Evaluator.Evaluate without timing. The level is Quick.
func (u Untimed) Evaluate(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	if err := u.allows(level); err != nil {
		return kernelwright.Verdict{}, err
	}
	return u.evaluate(ctx, task, cand, batch{untimed: true, baselines: u.Baselines}, level)
}

// EvaluateBatch is Evaluator.EvaluateBatch without timing. The level is Quick.
func (u Untimed) EvaluateBatch(ctx context.Context, task kernelwright.Task, cands []kernelwright.Candidate, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	if err := u.allows(level); err != nil {
		return err
	}
	return u.evaluateBatch(ctx, task, cands, batch{untimed: true, baselines: u.Baselines}, level, yield)
}

func (u Untimed) allows(level kernelwright.Level) error {
	if level != kernelwright.Quick {
		return infrastructure("evaluate", fmt.Errorf("at level %q candidates are timed", level))
	}
	return nil
}

// Explain says how right and how fast a candidate is that policy rejects: its
// verdict where policy asks for nothing. It counts nowhere. Nothing of it is
// remembered, and nothing that is remembered takes its place.
func (e *Evaluator) Explain(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	return e.evaluate(ctx, task, cand, batch{explains: true}, level)
}

// EvaluateBatch is Evaluator.EvaluateBatch with that profile.
func (p Profiling) EvaluateBatch(ctx context.Context, task kernelwright.Task, cands []kernelwright.Candidate, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	return p.evaluateBatch(ctx, task, cands, batch{profile: p.Profile}, level, yield)
}

// EvaluateBatch evaluates candidates of one task, each as Evaluate does, and gives
// each to yield with its index as soon as it is evaluated. What comes next is built
// meanwhile, as far as that disturbs no measurement. It ends at the first error,
// which says nothing about any candidate, its own or yield's.
func (e *Evaluator) EvaluateBatch(ctx context.Context, task kernelwright.Task, cands []kernelwright.Candidate, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	return e.evaluateBatch(ctx, task, cands, batch{profile: e.options.Profile}, level, yield)
}

// EvaluateBatchThen is EvaluateBatch, and then candidates of other tasks are evaluated:
// they are built meanwhile, too.
func (e *Evaluator) EvaluateBatchThen(ctx context.Context, task kernelwright.Task, cands, then []kernelwright.Candidate, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	return e.evaluateBatch(ctx, task, cands, batch{profile: e.options.Profile, then: then}, level, yield)
}

// evaluateBatch is EvaluateBatch for any purpose.
func (e *Evaluator) evaluateBatch(ctx context.Context, task kernelwright.Task, cands []kernelwright.Candidate, of batch, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error {
	of.name = rand.Text()
	if e.lanes != nil && level == kernelwright.Quick {
		return e.evaluateTogether(ctx, task, cands, of, level, yield)
	}
	for i, cand := range cands {
		of.next = slices.Concat(cands[i+1:], of.then)
		v, err := e.evaluate(ctx, task, cand, of, level)
		if err != nil {
			return err
		}
		if err := yield(i, v); err != nil {
			return err
		}
	}
	return nil
}

// batch is what a candidate was handed in with, and what for.
type batch struct {
	name string // to the referee, which knows by it what belongs together; empty: it came alone
	next []kernelwright.Candidate
	then []kernelwright.Candidate // those of other tasks, which come after all of the batch

	profile string // that a correct one gets at quick, on a GPU

	explains  bool // policy asks for nothing, and the verdict counts nowhere
	untimed   bool // it is verified alone
	baselines bool // are timed where it is not

	lane  *supervisor // that judges it, with a share of the device; nil: e.super, with all of it
	known func()      // the task's calibration is, from here on; of who has a lane
}

// upcomingBytes bounds what a request says of the candidates that come next,
// and maxUpcoming how many it names.
const (
	maxUpcoming   = 8
	upcomingBytes = 4 << 20
)

// evaluate is Evaluate for one of a batch.
func (e *Evaluator) evaluate(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level) (kernelwright.Verdict, error) {
	if level != kernelwright.Quick && level != kernelwright.Certify {
		return kernelwright.Verdict{}, infrastructure("evaluate", fmt.Errorf("there is no level %q", level))
	}
	if err := e.contains(cand); err != nil {
		return kernelwright.Verdict{}, err
	}
	v, err := e.attempt(ctx, task, cand, of, level)
	if err == nil || !inducible(ctx, err) {
		return v, err
	}
	// A candidate can provoke this in order to be measured again, or not at all.
	// So it gets one fresh slot, and no third.
	e.options.Log.Warn("the evaluation failed and is tried again", "task", task.Name, "error", err)
	if err := e.super.renew(ctx); err != nil {
		return kernelwright.Verdict{}, err
	}
	v, again := e.attempt(ctx, task, cand, batch{profile: of.profile, explains: of.explains, untimed: of.untimed, baselines: of.baselines}, level)
	if again == nil || !inducible(ctx, again) {
		return v, again
	}
	// Whether the candidate had the memory was seen when it was killed.
	var remote *remoteError
	if errors.As(again, &remote) && remote.Kind == kindNoRoom {
		return kernelwright.Verdict{}, &kernelwright.InvalidTaskError{Reason: remote.Message, Hint: remote.Hint, Traceback: remote.Traceback}
	}
	// Nor was a stranger's work its own, and by now the stranger may have left. What
	// was met before its code had run it did not bring about.
	if remote != nil && (remote.Kind == kindBusy || remote.Kind == kindFault) {
		return kernelwright.Verdict{}, again
	}
	if faulty := e.selfTest(ctx, &task); faulty != nil {
		if ctx.Err() != nil {
			return kernelwright.Verdict{}, context.Cause(ctx)
		}
		e.options.Log.Error("the self-test failed too", "error", faulty)
		return kernelwright.Verdict{}, again
	}
	// Not cached: it rests on the machine's state, and a machine can be faulty twice.
	v = e.verdict(task, cand, level)
	v.Status = kernelwright.Crashed
	v.Reason = "its evaluation broke down twice, on fresh processes, while a known candidate passed"
	v.Hint = "look for exhausted memory, signals to other processes, and endless output"
	v.Evidence = []string{"first: " + oneLine(err), "second: " + oneLine(again)}
	return v, nil
}

// inducible reports whether a candidate could have caused the error. What the
// caller ended and what we said wrongly it could not.
func inducible(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, errEvaluatorClosed) {
		return false
	}
	var infra *kernelwright.InfrastructureError
	if !errors.As(err, &infra) {
		return false
	}
	var start *startError
	var remote *remoteError
	if errors.As(err, &start) || (errors.As(err, &remote) && (remote.Kind == "protocol" || remote.Kind == "missing")) {
		return false
	}
	return true
}

// Check returns what is wrong with the device or the machine: nil where a task
// and a candidate that are known to be right pass, and where somebody else
// measures. A worker of ours that was killed, and still has the device when that
// was waited for, is stuck in it.
func (e *Evaluator) Check(ctx context.Context) error {
	_, err := heldOrFaulty(ctx, e.selfTest(ctx, nil))
	return err
}

// heldOrFaulty tells of an error on a device whether somebody else measures there,
// or what is wrong with it.
func heldOrFaulty(ctx context.Context, err error) (held *HeldError, faulty error) {
	switch {
	case !errors.As(err, &held):
		return nil, err
	case held.Left && ctx.Err() == nil:
		return nil, fmt.Errorf("%s hangs: a worker that was killed does not end, and keeps it: %w", held.Device, err)
	}
	return held, nil
}

// selfTest evaluates a known candidate, and inspects the task that a candidate was
// for, where there is one, on a fresh slot. It returns why that failed.
func (e *Evaluator) selfTest(ctx context.Context, task *kernelwright.Task) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(e.patience, selfTestTimeout), errors.New("the self-test did not finish"))
	defer cancel()
	if err := e.super.renew(ctx); err != nil {
		return err
	}
	if task != nil {
		if _, err := e.inspect(ctx, task.Name, task.Source); err != nil {
			return fmt.Errorf("inspect the task: %w", err)
		}
	}
	known, err := e.inspect(ctx, "self-test", selfTestReference)
	if err != nil {
		return fmt.Errorf("inspect the self-test: %w", err)
	}
	cand := kernelwright.Candidate{Source: selfTestCandidate, Language: kernelwright.CPP}
	if e.gpu != nil {
		cand = kernelwright.Candidate{Source: selfTestCUDA, Language: kernelwright.CUDA}
	}
	v, _, err := e.askReferee(ctx, known, cand, batch{}, kernelwright.Quick, []string{"eager"}, nil, "")
	if err != nil {
		return err
	}
	if !v.Status.OK() {
		return fmt.Errorf("the self-test is %s: %s", v.Status, v.Reason)
	}
	return nil
}

// attempt is one evaluation, from the cache or on the hardware.
func (e *Evaluator) attempt(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level) (kernelwright.Verdict, error) {
	if !utf8.ValidString(cand.Source) { // on its way to Python it would become another text
		return e.notUTF8(task, cand, level), nil
	}
	named, err := e.named(ctx, task)
	if err != nil {
		return kernelwright.Verdict{}, infrastructure("read the named baselines", err)
	}
	key := e.verdictKey(task, cand, level, named)
	profile := of.profile
	if e.gpu == nil || level != kernelwright.Quick {
		profile = ""
	}
	if v, found := e.recallFor(ctx, key, of, profile); found {
		return v, nil
	}
	if e.lanes != nil && level == kernelwright.Quick && of.name != "" {
		// These very bytes are judged once.
		done, err := e.lanes.claim(ctx, key)
		if err != nil {
			return kernelwright.Verdict{}, err
		}
		defer done()
		if v, found := e.recallFor(ctx, key, of, profile); found {
			return v, nil
		}
		if of.known, err = e.knowing(ctx, task, of); err != nil {
			return kernelwright.Verdict{}, err
		}
		defer of.known()
		lane, leave, err := e.lanes.enter(ctx, e.resident(task))
		if err != nil {
			return kernelwright.Verdict{}, err
		}
		defer leave()
		of.lane = lane
	}
	p, err := e.parse(ctx, e.referee(of), cand.Source, "candidate")
	if err != nil {
		return kernelwright.Verdict{}, requestError(err)
	}
	asked := cand
	cand.Language = cmp.Or(cand.Language, p.Language)
	v, passing, err := e.askReferee(ctx, task, cand, of, level, e.options.Baselines, named, profile)
	if err != nil {
		return kernelwright.Verdict{}, err
	}
	if passing { // who asks for a profile later gets a better one
		profile = ""
	}
	if keeps(v) && !of.explains { // under the ceilings that it rests on, which may have been measured for it
		key = e.verdictKey(task, asked, level, named)
		if of.untimed && v.Status.OK() { // what is not right is not timed anyway
			key = untimedKey(key, of.baselines)
		}
		e.remember(ctx, cacheVerdict, profiledKey(key, profile), v)
	}
	return v, nil
}

// referee is what judges an evaluation.
func (e *Evaluator) referee(of batch) *supervisor {
	if of.lane != nil {
		return of.lane
	}
	return e.super
}

// recallFor returns what is remembered under a key that serves who asks.
func (e *Evaluator) recallFor(ctx context.Context, key string, of batch, profile string) (v kernelwright.Verdict, found bool) {
	if !of.explains {
		v, found = e.recallVerdict(ctx, key, profile)
	}
	if !found && of.untimed {
		v, found = e.recallVerdict(ctx, untimedKey(key, of.baselines), "")
	}
	return v, found
}

// The profiles that may be asked for.
const (
	SelectedProfile = "selected" // harness/metrics_*.toml
	FullProfile     = "full"     // all that Nsight Compute can measure
)

// recallVerdict returns what is remembered under a key. Any profile serves who
// asks for none, and none serves who asks for one where the candidate failed.
func (e *Evaluator) recallVerdict(ctx context.Context, key, profile string) (kernelwright.Verdict, bool) {
	if e.options.Again {
		return kernelwright.Verdict{}, false
	}
	for _, known := range []string{profile, "", SelectedProfile, FullProfile} {
		var v kernelwright.Verdict
		if e.recall(ctx, cacheVerdict, profiledKey(key, known), &v) && (profile == "" || known == profile || !v.Status.OK()) {
			v.Cached = true
			return v, true
		}
	}
	return kernelwright.Verdict{}, false
}

// profiledKey is the key of a verdict that a profile was asked for with.
func profiledKey(key, profile string) string {
	if profile == "" {
		return key
	}
	return joinKey(key, "profile="+profile)
}

// untimedKey is the key of a verdict that has no times of the candidate.
func untimedKey(key string, baselines bool) string {
	if baselines {
		return joinKey(key, "untimed with baselines")
	}
	return joinKey(key, "untimed")
}

// keeps says which verdicts are cached: those that the same machine would
// reach again. A candidate that ran out of time may have met a busy machine, as
// one has most of whose windows were disturbed, or whose speedup over a baseline is
// too vague to tell anything, and one that somebody killed a machine without memory, so they are asked
// again; one that crashed otherwise in its own process did so by itself.
func keeps(v kernelwright.Verdict) bool {
	killed := v.Status == kernelwright.Crashed && strings.Contains(v.Reason, "SIGKILL")
	return v.Status != kernelwright.TimedOut && v.Status != "" && !killed && !v.Timing.Disturbed && !vague(v)
}

// vague reports whether measuring told nothing of a speedup, be it over one baseline.
func vague(v kernelwright.Verdict) bool {
	for _, s := range v.Speedups {
		if s.Vague() {
			return true
		}
	}
	return v.Speedup.Vague()
}

// verdictKey names everything that a verdict depends on. The reference and the
// candidate are in it with every byte: a program can read its own text, so what
// differs in a comment, a docstring or a line end is another program. Language is
// in it because the same text may be submitted as either; the sandbox because what
// "weak" lets pass proves less; when the ceilings were measured because headroom is
// a share of them; CUTLASS for who may include its headers; policy.
func (e *Evaluator) verdictKey(task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level, named []kernelwright.NamedBaseline) string {
	against := slices.Clone(e.options.Baselines)
	for _, b := range named {
		against = append(against, b.Name+"="+kernelwright.HashText(b.Source))
	}
	var effort string
	if level == kernelwright.Certify {
		effort = e.options.CertifyTime.String()
	}
	if level == kernelwright.Quick && e.options.Milestone > 0 {
		effort = fmt.Sprintf("beaten by %g", e.options.Milestone)
	}
	return joinKey(kernelwright.HashText(task.Source), kernelwright.HashText(cand.Source), string(cand.Language), string(level), e.device.Key,
		strconv.FormatInt(e.Device().Ceilings.MeasuredMS, 10), e.options.Sandbox, e.options.Precision,
		strings.Join(against, " "), e.versionsKey(), cutlassOf(cand.Source), effort, strictness(e.options.StrictInputs), e.options.CustomCode)
}

// strictness is the part of a verdict's key that says what may be taken for granted.
func strictness(inputs bool) string {
	if inputs {
		return "strict inputs"
	}
	return ""
}

// versionsKey names every version that takes part in a verdict.
func (e *Evaluator) versionsKey() string {
	v := e.Versions()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		parts = append(parts, name+"="+v[name])
	}
	return strings.Join(parts, " ")
}

// named returns the baselines that somebody registered for the task.
func (e *Evaluator) named(ctx context.Context, task kernelwright.Task) ([]kernelwright.NamedBaseline, error) {
	if e.options.Named == nil {
		return nil, nil
	}
	return e.options.Named(ctx, task, e.device.Kind)
}

// learnedKey names what the baselines and the calibration of a task depend on:
// the reference's bytes, for it can read its own text, too. A named baseline is
// kept with the hash of its source.
func (e *Evaluator) learnedKey(task kernelwright.Task, baselines []string) string {
	return joinKey(kernelwright.HashText(task.Source), e.device.Key, strings.Join(baselines, " "), e.options.Precision, e.versionsKey())
}

// joinKey joins the parts of a key with a separator that none of them has.
func joinKey(parts ...string) string { return strings.Join(parts, "|") }

// evaluateReply is the referee's answer to an evaluation.
type evaluateReply struct {
	Verdict *kernelwright.Verdict `json:"verdict"`
	Learned learned               `json:"learned"`
	Passing bool                  `json:"passing"` // what its profile lacks may be there another time
	AtRest  bool                  `json:"at_rest"` // nobody is left who met the candidate
	Parsed  []*parsed             `json:"parsed"`  // what comes next, as far as it was read meanwhile
}

// askReferee builds and evaluates. Nothing is asked of the verdict cache. Passing says that
// what its profile lacks may be there another time. Where
// the device is free it is taken for building too: on a CPU a compiler would disturb
// what somebody else times.
func (e *Evaluator) askReferee(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level, baselines []string, named []kernelwright.NamedBaseline, profile string) (v kernelwright.Verdict, passing bool, err error) {
	lease, failed, err := e.hold(ctx, task, cand, of, level)
	if err != nil {
		return v, false, err
	}
	if failed != nil {
		return *failed, false, nil
	}
	var reply evaluateReply
	held := &laneLease{Lease: lease}
	defer func() {
		if of.lane != nil {
			e.release(held)
		} else {
			e.letGo(lease, reply.AtRest)
		}
	}()
	deadline := quickTimeout
	if level == kernelwright.Certify {
		deadline = certifyTimeout
	}
	body, keep := e.evaluation(ctx, task, level, baselines, named)
	if of.untimed && !of.baselines && nothing(body.Known.Calibration) {
		// Compiling takes longer than all else, and is for who is timed.
		body, keep = e.evaluation(ctx, task, level, nil, named)
		body.WantBaselines, body.Uncompiled = baselines, true
	}
	body.Candidate, body.Batch, body.Upcoming = candidateBody{cand.Source, cand.Language}, of.name, upcoming(of.next)
	body.Explain, body.TimeBaselines = of.explains, of.baselines
	if of.untimed {
		body.Time = new(bool)
	}
	body.Last = e.options.KeepWarm > 0 && len(of.next) == 0 // who keeps a process warm ends after it
	body.Profile, body.Known.Profile = profile, e.knownProfile(ctx, task, profile)
	hear := hearer{learned: keep}
	if of.lane != nil {
		body.Shares = true
		hear = e.hearsLane(of, held, e.learnedKey(task, baselines), keep)
	}
	result, err := e.referee(of).converse(ctx, "evaluate", body, deadline, hear, lease.File())
	if err != nil {
		return v, false, requestError(err)
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return v, false, infrastructure("evaluate", err)
	}
	if reply.Verdict == nil || reply.Verdict.Status == "" {
		return v, false, infrastructure("evaluate", errors.New("the referee sent no verdict"))
	}
	keep(reply.Learned)
	if p := reply.Learned.Profile; !nothing(p) {
		e.remember(ctx, cacheProfile, e.profileKey(task, profile), p)
	}
	for i, p := range reply.Parsed {
		if i < len(of.next) && p != nil {
			e.remember(ctx, cacheSource, e.sourceKey(of.next[i].Source, "candidate"), p)
		}
	}
	return e.complete(*reply.Verdict, task, cand, level), reply.Passing, nil
}

// knownBaselines returns what is remembered of a task's baselines, nil where nothing is.
func (e *Evaluator) knownBaselines(ctx context.Context, learnedKey string) json.RawMessage {
	var known json.RawMessage
	if !e.options.Again {
		e.recall(ctx, cacheBaselines, learnedKey, &known)
	}
	return known
}

// knownProfile returns what is known of eager's profile.
func (e *Evaluator) knownProfile(ctx context.Context, task kernelwright.Task, profile string) json.RawMessage {
	var known json.RawMessage
	if profile == "" || e.options.Again || !e.recall(ctx, cacheProfile, e.profileKey(task, profile), &known) {
		return nil
	}
	return known
}

func (e *Evaluator) profileKey(task kernelwright.Task, profile string) string {
	return joinKey(e.learnedKey(task, nil), profile)
}

// nothing reports whether a part of what was learned says nothing.
func nothing(part json.RawMessage) bool {
	return len(part) == 0 || string(part) == "null" || string(part) == "{}"
}

// evaluation is what the referee is asked about a task, with what is known of it,
// and how what it learns is kept.
func (e *Evaluator) evaluation(ctx context.Context, task kernelwright.Task, level kernelwright.Level, baselines []string, named []kernelwright.NamedBaseline) (evaluateBody, func(learned)) {
	learnedKey, device := e.learnedKey(task, baselines), e.Device()
	known := learned{Baselines: e.knownBaselines(ctx, learnedKey)}
	e.recall(ctx, cacheCalibration, learnedKey, &known.Calibration)
	keep := func(l learned) {
		for kind, value := range map[string]json.RawMessage{cacheCalibration: l.Calibration, cacheBaselines: l.Baselines} {
			if !nothing(value) {
				e.remember(ctx, kind, learnedKey, value)
			}
		}
	}
	return evaluateBody{
		Task:          toTaskBody(task),
		workplace:     e.workplace(),
		Level:         level,
		Precision:     e.options.Precision,
		StrictInputs:  e.options.StrictInputs,
		CustomCode:    e.options.CustomCode,
		CertifyS:      e.options.CertifyTime.Seconds(),
		Milestone:     e.options.Milestone,
		Ceilings:      device.Ceilings,
		Specs:         device.Specs,
		Version:       kernelwright.Version,
		Harness:       e.harness.hash,
		Known:         known,
		WantBaselines: baselines,
		Named:         named,
	}, keep
}

// upcoming returns as much of what comes next as a request may say.
func upcoming(next []kernelwright.Candidate) (bodies []candidateBody) {
	room := upcomingBytes
	for _, c := range next[:min(len(next), maxUpcoming)] {
		if room -= len(c.Source); room < 0 {
			break
		}
		bodies = append(bodies, candidateBody{c.Source, c.Language})
	}
	return bodies
}

// complete adds to a verdict what only this side knows.
func (e *Evaluator) complete(v kernelwright.Verdict, task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) kernelwright.Verdict {
	blank := e.verdict(task, cand, level)
	v.Level, v.Task, v.Candidate, v.Device, v.DeviceKey = blank.Level, blank.Task, blank.Candidate, blank.Device, blank.DeviceKey
	v.Language = cmp.Or(v.Language, blank.Language)
	if v.Sandbox.Mode == "" {
		v.Sandbox = blank.Sandbox
	}
	if v.Flags == nil {
		v.Flags = blank.Flags
	}
	if v.Baselines == nil {
		v.Baselines = blank.Baselines
	}
	if v.CostS == nil {
		v.CostS = map[string]float64{}
	}
	if v.Versions == nil {
		v.Versions = map[string]string{}
	}
	for name, version := range blank.Versions {
		v.Versions[name] = version
	}
	if v.Exported != "" {
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
	}
	v.Cached = false
	return v
}

// verdict returns what is known of a verdict before anything was measured.
func (e *Evaluator) verdict(task kernelwright.Task, cand kernelwright.Candidate, level kernelwright.Level) kernelwright.Verdict {
	return kernelwright.Verdict{
		Level:     level,
		Task:      task.Fingerprint,
		Candidate: kernelwright.HashText(cand.Source),
		Language:  cand.Language,
		Device:    e.device.String(),
		DeviceKey: e.device.Key,
		Baselines: map[string]float64{},
		Sandbox:   kernelwright.SandboxReport{Mode: e.options.Sandbox},
		Flags:     task.Flags,
		CostS:     map[string]float64{},
		Versions:  e.Versions(),
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
