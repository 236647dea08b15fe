// Package episodes lets a trainer elsewhere play a policy: each episode is a run
// like any other, whose Coder is a language model that waits until the trainer has
// posted what it says. Strategies, prompts, tools, Judge and verdicts are those of
// every run; none of them knows that it is trained by.
package episodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// The defaults of Options.
const (
	// SpareConnections are beside one for each open episode: for those that begin, and
	// for looking.
	SpareConnections = 256
	DefaultMaxOpen   = 1024             // four steps of 256 rollouts
	DefaultExpiry    = 30 * time.Minute // a sampler that shares its GPU with a step of training may take minutes
	// linger is how long, and maxEnded of how many, the last answer can be asked for again.
	linger   = 10 * time.Minute
	maxEnded = 1024
	// sweepEvery is how often is looked for what expired, and tellEvery how often the
	// log is told.
	sweepEvery = time.Second
	tellEvery  = time.Minute
)

// Conditions are what verdicts depend on beside task and candidate.
type Conditions struct {
	StrictInputs bool
	Profile      bool // somebody reads what a profiler saw
}

// Options is what episodes are made of.
type Options struct {
	Store *store.Store
	// Hardware opens the hardware for the conditions, or returns what it opened before:
	// a value that can be compared. It is called by one at a time.
	Hardware func(ctx context.Context, c Conditions) (Hardware, error)
	Judge    forge.Judge
	Prompts  *prompts.Templates
	Skills   *prompts.Skills
	Form     coder.Form
	// Settings are what a request leaves open, of every strategy.
	Settings forge.Settings
	AtOnce   int           // batches that the hardware evaluates at once; 0: 1
	MaxOpen  int           // 0: DefaultMaxOpen
	Expiry   time.Duration // of a call that nobody answers, where a request says nothing; 0: DefaultExpiry
	Log      *slog.Logger  // may be nil
	Now      func() time.Time
}

// Episodes are those of one server. It owns a goroutine for each batch that may be
// evaluated at once, one that ends what expired, and two for each episode that is open.
type Episodes struct {
	o      Options
	queue  *queue
	ctx    context.Context
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	told   Stats // of the sweeping goroutine alone

	opening chan struct{} // has a token while nobody opens hardware
	large   chan struct{} // has one for each large body that is read

	mu    sync.Mutex
	known map[int64]*episode
	ended []int64 // of known, the first to end first
	taken int     // places of MaxOpen
	stats Stats
}

// FullError says that as many episodes are open as may be.
type FullError struct{ Open int }

func (e *FullError) Error() string {
	return fmt.Sprintf("%d episodes are open, which is the most", e.Open)
}

// GoneError is of an episode that has ended, or was open in another process.
type GoneError struct{ Episode store.Episode }

func (e *GoneError) Error() string {
	if e.Episode.Reason == "" {
		return fmt.Sprintf("episode %d has ended: %s", e.Episode.Run, e.Episode.Status)
	}
	return fmt.Sprintf("episode %d has ended: %s (%s)", e.Episode.Run, e.Episode.Status, e.Episode.Reason)
}

// New begins to take episodes. What the store has open was lost with an earlier
// process: nobody else may have episodes in it.
func New(ctx context.Context, o Options) (*Episodes, error) {
	o.AtOnce = max(o.AtOnce, 1)
	if o.MaxOpen == 0 {
		o.MaxOpen = DefaultMaxOpen
	}
	if o.Expiry == 0 {
		o.Expiry = DefaultExpiry
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	lost, err := o.Store.LoseEpisodes(ctx)
	if err != nil {
		return nil, err
	}
	if lost > 0 {
		o.Log.Warn("episodes were open when the last server ended, and are lost", "episodes", lost)
	}
	e := &Episodes{o: o, queue: newQueue(o.AtOnce), known: map[int64]*episode{}, opening: make(chan struct{}, 1), large: make(chan struct{}, maxLarge)}
	e.stats = Stats{SinceMS: o.Now().UnixMilli(), Rewards: map[int]int64{}}
	e.opening <- struct{}{}
	e.ctx, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	for range o.AtOnce {
		e.all.Go(func() { e.queue.run(e.ctx) })
	}
	e.all.Go(e.watch)
	return e, nil
}

// Close gives up what is open, and waits for it. It may be called again.
func (e *Episodes) Close() {
	e.cancel(errClosing)
	e.mu.Lock()   // what began before has its goroutines
	e.mu.Unlock() //nolint:staticcheck // nothing is left to do under it
	e.all.Wait()
}

// watch ends what expired, and tells the log.
func (e *Episodes) watch() {
	sweep, tell := time.NewTicker(sweepEvery), time.NewTicker(tellEvery)
	defer sweep.Stop()
	defer tell.Stop()
	for {
		select {
		case <-sweep.C:
			e.Sweep()
		case <-tell.C:
			e.tell(e.o.Now())
		case <-e.ctx.Done():
			e.tell(e.o.Now())
			return
		}
	}
}

// Sweep ends the episodes that nobody continued in time, and forgets those that
// ended some time ago.
func (e *Episodes) Sweep() {
	now := e.o.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range e.known {
		if ep.expired(now) {
			ep.cancel(errExpired)
		}
	}
	for len(e.ended) > 0 {
		if len(e.ended) <= maxEnded && now.Sub(e.known[e.ended[0]].said()) < linger {
			break
		}
		delete(e.known, e.ended[0])
		e.ended = e.ended[1:]
	}
}

// Start begins an episode, and returns what the policy is asked first. Errors are
// *BadError, *FullError, *kernelwright.InvalidTaskError where the reference is no
// task, the context's, or infrastructure. Where ctx ends first, so does the episode:
// nobody knows its number.
func (e *Episodes) Start(ctx context.Context, r Request) (Answer, error) {
	if err := r.normalise(); err != nil {
		return Answer{}, err
	}
	settings, err := r.settings(e.o.Settings)
	if err != nil {
		return Answer{}, err
	}
	if err := e.reserve(); err != nil {
		return Answer{}, err
	}
	ep, err := e.begin(ctx, r, settings)
	if err != nil {
		e.count(func(s *Stats) { e.taken--; s.Refused++ })
		return Answer{}, err
	}
	e.count(func(s *Stats) { s.Begun++ })
	select {
	case <-ep.answered():
	case <-ctx.Done():
		ep.cancel(errGivenUp)
		return Answer{}, ctx.Err()
	}
	return ep.first()
}

// reserve takes a place.
func (e *Episodes) reserve() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return errClosing
	}
	if e.taken >= e.o.MaxOpen {
		e.stats.Refused++
		return &FullError{e.taken}
	}
	e.taken++
	return nil
}

// begin records an episode and lets it run.
func (e *Episodes) begin(ctx context.Context, r Request, settings forge.Settings) (*episode, error) {
	source, err := task.Decode([]byte(r.Reference))
	if err != nil {
		return nil, err
	}
	// Of one round nobody reads what a profiler saw: no Judge and no Coder comes after it.
	alone := r.Strategy == forge.RoundsStrategy && settings.Rounds == 1
	hardware, err := e.hardware(ctx, Conditions{StrictInputs: *r.StrictInputs, Profile: !alone})
	if err != nil {
		return nil, err
	}
	if err := runs(hardware.Device(), settings.Language); err != nil {
		return nil, err
	}
	t, err := e.queue.inspect(ctx, hardware, r.Name, source)
	if err != nil {
		return nil, err
	}
	ep := &episode{
		version: r.Policy, rule: r.Reward, model: llm.TrainingProvider + ":" + r.Policy, broker: llm.NewBroker(noExpiry),
		taken: make(chan struct{}, 1), over: make(chan struct{}), ready: make(chan struct{}), touched: e.o.Now(),
		session: r.Session, expiry: cmp.Or(time.Duration(r.ExpiresS)*time.Second, e.o.Expiry), most: kernelwright.RewardNotCorrect,
	}
	run, err := e.record(ctx, r, settings, ep, t, hardware.Device())
	if err == nil {
		ep.id = run.ID
		err = e.open(r, settings, ep, hardware, run, t)
	}
	if err != nil && run.ID > 0 {
		e.abandon(ctx, ep, run, err)
	}
	return ep, err
}

// open lets an episode run that is recorded.
func (e *Episodes) open(r Request, settings forge.Settings, ep *episode, h Hardware, run kernelwright.Run, t kernelwright.Task) error {
	strategy, err := e.strategy(r, settings, ep, h)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		return errClosing
	}
	ep.ctx, ep.cancel = context.WithCancelCause(e.ctx)
	e.known[ep.id] = ep
	e.all.Go(func() { ep.feed(r.MaxTokens, e.o.Now) })
	e.all.Go(func() { e.play(ep, strategy, run, t) })
	return nil
}

// abandon records the end of an episode that is recorded and did not begin.
func (e *Episodes) abandon(ctx context.Context, ep *episode, run kernelwright.Run, why error) {
	record := store.Episode{Run: run.ID, Policy: ep.version, Rule: ep.rule, Status: store.EpisodeDropped, Reason: why.Error()}
	if errors.Is(why, errClosing) {
		record.Status = store.EpisodeLost
	}
	run.Status, run.Reason, run.FinishedMS = kernelwright.RunFailed, record.Reason, e.o.Now().UnixMilli()
	if _, err := e.o.Store.EndEpisode(context.WithoutCancel(ctx), record, run, nil); err != nil {
		e.o.Log.Error("the end of an episode cannot be recorded", "episode", run.ID, "error", err)
	}
}

// noExpiry is of a broker's calls: an episode expires as a whole.
const noExpiry = 10 * 365 * 24 * time.Hour

// runs says what is wrong where a device does not take candidates in a language.
func runs(d kernelwright.Device, language kernelwright.Language) error {
	if language != "" && !language.RunsOn(d.Kind) {
		return bad("there candidates are in one of "+strings.Join(kernelwright.LanguageNames(kernelwright.LanguagesOn(d.Kind)), ", "), "language is %q, and the device is %s", language, d)
	}
	return nil
}

// record makes the run that the episode is.
func (e *Episodes) record(ctx context.Context, r Request, settings forge.Settings, ep *episode, t kernelwright.Task, d kernelwright.Device) (kernelwright.Run, error) {
	run := kernelwright.Run{
		TaskName: r.Name, Device: d.String(), Strategy: r.Strategy, Coder: ep.model, Judge: e.judgeOf(settings), Seed: r.Seed,
		MaxRounds: settings.Rounds, Settings: settings.String(), Status: kernelwright.RunRunning, StartedMS: e.o.Now().UnixMilli(),
	}
	run, err := e.o.Store.CreateRun(ctx, run, store.WithReference(t.Source), store.WithEpisode(store.Episode{Policy: ep.version, Rule: ep.rule}))
	if err != nil {
		return run, err
	}
	run.Task, run.DeviceKey = t.Fingerprint, d.Key
	return run, e.o.Store.Describe(ctx, run, t, d, nil)
}

// judgeOf is the name of who judges.
func (e *Episodes) judgeOf(s forge.Settings) string {
	if !s.JudgeMode.Asked() {
		return "none"
	}
	return e.o.Judge.Name()
}

// strategy is production's.
func (e *Episodes) strategy(r Request, settings forge.Settings, ep *episode, h Hardware) (forge.Strategy, error) {
	free := llm.Prices{ep.model: {}}
	p := e.o.parts(llm.WithJournal(r.policy(ep.broker, ep.model), e.o.Store, free, e.o.Now), settings, h.Device())
	p.Evaluator, p.Recorder, p.Journal, p.Observe = episodeEvaluator{e.queue, h}, e.o.Store, e.o.Store, ep.observe
	return forge.New(r.Strategy, p)
}

// policy is the model that a trainer plays.
func (r Request) policy(b *llm.Broker, name string) llm.Model {
	return b.ModelIn(name, llm.Window{Context: r.ContextLength, Reply: r.MaxTokens})
}

// parts are a strategy's, as far as its first question hangs on them.
func (o Options) parts(policy llm.Model, s forge.Settings, d kernelwright.Device) forge.Parts {
	return forge.Parts{
		Coder: coder.Model{LLM: policy, Prompts: o.Prompts, Skills: o.Skills, Form: o.Form}, Judge: o.Judge,
		Device: d, Settings: s, Model: policy, Skills: o.Skills, Prompts: o.Prompts, Now: o.Now,
	}
}

// hardware opens what measures.
func (e *Episodes) hardware(ctx context.Context, c Conditions) (Hardware, error) {
	select {
	case <-e.opening:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { e.opening <- struct{}{} }()
	return e.o.Hardware(ctx, c)
}

// play runs an episode to its end, and records that.
func (e *Episodes) play(ep *episode, s forge.Strategy, run kernelwright.Run, t kernelwright.Task) {
	out, err := s.Run(ep.ctx, run, t)
	ep.broker.Close()
	record, samples, answer := ep.outcome(out, err)
	ep.cancel(nil)
	run.Status, run.Stop, run.Reason, run.FinishedMS = kernelwright.RunFailed, out.Stop, record.Reason, e.o.Now().UnixMilli()
	if record.Status == store.EpisodeDone {
		run.Status, run.Reason = out.Status, out.Summary
	}
	// What has ended is recorded whatever was asked for meanwhile.
	if _, err := e.o.Store.EndEpisode(context.WithoutCancel(ep.ctx), record, run, samples); err != nil {
		e.o.Log.Error("the end of an episode cannot be recorded", "episode", ep.id, "error", err)
		record.Status = store.EpisodeDropped
		answer = Answer{ID: ep.id, Status: record.Status, Call: answer.Call, Context: answer.Context, Messages: answer.Messages, Done: true, Dropped: "its end cannot be recorded: " + err.Error()}
	}
	if record.Status == store.EpisodeDropped {
		e.o.Log.Warn("an episode is dropped", "episode", ep.id, "task", run.TaskName, "reason", answer.Dropped)
	}
	e.close(ep, record, answer)
}

// close counts an episode as ended, and says so.
func (e *Episodes) close(ep *episode, record store.Episode, answer Answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken--
	e.ended = append(e.ended, ep.id)
	e.stats.Unusable += ep.unusable
	switch record.Status {
	case store.EpisodeDone:
		e.stats.Done++
		e.stats.Rewards[*record.Reward]++
		if *record.Reward == kernelwright.RewardFasterThanEager && slices.Contains(answer.Missing, compile) {
			e.stats.Capped++
		}
	case store.EpisodeDropped:
		e.stats.Dropped++
		if record.Reason == tooNoisy {
			e.stats.Noisy++
		}
	case store.EpisodeExpired:
		e.stats.Expired++
	case store.EpisodeGivenUp:
		e.stats.GivenUp++
	case store.EpisodeOpen, store.EpisodeLost: // it is not; its server ends
	}
	ep.end(answer, e.o.Now())
}

// find returns an episode that is open, or ended a moment ago. Else the error is a
// *GoneError, store.ErrNotFound, or the store's.
func (e *Episodes) find(ctx context.Context, id int64) (*episode, error) {
	e.mu.Lock()
	ep := e.known[id]
	e.mu.Unlock()
	if ep != nil {
		return ep, nil
	}
	record, err := e.o.Store.Episode(ctx, id)
	if err != nil {
		return nil, err
	}
	return nil, &GoneError{record}
}

// Turn posts a completion, and returns what comes next, which it waits for. The
// same turn again waits for the same answer and does nothing twice. Errors are
// *BadError, *ConflictError, *GoneError, store.ErrNotFound, or the context's: then
// the turn goes on without who posted it.
func (e *Episodes) Turn(ctx context.Context, id int64, t Turn) (Answer, error) {
	ep, err := e.find(ctx, id)
	if err != nil {
		return Answer{}, err
	}
	ready, fresh, err := ep.post(t, e.o.Now())
	if err != nil {
		return Answer{}, err
	}
	if fresh {
		cut := t.finish() == "length" || t.finish() == "context"
		e.count(func(s *Stats) {
			s.Turns++
			if cut {
				s.CutOff++
			}
		})
	}
	select {
	case <-ready:
		return ep.state(), nil
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// Get says where an episode stands. Errors are store.ErrNotFound and the store's.
func (e *Episodes) Get(ctx context.Context, id int64) (Answer, error) {
	ep, err := e.find(ctx, id)
	var gone *GoneError
	if errors.As(err, &gone) {
		r := gone.Episode
		return Answer{ID: id, Status: r.Status, Context: contextAppend, Messages: []Message{}, Done: true, Reward: r.Reward, Dropped: r.Reason}, nil
	}
	if err != nil {
		return Answer{}, err
	}
	return ep.state(), nil
}

// GiveUp ends an episode that nobody wants any more, and waits for its end. One that
// has ended stays as it is.
func (e *Episodes) GiveUp(ctx context.Context, id int64) (Answer, error) {
	ep, err := e.find(ctx, id)
	if err != nil {
		return Answer{}, err
	}
	ep.cancel(errGivenUp)
	select {
	case <-ep.over:
		return ep.state(), nil
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// GiveUpSession ends all open episodes of a session, and waits for their end. It
// returns how many there were.
func (e *Episodes) GiveUpSession(ctx context.Context, session string) (int, error) {
	var open []*episode
	e.mu.Lock()
	for _, ep := range e.known {
		if ep.session == session && ep.ctx.Err() == nil {
			ep.cancel(errGivenUp)
			open = append(open, ep)
		}
	}
	e.mu.Unlock()
	for _, ep := range open {
		select {
		case <-ep.over:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return len(open), nil
}
