package kernelwright

// TensorSpec describes one tensor of a task. Shape is in elements, outermost
// dimension first.
type TensorSpec struct {
	Name  string `json:"name,omitempty"`
	Shape []int  `json:"shape"`
	DType string `json:"dtype"` // torch's name without the prefix: "float32", "int64", "bool"
}

// Numel returns the number of elements.
func (t TensorSpec) Numel() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// TaskFlag marks a reference that needs care; each flag is shown wherever a
// kernel of that task is shown.
type TaskFlag string

// The flags that inspection can set.
const (
	FlagConstantOutput     TaskFlag = "constant_output"      // the output does not vary at all
	FlagIgnoresInput       TaskFlag = "ignores_input"        // the output does not depend on any input
	FlagIgnoresWeights     TaskFlag = "ignores_weights"      // the output does not depend on any parameter
	FlagTrainModeOnly      TaskFlag = "train_mode_dependent" // evaluated in eval mode, where it is deterministic
	FlagIllConditioned     TaskFlag = "ill_conditioned"      // one ulp on the input moves the output by over 1 %
	FlagNonFiniteReference TaskFlag = "non_finite_reference" // the reference itself gives NaN or Inf on its base draw
	FlagTooLarge           TaskFlag = "too_large"            // evaluating it takes about more memory than the device has
)

// Task is a reference file: Model, get_inputs() and get_init_inputs().
type Task struct {
	// Fingerprint is the hex SHA-256 of the reference's normalised AST: it
	// ignores file names, comments and formatting. It groups runs in the history.
	// What is remembered goes by Source: a reference can read its own text.
	Fingerprint string `json:"fingerprint"`
	Name        string `json:"name"`   // file name without folder and extension
	Source      string `json:"source"` // the file's text, byte for byte

	Inputs     []TensorSpec `json:"inputs"`
	Outputs    []TensorSpec `json:"outputs"`
	Parameters []TensorSpec `json:"parameters"`
	Operators  []string     `json:"operators"`               // operator kinds in execution order, "aten.softmax"
	Operations int64        `json:"operations"`              // floating-point operations of one forward
	LeastBytes int64        `json:"least_bytes" unknown:"0"` // inputs and parameters read once plus outputs written once
	// NeededBytes are those of LeastBytes that are certainly needed, whatever
	// the values: what every kernel reads and writes. 0 where that is not known.
	NeededBytes int64      `json:"needed_bytes,omitempty" unknown:"0"`
	Flags       []TaskFlag `json:"flags,omitempty"`
	Notes       []string   `json:"notes,omitempty"`      // one sentence per thing a reader should know
	EagerMS     float64    `json:"eager_ms" unknown:"0"` // a first estimate, not a baseline

	// Graph is the captured operator graph as JSON (see hwfeedback/harness,
	// base/graph.py), what the built-in Coder plans over. Empty where capture
	// failed; GraphNote then says why.
	Graph     []byte `json:"graph,omitempty" holds:"json"`
	GraphNote string `json:"graph_note,omitempty"`
}

// HasFlag reports whether inspection set the flag.
func (t Task) HasFlag(f TaskFlag) bool {
	for _, g := range t.Flags {
		if g == f {
			return true
		}
	}
	return false
}

// Degenerate reports whether a trivially wrong program could look right on
// this task. No kernel of such a task is certified without the flag shown.
func (t Task) Degenerate() bool {
	return t.HasFlag(FlagConstantOutput) || t.HasFlag(FlagIgnoresInput)
}

// InvalidTaskError says that a reference cannot be a task. Reason is one
// sentence, Hint what to do; Traceback is kept for the history.
type InvalidTaskError struct {
	Reason    string `json:"reason"`
	Hint      string `json:"hint"`
	Traceback string `json:"traceback,omitempty"`
}

func (e *InvalidTaskError) Error() string { return e.Reason }
