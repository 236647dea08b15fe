package kernelwright

import (
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/BurntSushi/toml"
)

//go:embed hwfeedback/harness/kwharness/base/constants.toml
var harnessConstants string

//go:embed trainer/rl/constants.toml
var trainingConstants string

// Shared is what Go and the harness's Python both go by. Its file says what each is.
var Shared = readConstants[HarnessConstants](harnessConstants)

// Training is what Go and the training package's Python both go by.
var Training = readConstants[TrainingConstants](trainingConstants)

// HarnessConstants are the keys of hwfeedback/harness/kwharness/base/constants.toml.
type HarnessConstants struct {
	ProtocolVersion   int      `toml:"protocol_version"`
	MaxFrameBytes     int      `toml:"max_frame_bytes"`
	MaxFDs            int      `toml:"max_fds"`
	SendTimeout       Seconds  `toml:"send_timeout_s"`
	NotFinite         float64  `toml:"not_finite"`
	MaxReferenceBytes int      `toml:"max_reference_bytes"`
	InspectSteps      float64  `toml:"inspect_steps"`
	TaskForm          string   `toml:"task_form"`
	Baselines         []string `toml:"baselines"`
	GPUBaselines      []string `toml:"gpu_baselines"` // besides those
	VagueRatio        float64  `toml:"vague_ratio"`
	QuietSpread       float64  `toml:"quiet_spread"`
	SpareCores        int      `toml:"spare_cores"`
	PeakCalls         int      `toml:"peak_calls"`
	SectorBytes       float64  `toml:"sector_bytes"`
	AllocatorEnv      string   `toml:"allocator_env"`
	ForAGPU           string   `toml:"for_a_gpu"`
	AsksAgain         string   `toml:"asks_again"`
	OtherShapes       string   `toml:"other_shapes"`
}

// AllBaselines are those of any device.
func (c HarnessConstants) AllBaselines() []string { return slices.Concat(c.Baselines, c.GPUBaselines) }

// TrainingConstants are the keys of trainer/rl/constants.toml.
type TrainingConstants struct {
	MetricsFile    string         `toml:"metrics_file"`
	PolicyTokenEnv string         `toml:"policy_token_env"`
	FirstPoll      Seconds        `toml:"first_poll_s"`
	LastPoll       Seconds        `toml:"last_poll_s"`
	WaiterGone     Seconds        `toml:"waiter_gone_s"`
	Yield          Seconds        `toml:"yield_s"`
	HolderBytes    int            `toml:"holder_bytes"`
	ExitCodes      map[string]int `toml:"exit_codes"` // by the status of a stage
}

// Seconds is a duration that the files have as a number.
type Seconds struct{ time.Duration }

// UnmarshalTOML takes a number of seconds.
func (s *Seconds) UnmarshalTOML(value any) error {
	n, ok := value.(float64)
	if !ok {
		return fmt.Errorf("%v is no number of seconds", value)
	}
	s.Duration = time.Duration(n * float64(time.Second))
	return nil
}

// readConstants reads a file whose keys are those of T, no more and no less. The files
// are part of the program: what is wrong with one is wrong in every run of it.
func readConstants[T any](text string) (c T) {
	meta, err := toml.Decode(text, &c)
	if unknown := meta.Undecoded(); err == nil && len(unknown) > 0 {
		err = fmt.Errorf("nothing reads %v", unknown)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if key := f.Tag.Get("toml"); err == nil && !meta.IsDefined(key) {
			err = fmt.Errorf("%s is missing", key)
		}
	}
	if err != nil {
		panic(fmt.Sprintf("constants that Go shares with Python: %v", err))
	}
	return c
}
