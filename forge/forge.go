// Package forge turns one task into one best kernel: a strategy asks a Coder
// for candidates, an evaluator for verdicts and a Judge for feedback, records
// each round, and has the best candidate certified at the end. It declares
// what it needs of each of them.
package forge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kernelwright/kernelwright"
)

// Coder writes candidates. An implementation is safe for concurrent use, keeps
// nothing between calls, and changes nothing in its input.
type Coder interface {
	// Name says who it is in records: "builtin", "provider:model".
	Name() string
	// Propose returns the candidate for the round that the input names. The
	// same input, seed included, gives the same candidate where the
	// implementation is deterministic at all. A *kernelwright.DeclinedError
	// says that it cannot improve this task (or no further); it ends the run
	// and is no failure. Any other error is infrastructure: the run can be
	// resumed. When ctx is done, Propose returns its error promptly.
	Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error)
}

// Judge reads verdicts. An implementation is safe for concurrent use, keeps
// nothing between calls, and changes nothing in its input.
type Judge interface {
	// Name says who it is in records: "rules", "provider:model".
	Name() string
	// Judge returns one valid feedback (Feedback.Validate) of the kind that
	// the input wants, or of kind Stop. An error is infrastructure: the run
	// can be resumed. When ctx is done, Judge returns its error promptly.
	Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error)
}

// Evaluator says what the hardware thinks of a candidate. Whatever is wrong
// with the candidate is a verdict; an error is infrastructure, and says
// nothing about the candidate. Asking twice may answer from a cache.
type Evaluator interface {
	Evaluate(ctx context.Context, task kernelwright.Task, candidate kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error)
}

// Recorder remembers rounds. What it has acknowledged survives a crash.
type Recorder interface {
	// Rounds returns a run's rounds in order, certificates included.
	Rounds(ctx context.Context, runID int64) ([]kernelwright.Round, error)
	// AppendRound records the round, whole or not at all. The same round
	// again is fine; another one under the same index is an error.
	AppendRound(ctx context.Context, r kernelwright.Round) error
	// SetCertificate records the verdict at level certify on a round's
	// candidate, whether or not it certifies it.
	SetCertificate(ctx context.Context, runID int64, index int, v kernelwright.Verdict) error
}

// JudgeMode says what the Judge may speak about.
type JudgeMode string

// The modes. Without a Judge the Coder sees its last candidate and verdict.
const (
	JudgeBoth         JudgeMode = "both"
	JudgeCorrection   JudgeMode = "correction"
	JudgeOptimisation JudgeMode = "optimisation"
	JudgeNone         JudgeMode = "none"
)

// Defaults of Settings. Ten rounds are CudaForge's; the rest is in config.toml
// with its reason.
const (
	DefaultRounds       = 10
	DefaultWallTime     = 10 * time.Minute
	DefaultHeadroomStop = 0.95
	DefaultPatience     = 4
)

// Settings is when a run stops and what its Judge may say. They are part of
// the run's record (kernelwright.Run.Settings), as JSON.
type Settings struct {
	Rounds       int                   // at most; 0 means DefaultRounds
	WallTime     time.Duration         // sum over the rounds, certification not included; 0 means no limit
	HeadroomStop float64               // stop at this headroom; 0 means never
	Patience     int                   // rounds without progress, once a candidate was correct; 0 means no limit
	JudgeMode    JudgeMode             // empty means JudgeBoth
	Language     kernelwright.Language // empty leaves it to the Coder
}

// DefaultSettings are what a run gets when nobody says.
func DefaultSettings() Settings {
	return Settings{Rounds: DefaultRounds, WallTime: DefaultWallTime, HeadroomStop: DefaultHeadroomStop, Patience: DefaultPatience, JudgeMode: JudgeBoth}
}

// settingsJSON is the form in which settings are recorded.
type settingsJSON struct {
	Rounds       int                   `json:"rounds"`
	WallTimeMS   int64                 `json:"wall_time_ms"`
	HeadroomStop float64               `json:"headroom_stop"`
	Patience     int                   `json:"patience"`
	JudgeMode    JudgeMode             `json:"judge"`
	Language     kernelwright.Language `json:"language,omitempty"`
}

// String returns the settings as a run records them.
func (s Settings) String() string {
	b, err := json.Marshal(settingsJSON{s.Rounds, s.WallTime.Milliseconds(), s.HeadroomStop, s.Patience, s.JudgeMode, s.Language})
	if err != nil { // a headroom of NaN: Validate refuses it
		return "{}"
	}
	return string(b)
}

// ParseSettings reads what String wrote. An empty text gives the defaults.
func ParseSettings(text string) (Settings, error) {
	if text == "" {
		return DefaultSettings(), nil
	}
	var j settingsJSON
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return Settings{}, fmt.Errorf("settings of the run: %w", err)
	}
	if j.WallTimeMS > math.MaxInt64/int64(time.Millisecond) {
		return Settings{}, fmt.Errorf("settings of the run: a wall time of %d ms is more than can be counted", j.WallTimeMS)
	}
	s := Settings{j.Rounds, time.Duration(j.WallTimeMS) * time.Millisecond, j.HeadroomStop, j.Patience, j.JudgeMode, j.Language}
	return s, s.Validate()
}

// Validate reports the first setting that makes no sense.
func (s Settings) Validate() error {
	switch {
	case s.Rounds < 0:
		return fmt.Errorf("rounds is %d: it cannot be negative", s.Rounds)
	case s.WallTime < 0:
		return fmt.Errorf("wall time is %v: it cannot be negative", s.WallTime)
	case s.Patience < 0:
		return fmt.Errorf("patience is %d: it cannot be negative", s.Patience)
	case !(s.HeadroomStop >= 0 && s.HeadroomStop <= 1):
		return fmt.Errorf("headroom stop is %v: it must be from 0 to 1", s.HeadroomStop)
	}
	switch s.JudgeMode {
	case "", JudgeBoth, JudgeCorrection, JudgeOptimisation, JudgeNone:
		return nil
	}
	return fmt.Errorf("judge mode is %q: it must be both, correction, optimisation or none", s.JudgeMode)
}

func (s Settings) withDefaults() Settings {
	if s.Rounds == 0 {
		s.Rounds = DefaultRounds
	}
	if s.JudgeMode == "" {
		s.JudgeMode = JudgeBoth
	}
	return s
}

// EventKind says what just happened in a run.
type EventKind string

// The events, in the order in which a round has them. Proposed and Feedback
// may be missing.
const (
	RoundStarted EventKind = "round_started"
	Proposed     EventKind = "proposed"
	Verdict      EventKind = "verdict"
	Feedback     EventKind = "feedback"
	RoundDone    EventKind = "round_done" // recorded
	Certifying   EventKind = "certifying"
	Certified    EventKind = "certified" // or not: its verdict says
	Finished     EventKind = "finished"
)

// Event is for live progress. What it points to must not be changed.
type Event struct {
	Kind      EventKind
	Run       kernelwright.Run
	Index     int // of the round
	Rounds    int // at most
	Candidate *kernelwright.Candidate
	Verdict   *kernelwright.Verdict
	Feedback  *kernelwright.Feedback
	Best      *kernelwright.Round // the fastest correct one so far
	Duplicate bool                // Verdict: it is an earlier round's, for the same source
	Outcome   *Outcome            // Finished
}

// Outcome is how a run ended.
type Outcome struct {
	Status  kernelwright.RunStatus // done or declined
	Stop    kernelwright.StopReason
	Best    *kernelwright.Round // certified; nil where nothing was
	Rounds  int
	Summary string // one sentence
}

// ErrHalted is what a run returns that was asked to stop after the round in
// progress. It goes on from there when it is run again.
var ErrHalted = errors.New("halted after the round in progress")
