package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/trainer/episodes"
)

type trainServeCmd struct {
	Listen  string        `help:"Where to listen; any but a loopback address needs a token." placeholder:"HOST:PORT" default:"127.0.0.1:7790"`
	MaxOpen int           `help:"So many episodes may be open at once." placeholder:"N" default:"1024"`
	Expiry  time.Duration `help:"An episode that nobody continues for so long is given up." placeholder:"TIME" default:"30m"`
	deviceFlags
}

// Help is shown below the flags.
func (trainServeCmd) Help() string {
	return "A trainer begins episodes, says what its policy answers, and gets rewards: docs/episodes.md has the protocol and a client. The first line of standard output is the address, with --json an object. Where " + config.TrainTokenEnv + " is set, clients have to give that token. What takes no strict inputs for granted is evaluated so unless an episode says otherwise. An interrupt ends it; what is open then is lost, what is done is in the history."
}

// The least that a token has, in bytes, and how long requests in progress have at
// the end.
const (
	leastToken   = 16
	trainingStop = 5 * time.Second
)

// Run serves until it is told to stop, which is how it ends.
func (c trainServeCmd) Run(a *app) error {
	err := c.serve(a)
	if err != nil && a.ctx.Err() != nil && ExitCode(err) == ExitInterrupted {
		return nil
	}
	return err
}

func (c trainServeCmd) serve(a *app) (err error) {
	token := strings.TrimSpace(a.getenv(config.TrainTokenEnv))
	if err := c.check(token); err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return &Error{Code: ExitUsage, Text: "cannot listen on " + c.Listen, Err: err, Hint: "name another address with --listen; port 0 is any free one"}
	}
	defer func() { _ = l.Close() }() // the server has, where it came to that
	r, err := a.open(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.config.Sandbox != "strict" {
		return usage(fmt.Sprintf("the sandbox is %s, and what a policy writes runs in the strict one alone", r.config.Sandbox), "give --sandbox strict")
	}
	t := &trained{room: r, open: map[episodes.Conditions]episodes.Hardware{}}
	defer func() { err = errors.Join(err, t.close()) }()
	if _, err := t.hardware(a.ctx, episodes.Conditions{StrictInputs: true}); err != nil {
		return interruption(a.ctx, err)
	}
	o, err := t.options()
	if err != nil {
		return err
	}
	o.MaxOpen, o.Expiry = c.MaxOpen, c.Expiry
	e, err := episodes.New(a.ctx, o)
	if err != nil {
		return dataError(r.folder, err)
	}
	defer e.Close()
	if err := c.say(a, l.Addr()); err != nil {
		return err
	}
	return serveUntil(a.ctx, web.NewServer(e.Handler(token), r.log), web.LimitConnections(l, c.MaxOpen+episodes.SpareConnections), e)
}

// check says what is wrong with the flags.
func (c trainServeCmd) check(token string) error {
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil:
		return usage(fmt.Sprintf("--listen is %q", c.Listen), "it takes HOST:PORT, such as 127.0.0.1:7790")
	case token != "" && len(token) < leastToken:
		return usage(fmt.Sprintf("the token in %s has less than %d characters", config.TrainTokenEnv, leastToken), "make one with `openssl rand -hex 16`")
	case token == "" && !web.Loopback(host):
		return usage(fmt.Sprintf("%s can be reached from elsewhere, and there is no token", c.Listen), "put one into the environment variable "+config.TrainTokenEnv+", or listen on 127.0.0.1")
	case c.MaxOpen < 1:
		return usage(fmt.Sprintf("--max-open is %d", c.MaxOpen), "it takes a number from 1")
	case c.Expiry <= 0:
		return usage(fmt.Sprintf("--expiry is %v", c.Expiry), "it takes a time above zero, such as 30m")
	}
	return nil
}

// say prints the address.
func (c trainServeCmd) say(a *app, at net.Addr) error {
	if a.json {
		return a.printLine(map[string]string{"url": "http://" + at.String(), "address": at.String()})
	}
	return a.printf("http://%s\n", at)
}

// serveUntil serves until ctx is done, and lets what is under way end. Requests that
// wait for a verdict are answered that the episode is lost.
func serveUntil(ctx context.Context, s *http.Server, l net.Listener, e *episodes.Episodes) error {
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	e.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), trainingStop)
	defer cancel()
	err := s.Shutdown(ctx)
	if err != nil { // somebody does not read their answer
		err = s.Close()
	}
	if last := <-ended; !errors.Is(last, http.ErrServerClosed) {
		err = errors.Join(err, last)
	}
	return err
}

// trained is what episodes need of a room.
type trained struct {
	room   *room
	opened []*hwfeedback.Evaluator
	open   map[episodes.Conditions]episodes.Hardware
}

// training is the hardware for conditions. Its pointer tells it from others.
type training struct {
	bounded
	profiling hwfeedback.Profiling
}

// Known implements episodes.Hardware.
func (t *training) Known(ctx context.Context, task kernelwright.Task, c kernelwright.Candidate, l kernelwright.Level) (kernelwright.Verdict, bool) {
	return t.profiling.Known(ctx, task, c, l)
}

// hardware opens the first device for conditions, once for each.
func (t *trained) hardware(ctx context.Context, c episodes.Conditions) (episodes.Hardware, error) {
	if known := t.open[c]; known != nil {
		return known, nil
	}
	other := c
	other.Profile = !c.Profile
	e := t.evaluator(other)
	if e == nil {
		log := t.room.log
		o := t.room.options(func(stage, note string) { log.Debug(stage, "note", note) })
		o.StrictInputs, o.Milestone = c.StrictInputs, episodes.Margin
		var err error
		if e, err = t.room.evaluator(ctx, o); err != nil {
			return nil, err
		}
		t.opened = append(t.opened, e)
	}
	profiling := hwfeedback.Profiling{Evaluator: e}
	if c.Profile {
		profiling.Profile = t.room.profile()
	}
	limits := t.room.config.Evaluation
	h := &training{bounded{profiling, limits.Timeout.Std(), limits.InspectTimeout.Std()}, profiling}
	t.open[c] = h
	return h, nil
}

// evaluator is the one that was opened for conditions, nil for none.
func (t *trained) evaluator(c episodes.Conditions) *hwfeedback.Evaluator {
	h, ok := t.open[c].(*training)
	if !ok {
		return nil
	}
	return h.profiling.Evaluator
}

func (t *trained) close() error { return closeAll(t.opened) }

// options are the episodes' by the settings.
func (t *trained) options() (episodes.Options, error) {
	r := t.room
	cast := r.casting()
	cast.coder = llm.TrainingProvider + ":" + episodes.DefaultPolicy // prompts and skills are a model's
	by, err := cast.agents(func(name string) (llm.Model, error) {
		if name == cast.coder {
			return llm.NewBroker(0).Model(name), nil // each episode has its own
		}
		return r.models.open(name)
	})
	if err != nil {
		return episodes.Options{}, err
	}
	c := r.config
	s := r.strategy()
	s.Beam = forge.BeamSettings{Width: c.Beam.Width, Samples: c.Beam.Samples}
	s.React = forge.ReactSettings{Turns: c.React.Turns, ContextTokens: c.React.ContextTokens}
	return episodes.Options{
		Store: r.store, Hardware: t.hardware, Judge: by.judge, Prompts: by.prompts, Skills: by.skills, Form: coder.Form(cast.form), Settings: s, Log: r.log,
		AtOnce: c.Evaluation.AtOnce,
	}, nil
}
