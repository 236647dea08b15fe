package hwfeedback

import (
	"encoding/json"

	"github.com/kernelwright/kernelwright"
)

// What Go asks of the referee, as it is on the wire; envelope adds the rest.

type parseBody struct {
	Source  string `json:"source"`
	What    string `json:"what"` // "reference" or "candidate"
	Sandbox string `json:"sandbox"`
}

type inspectBody struct {
	Name     string  `json:"name"`
	Source   string  `json:"source"`
	TimeoutS float64 `json:"timeout_s"`
	workplace
}

// workplace is where and how a worker of the referee's runs.
type workplace struct {
	Device   string `json:"device"`
	Threads  int    `json:"threads"`
	Sandbox  string `json:"sandbox"`
	CacheDir string `json:"cache_dir"`
	GPU      *place `json:"gpu,omitempty"` // none: the CPU
}

// place names one GPU to the harness.
type place struct {
	Minor int    `json:"minor"` // of its device node
	UUID  string `json:"uuid"`
}

type taskBody struct {
	Fingerprint string                  `json:"fingerprint"`
	Source      string                  `json:"source"`
	Name        string                  `json:"name"`
	LeastBytes  int64                   `json:"least_bytes"`
	NeededBytes int64                   `json:"needed_bytes"`
	Operations  int64                   `json:"operations"`
	Operators   []string                `json:"operators"`
	Flags       []kernelwright.TaskFlag `json:"flags"` // a list, not null
	// The types decide which units can compute it, and what a state takes.
	Inputs     []kernelwright.TensorSpec `json:"inputs"`
	Outputs    []kernelwright.TensorSpec `json:"outputs"`
	Parameters []kernelwright.TensorSpec `json:"parameters"`
}

// toTaskBody is a task as a request has it: lists where it has none, not null.
func toTaskBody(t kernelwright.Task) taskBody {
	return taskBody{
		Fingerprint: t.Fingerprint,
		Source:      t.Source,
		Name:        t.Name,
		LeastBytes:  t.LeastBytes,
		NeededBytes: t.NeededBytes,
		Operations:  t.Operations,
		Operators:   append([]string{}, t.Operators...),
		Flags:       append([]kernelwright.TaskFlag{}, t.Flags...),
		Inputs:      append([]kernelwright.TensorSpec{}, t.Inputs...),
		Outputs:     append([]kernelwright.TensorSpec{}, t.Outputs...),
		Parameters:  append([]kernelwright.TensorSpec{}, t.Parameters...),
	}
}

type candidateBody struct {
	Source   string                `json:"source"`
	Language kernelwright.Language `json:"language"`
}

// buildBody asks for a candidate to be built for architectures, of which the empty one
// is the CPU.
type buildBody struct {
	Candidate candidateBody `json:"candidate"`
	Archs     []string      `json:"archs"`
	Otherwise []string      `json:"otherwise"` // of what turns out to be for a GPU
	Sandbox   string        `json:"sandbox"`
	CacheDir  string        `json:"cache_dir"`
}

type exportBody struct {
	Candidate candidateBody `json:"candidate"`
	Sandbox   string        `json:"sandbox"`
}

// buildAheadBody asks for a candidate to be built as its evaluation would.
type buildAheadBody struct {
	Reference  string        `json:"reference,omitempty"` // read first, where it was not inspected
	Candidate  candidateBody `json:"candidate"`
	Device     string        `json:"device"`
	Arch       string        `json:"arch"`        // empty: the CPU
	CustomCode string        `json:"custom_code"` // of CustomCode
	Sandbox    string        `json:"sandbox"`
	CacheDir   string        `json:"cache_dir"`
}

type evaluateBody struct {
	Task      taskBody      `json:"task"`
	Candidate candidateBody `json:"candidate"`
	Batch     string        `json:"batch,omitempty"` // names those that were handed in together
	// What is evaluated next of them: built while this one is verified.
	Upcoming []candidateBody `json:"upcoming,omitempty"`
	Last     bool            `json:"last,omitempty"`   // nobody goes on with the device after this
	Shares   bool            `json:"shares,omitempty"` // it has a share of the device, and asks for all of it to be timed
	workplace
	Level         kernelwright.Level           `json:"level"`
	Precision     string                       `json:"precision"`
	StrictInputs  bool                         `json:"strict_inputs,omitempty"` // Options.StrictInputs
	CustomCode    string                       `json:"custom_code"`             // of CustomCode
	Explain       bool                         `json:"explain,omitempty"`       // what policy forbids is evaluated, too, and counts nowhere
	CertifyS      float64                      `json:"certify_s"`               // Options.CertifyTime
	Milestone     float64                      `json:"milestone,omitempty"`     // Options.Milestone
	Ceilings      kernelwright.Ceilings        `json:"ceilings"`
	Specs         kernelwright.Specs           `json:"specs"`
	Version       string                       `json:"kernelwright_version"`
	Harness       string                       `json:"harness"`
	Known         learned                      `json:"known"`
	WantBaselines []string                     `json:"want_baselines"`
	Named         []kernelwright.NamedBaseline `json:"named,omitempty"`
	Profile       string                       `json:"profile,omitempty"`        // SelectedProfile, FullProfile; empty: none
	Time          *bool                        `json:"time,omitempty"`           // false: it is verified and not timed
	Uncompiled    bool                         `json:"uncompiled,omitempty"`     // torch.compile has no say in what is right
	TimeBaselines bool                         `json:"time_baselines,omitempty"` // of one that is not timed
}

// learned is what an evaluation finds out about its task, for the next one;
// null where nothing is known.
type learned struct {
	Calibration json.RawMessage `json:"calibration"`
	Baselines   json.RawMessage `json:"baselines"`
	Profile     json.RawMessage `json:"profile,omitempty"` // eager's, kernelwright.Profile
}
