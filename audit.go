package kernelwright

import "encoding/json"

// Audit is a published set of candidates, each with the reference that it stands
// for, evaluated by one program under one set of settings.
type Audit struct {
	ID           int64    `json:"id"`
	Path         string   `json:"path"` // of the set, absolute
	References   []string `json:"references,omitempty"`
	Level        Level    `json:"level"`
	Device       string   `json:"device"`       // as the command line named it first, or NoDevice
	DeviceClass  string   `json:"device_class"` // Device.Class of all that evaluate
	DeviceName   string   `json:"device_name"`  // empty of NoDevice
	Baselines    []string `json:"baselines"`
	Precision    string   `json:"precision"`
	CustomCode   string   `json:"custom_code"`
	StrictInputs bool     `json:"strict_inputs"`
	Sandbox      string   `json:"sandbox"`
	Again        bool     `json:"again,omitempty"` // what was evaluated before it began does not count
	Command      []string `json:"command"`         // as it was typed first
	Version      string   `json:"version"`         // of kernelwright
	Only         []string `json:"only,omitempty"`  // patterns of the candidates that are looked at
	Limit        int      `json:"limit,omitempty"` // so many pairs at most; 0: all
	CreatedMS    int64    `json:"created" time:"ms"`
	FinishedMS   int64    `json:"finished,omitempty" time:"ms"` // 0 while it has not come to its end
}

// NoDevice is the Device of an audit of which no pair needs one.
const NoDevice = "no device"

// AuditPair is a reference and a candidate of an audit, and what was said of them.
// The labels are where each was found: the path of a file, or file:line.
type AuditPair struct {
	Reference string `json:"reference"`
	Candidate string `json:"candidate"`
	Index     int    `json:"index"` // in the set, from 0
	Claim     *Claim `json:"claim,omitempty"`
	// Key is the same for the same bytes under the same settings; empty for what
	// could not be read.
	Key     string  `json:"key,omitempty"`
	Verdict Verdict `json:"verdict"`
	// EvaluatedMS is when the verdict was reached; 0: now.
	EvaluatedMS int64 `json:"judged,omitempty" time:"ms"`

	// The texts, where they could be read: for the record alone.
	ReferenceText, CandidateText string `json:"-"`
}

// Claim is the speedup that a candidate was published with.
type Claim struct {
	Speedup float64 `json:"speedup"`
	Against string  `json:"against"` // name of the baseline, "eager" where nothing is said
}

// The statuses of pairs in an audit on which no verdict was reached, through no
// fault of the candidate.
const (
	NeedsGPU     Status = "needs_gpu"    // and the device is the CPU
	NoCandidate  Status = "no_candidate" // none was published
	NoReference  Status = "no_reference" // none was found for it
	NotEvaluated Status = "not_judged"   // the machine failed: the next run tries it again
	NoClaims     Status = "no_claims"    // of no pair: a file that says what was claimed, and cannot be read
	Unrecognised Status = "unrecognised" // of no pair: files that are neither a reference nor a candidate
)

// FromBare is evidence that a candidate was made of a source without a ModelNew.
const FromBare = "what was published is a function of C++ or CUDA: its ModelNew is the reference, with that function in the place of its own"

// Key is the same for two audits of the same set under the same settings.
func (a Audit) Key() string { return hashJSON(a.Path, a.References, a.Only, a.Limit, a.settings()) }

// PairKey is the same for the same texts under the same settings, whatever set
// they are in.
func (a Audit) PairKey(reference, candidate string) string {
	return hashJSON(HashText(reference), HashText(candidate), a.settings())
}

// settings is what a verdict depends on besides the texts.
func (a Audit) settings() []any {
	return []any{a.Level, a.DeviceClass, a.Baselines, a.Precision, a.CustomCode, a.StrictInputs, a.Sandbox, a.Version}
}

func hashJSON(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil { // texts, switches and lists of them only: cannot fail
		panic(err)
	}
	return HashText(string(text))
}
