package forge

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/kernelwright/kernelwright"
)

// JudgeMode says what the Judge may speak about, and what the Coder sees
// instead.
type JudgeMode string

// The modes. In the last three no Judge is asked.
const (
	JudgeBoth         JudgeMode = "both"
	JudgeCorrection   JudgeMode = "correction"
	JudgeOptimisation JudgeMode = "optimisation"
	JudgeNone         JudgeMode = "none"  // the Coder sees its last candidate and verdict
	JudgeSelf         JudgeMode = "self"  // self-refine: the Coder sees the metrics, too, and is its own Judge
	JudgeScore        JudgeMode = "score" // refine on speedup: the Coder sees how far it came and its speedup
)

// Asked reports whether a Judge speaks at all.
func (m JudgeMode) Asked() bool { return m != JudgeNone && m != JudgeSelf && m != JudgeScore }

// Lessons reports whether a run may be told what earlier runs learned: one that is
// to go by its speedup alone is not.
func (m JudgeMode) Lessons() bool { return m != JudgeScore }

// Metrics says how many of a verdict's metrics a model is shown.
type Metrics string

// The choices.
const (
	SelectedMetrics Metrics = "selected"
	FullMetrics     Metrics = "full"
)

// Defaults of Settings. Ten rounds are CudaForge's; 200 turns and 128K tokens
// are CUDA Agent's (arXiv 2602.24286), as is the margin that react asks for. The
// rest is in config.toml with its reason.
const (
	DefaultRounds       = 10
	DefaultWallTime     = 10 * time.Minute
	DefaultHeadroomStop = 0.95
	DefaultPatience     = 4

	DefaultBeamWidth   = 2
	DefaultBeamSamples = 2

	DefaultReactTurns         = 200
	DefaultReactContextTokens = 128_000
)

// AnyCode is the policy under which anything may do the work of a kernel
// (evaluation.custom_code).
const AnyCode = "any"

// Settings is when a run stops, what its Judge may say, and how its strategy
// goes about it. They are part of the run's record (kernelwright.Run.Settings),
// as JSON.
type Settings struct {
	Rounds       int                   // at most; 0 means DefaultRounds
	WallTime     time.Duration         // sum over the rounds, certification not included; 0 means no limit
	HeadroomStop float64               // stop at this headroom; 0 means never
	Patience     int                   // rounds (of beam: generations) without progress, once a candidate was correct; 0 means no limit
	JudgeMode    JudgeMode             // empty means JudgeBoth
	Language     kernelwright.Language // empty leaves it to the Coder
	Metrics      Metrics               // empty means SelectedMetrics
	Beam         BeamSettings          // of beam alone
	React        ReactSettings         // of react alone
	// Uncertified: nothing is certified at the end, and what the Coder leaves gets a
	// verdict instead (Outcome.Left): of react, its folder. Training goes by that.
	Uncertified bool
	// CustomCode is what policy asked when the run began: a kernel that it let pass is
	// none of a run under another policy. Empty where custom code is required.
	CustomCode string
}

// BeamSettings are the beam's own.
type BeamSettings struct {
	Width   int `json:"width,omitzero"`   // candidates that are gone on from; 0 means DefaultBeamWidth
	Samples int `json:"samples,omitzero"` // new candidates of each in a generation; 0 means DefaultBeamSamples
}

// ReactSettings are react's own.
type ReactSettings struct {
	Turns         int `json:"turns,omitzero"`          // answers of the model; 0 means DefaultReactTurns
	ContextTokens int `json:"context_tokens,omitzero"` // of the talk; beyond it is compacted; 0 means DefaultReactContextTokens
	// TextTools: the model calls tools in the text of its answers, for one that
	// cannot be given tools.
	TextTools bool `json:"text_tools,omitzero"`
}

// DefaultSettings are what a run gets when nobody says.
func DefaultSettings() Settings {
	return Settings{Rounds: DefaultRounds, WallTime: DefaultWallTime, HeadroomStop: DefaultHeadroomStop, Patience: DefaultPatience, JudgeMode: JudgeBoth}
}

// For returns the settings without those of other strategies, so that what a run
// does not use is not in its record.
func (s Settings) For(strategy string) Settings {
	if strategy != BeamStrategy {
		s.Beam = BeamSettings{}
	}
	if strategy != ReactStrategy {
		s.React = ReactSettings{}
	}
	if strategy == ExhaustiveStrategy {
		s.WallTime, s.HeadroomStop, s.Patience, s.JudgeMode, s.Metrics = 0, 0, 0, JudgeNone, ""
	}
	if s.Metrics == SelectedMetrics {
		s.Metrics = "" // as before there was a choice
	}
	return s
}

// settingsJSON is the form in which settings are recorded.
type settingsJSON struct {
	Rounds       int                   `json:"rounds"`
	WallTimeMS   int64                 `json:"wall_time_ms,omitempty"` // 0: no limit
	HeadroomStop float64               `json:"headroom_stop"`
	Patience     int                   `json:"patience"`
	JudgeMode    JudgeMode             `json:"judge"`
	Language     kernelwright.Language `json:"language,omitempty"`
	Metrics      Metrics               `json:"metrics,omitempty"`
	Beam         BeamSettings          `json:"beam,omitzero"`
	React        ReactSettings         `json:"react,omitzero"`
	Uncertified  bool                  `json:"uncertified,omitempty"`
	CustomCode   string                `json:"custom_code,omitempty"`
}

// String returns the settings as a run records them.
func (s Settings) String() string {
	b, err := json.Marshal(settingsJSON{s.Rounds, s.WallTime.Milliseconds(), s.HeadroomStop, s.Patience, s.JudgeMode, s.Language, s.Metrics, s.Beam, s.React, s.Uncertified, s.CustomCode})
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
	s := Settings{j.Rounds, time.Duration(j.WallTimeMS) * time.Millisecond, j.HeadroomStop, j.Patience, j.JudgeMode, j.Language, j.Metrics, j.Beam, j.React, j.Uncertified, j.CustomCode}
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
	case s.Beam.Width < 0 || s.Beam.Width > kernelwright.MaxBeam:
		return fmt.Errorf("beam width is %d: it must be from 1 to %d", s.Beam.Width, kernelwright.MaxBeam)
	case s.Beam.Samples < 0 || s.Beam.Samples > kernelwright.MaxBeam:
		return fmt.Errorf("beam samples is %d: it must be from 1 to %d", s.Beam.Samples, kernelwright.MaxBeam)
	case s.React.Turns < 0 || s.React.Turns > kernelwright.MaxReactTurns:
		return fmt.Errorf("react turns is %d: it must be from 1 to %d", s.React.Turns, kernelwright.MaxReactTurns)
	case s.React.ContextTokens != 0 && (s.React.ContextTokens < kernelwright.LeastReactContext || s.React.ContextTokens > kernelwright.MaxReactContext):
		return fmt.Errorf("react context is %d tokens: it must be from %d to %d", s.React.ContextTokens, kernelwright.LeastReactContext, kernelwright.MaxReactContext)
	}
	if s.CustomCode != "" && s.CustomCode != AnyCode {
		return fmt.Errorf("custom code is %q: it must be empty or %s", s.CustomCode, AnyCode)
	}
	switch s.Metrics {
	case "", SelectedMetrics, FullMetrics:
	default:
		return fmt.Errorf("metrics is %q: it must be selected or full", s.Metrics)
	}
	switch s.JudgeMode {
	case "", JudgeBoth, JudgeCorrection, JudgeOptimisation, JudgeNone, JudgeSelf, JudgeScore:
		return nil
	}
	return fmt.Errorf("judge mode is %q: it must be both, correction, optimisation, none, self or score", s.JudgeMode)
}

func (s Settings) withDefaults() Settings {
	or := func(n *int, otherwise int) {
		if *n == 0 {
			*n = otherwise
		}
	}
	or(&s.Rounds, DefaultRounds)
	or(&s.Beam.Width, DefaultBeamWidth)
	or(&s.Beam.Samples, DefaultBeamSamples)
	or(&s.React.Turns, DefaultReactTurns)
	or(&s.React.ContextTokens, DefaultReactContextTokens)
	if s.JudgeMode == "" {
		s.JudgeMode = JudgeBoth
	}
	return s
}
