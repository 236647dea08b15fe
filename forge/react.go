package forge

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// React is CUDA Agent's loop (arXiv 2602.24286): one model acts with tools in a
// work folder until it finishes or a limit is reached. A call of verify makes a
// round; the other tools only work in the folder, which is in memory. The model
// remembers its talk, up to a number of tokens, beyond which what is old is
// shortened.
//
// A run that was interrupted is begun anew, with the answers that its model gave
// before (so its calls have to be journaled) and the rounds that were recorded: it
// comes to where it was without asking or measuring again.
type React struct{ Parts }

// Name returns "react".
func (*React) Name() string { return ReactStrategy }

// DivergedError says that a run of react cannot go on: the answers of its model
// do not lead to the rounds that were recorded. They were not kept, or what the
// model is told has changed since.
type DivergedError struct{ Round int }

func (e *DivergedError) Error() string {
	return fmt.Sprintf("what the model answers does not lead to round %d as it was recorded, so the run cannot go on", e.Round)
}

// Run is Strategy's. The error may be a *DivergedError, which another call does
// not mend.
func (r *React) Run(ctx context.Context, run kernelwright.Run, task kernelwright.Task) (Outcome, error) {
	return r.bring(ctx, run, task, "round", func(ctx context.Context, l *loop) error {
		if l.Model == nil {
			return errors.New("react: there is no model to act")
		}
		a, err := newActor(l)
		if err != nil {
			return err
		}
		end := a.act(ctx)
		if _, other := over(end); other == nil && l.settings.Uncertified {
			if err := a.leave(ctx); err != nil {
				return err
			}
		}
		return a.whole(end)
	})
}

// act asks the model turn by turn, and returns why it goes no further.
func (a *actor) act(ctx context.Context) error {
	for a.turns = 0; a.turns < a.settings.React.Turns; a.turns++ {
		if err := a.goOn(ctx); err != nil {
			return err
		}
		if err := a.turn(ctx); err != nil {
			return fmt.Errorf("turn %d: %w", a.turns, err)
		}
	}
	return &ended{stop: kernelwright.StopTurns}
}

// leave has a verdict on the folder as the model leaves it: it may hold something
// else than was verified last, or no candidate.
func (a *actor) leave(ctx context.Context) error {
	c, complaint := a.candidate()
	if a.empty = complaint != ""; a.empty {
		return nil
	}
	if n := len(a.rounds); n > 0 && sameCandidate(a.rounds[n-1], c) == nil {
		return nil
	}
	_, _, err := a.verify(ctx, false)
	return err
}

// Limits of what a model may do in one answer, and how many answers in a row may
// do nothing.
const (
	maxCalls = 16
	maxIdle  = 8
)

// coderAgent and compileAgent name whose calls are recorded (llm.Key.Agent).
const (
	coderAgent   = "coder"
	compileAgent = "compile"
)

// actor is a model at work in its folder.
type actor struct {
	*loop
	recorded []kernelwright.Round // of the run; those that were reached again are in loop.rounds
	folder   workFiles
	talk     talk
	tools    []tool
	words    bool       // it calls tools in its text
	compact  bool       // the talk begins in few words
	brief    bool       // it has to, whatever the context's length says
	window   llm.Window // of the last answer
	author   string     // of the last answer

	turns    int
	asked    int  // calls of the model since the last round
	compiled int  // calls of the compiler since the last round
	started  bool // the round in progress was told of
	refused  int  // the answer, from 1, in which finish was refused; 0 for none
	idle     int  // answers in a row that called no tool
}

func newActor(l *loop) (*actor, error) {
	a := &actor{loop: l, recorded: l.rounds, words: l.settings.React.TextTools}
	l.rounds, l.sources = nil, sources{}
	a.folder = newWorkFiles(l.task)
	a.tools = a.allTools()
	opening, err := a.opening(false)
	if err != nil {
		return nil, err
	}
	a.talk = newTalk(opening, l.settings.React.ContextTokens)
	return a, nil
}

// whole passes on the end of the talk, if it comes where the record ends.
func (a *actor) whole(err error) error {
	if _, other := over(err); other == nil && len(a.rounds) < len(a.recorded) {
		return &DivergedError{len(a.rounds)}
	}
	return err
}

// turn asks the model once, and does what it wants done.
func (a *actor) turn(ctx context.Context) error {
	if !a.started && len(a.rounds) == len(a.recorded) {
		a.observe(Event{Kind: RoundStarted, Index: len(a.rounds)})
		a.started = true
	}
	reply, err := a.generate(ctx)
	if err != nil {
		return err
	}
	a.author = llm.Author(a.Model.Name(), reply)
	calls, complaint := a.calls(reply)
	t := turn{reply: reply.Message()}
	if !slices.ContainsFunc(calls, readable) {
		a.observe(Event{Kind: Idle, Index: len(a.rounds)})
	}
	if complaint != "" {
		if a.idle++; a.idle >= maxIdle {
			return &ended{kernelwright.StopDeclined, fmt.Sprintf("it called no tool in %d answers in a row", maxIdle)}
		}
		t.results = []llm.Message{{Role: llm.User, Text: complaint}}
		t.notes = []string{complaint}
		if cutOffReply(reply.Stop) && len(t.reply.Text) > maxOldText { // all of it would be sent with every request from now on
			t.shortenCalls()
			a.talk.goesOn = false
		}
		a.talk.add(t)
		return nil
	}
	a.idle = 0
	undone := len(calls) - maxCalls
	if undone > 0 { // what there are thousands of would fill every request from now on
		calls = calls[:maxCalls]
	}
	results := make([]result, len(calls))
	for i, c := range calls {
		before := len(a.rounds)
		if results[i], err = a.do(ctx, c); err != nil {
			return err
		}
		if len(a.rounds) > before {
			if stop, why := a.stops(a.rounds); stop != "" {
				return &ended{stop, why}
			}
		}
	}
	if undone > 0 {
		last := &results[len(results)-1].text
		*last = fmt.Sprintf("%s\n(%s of your answer not done: it may call %d tools at most)", *last, plural(undone, "further call"), maxCalls)
		t.reply.ToolCalls = slices.Clip(t.reply.ToolCalls[:min(len(t.reply.ToolCalls), maxCalls)])
		a.talk.goesOn = false
	}
	if cutOffReply(reply.Stop) {
		last := &results[len(results)-1].text
		*last = fmt.Sprintf("%s\n(%s in its last call, it may be: write a long file in parts, with write and then edit.)", *last, cutShort(reply.Stop))
	}
	a.answers(&t, calls, results)
	a.talk.add(t)
	return nil
}

// leastReply is what an answer takes at least, in tokens: a call that writes a short
// file.
const leastReply = 512

// generate asks the model how to go on, in a request that its context holds. One that
// is not shown its tools calls them in words from then on.
func (a *actor) generate(ctx context.Context) (reply llm.Reply, err error) {
	key := llm.Key{Run: a.run.ID, Round: len(a.rounds), Agent: coderAgent, Seq: a.asked}
	a.asked++
	profile := prompts.ProfileAuto
	if a.Prompts != nil {
		profile = a.Prompts.Profile
	}
	short := func(w llm.Window) bool { return profile.Compact(a.Model.Name(), w.Context) }
	talk, words, compact, brief := a.talk.clone(), a.words, a.compact, a.brief
	a.outside(func() {
		reply, err = llm.Ask(ctx, a.Model, key, short, func(w llm.Window) (llm.Request, []string, error) {
			// Each try begins with the talk as it was: of a call that was answered the record
			// has the last to be made again, and not what was tried before.
			a.talk, a.words, a.compact, a.brief = talk.clone(), words, compact, brief
			return a.request(key, w, profile != prompts.ProfileFull)
		})
	})
	if err != nil {
		return reply, fmt.Errorf("model: %w", err)
	}
	a.talk.sent()
	return reply, nil
}

// request is the talk for a call, as much of it as the window holds, and what is left
// out. What is shortened once stays so.
func (a *actor) request(key llm.Key, w llm.Window, mayShorten bool) (r llm.Request, left []string, err error) {
	a.window = w
	if w.NoTools && !a.words {
		if err := a.useWords(w.Compact); err != nil {
			return r, nil, err
		}
	}
	if err := a.speak(w.Compact || a.brief && mayShorten); err != nil {
		return r, nil, err
	}
	seed := callSeed(a.run.Seed, key)
	r = llm.Request{Task: a.task.Name, Seed: &seed}
	r.Tools = a.declared()
	write := func(room int, last bool) bool {
		r.Messages, r.Append = a.talk.messages(room, last, a.soFar)
		return w.Holds(r, leastReply)
	}
	room := a.talk.room()
	if most, known := w.Room(leastReply); known {
		room = min(room, most)
	}
	fits := write(room, w.Context == 0)
	// Tools take room, too, and each message some.
	for less := room; !fits && less > 0; fits = write(less, false) {
		less -= max(less/16, 64)
	}
	if !fits && mayShorten && !a.compact {
		a.brief = true
		if err := a.speak(true); err != nil {
			return r, nil, err
		}
		a.talk.leave(leftOurWords)
		r.Tools = a.declared()
		fits = write(room, false)
	}
	for less := room; !fits && less > 0; fits = write(less, true) {
		less -= max(less/16, 64)
	}
	if !fits && !w.HoldsJust(r, leastReply) {
		return r, nil, llm.ErrNoFit
	}
	return r, slices.Clone(a.talk.left), nil
}

// declared are the tools that the model is given.
func (a *actor) declared() []llm.Tool {
	if a.words {
		return nil
	}
	return declared(a.told(a.compact), a.compact)
}

// speak makes the talk begin in few words or in all.
func (a *actor) speak(compact bool) error {
	if compact == a.compact {
		return nil
	}
	head, err := a.opening(compact)
	if err != nil {
		return err
	}
	a.compact = compact
	a.talk.begin(head)
	return nil
}

// useWords begins the talk anew, for a model that calls tools in its text.
func (a *actor) useWords(compact bool) error {
	a.words, a.compact, a.brief = true, compact, false
	head, err := a.opening(compact)
	if err != nil {
		return err
	}
	a.talk.restart(head, a.soFar)
	return nil
}

// callSeed is another for each call of a run. It fits 31 bits, which is what
// providers take.
func callSeed(seed int64, k llm.Key) int64 {
	h := fnv.New32a()
	fmt.Fprint(h, seed, k.Round, k.Seq) // a hash takes everything
	return int64(h.Sum32() >> 1)
}

// verify makes a round of what is in the folder. Where there is no candidate in
// it, complaint says why. read says that somebody will read the Judge's feedback.
func (a *actor) verify(ctx context.Context, read bool) (round *kernelwright.Round, complaint string, err error) {
	c, complaint := a.candidate()
	if complaint != "" {
		return nil, complaint, nil
	}
	if at := len(a.rounds); at < len(a.recorded) {
		if sameCandidate(a.recorded[at], c) != nil {
			return nil, "", &DivergedError{at}
		}
		a.rounds = append(a.rounds, a.recorded[at])
		a.began = a.now()
	} else {
		if !a.started { // it is one of several rounds of an answer
			a.observe(Event{Kind: RoundStarted, Index: at})
		}
		ans := answer{candidate: c}
		round := a.open(ans, at-1)
		if !a.known(round, ans) {
			if err := a.evaluate(ctx, round); err != nil {
				return nil, "", err
			}
		}
		if err := a.close(ctx, round, ans, read); err != nil {
			return nil, "", err
		}
	}
	a.asked, a.compiled, a.started = 0, 0, false
	return &a.rounds[len(a.rounds)-1], "", nil
}

// build says what the compiler makes of a candidate, or recalls what it said.
// known is false where nobody can build without measuring.
func (a *actor) build(ctx context.Context, c kernelwright.Candidate) (text string, known bool, err error) {
	request := llm.Request{
		Key:      llm.Key{Run: a.run.ID, Round: len(a.rounds), Agent: compileAgent, Seq: a.compiled},
		Messages: []llm.Message{{Role: llm.User, Text: string(c.Language) + "\n" + c.Source}},
	}
	a.compiled++
	keep := a.Journal != nil && a.run.ID != 0
	if keep {
		recorded, ok, err := a.Journal.Recall(ctx, request.Key, request.Digest(compileAgent))
		if err != nil || ok {
			return recorded.Reply.Text, ok, err
		}
	}
	builder, ok := a.Evaluator.(Builder)
	if !ok {
		return "", false, nil
	}
	began := a.now()
	var report kernelwright.BuildReport
	var failure string
	a.outside(func() { report, failure, err = builder.BuildOnly(ctx, c) })
	if err != nil {
		return "", false, fmt.Errorf("build: %w", err)
	}
	text = buildText(report, failure)
	if keep {
		free := 0.0
		err = a.Journal.Append(ctx, llm.Record{
			Key: request.Key, Model: compileAgent, Request: request, Reply: llm.Reply{Text: text, Stop: llm.StopEnd}, CostUSD: &free,
			BeganMS: began.UnixMilli(), TookMS: a.now().Sub(began).Milliseconds(),
		})
	}
	return text, true, err
}
