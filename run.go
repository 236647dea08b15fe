package kernelwright

// FeedbackKind is what a Judge returns: one of two.
type FeedbackKind string

// A failed candidate gets one correction, a correct one one optimisation; a
// Judge that sees nothing left to gain says stop.
const (
	Correction   FeedbackKind = "correction"
	Optimisation FeedbackKind = "optimisation"
	Stop         FeedbackKind = "stop"
)

// Feedback is what a Judge said of one verdict, in the JSON that a language
// model returns too.
type Feedback struct {
	Kind FeedbackKind `json:"kind"`

	// Correction: exactly one issue.
	Issue string `json:"issue,omitempty"`
	Why   string `json:"why,omitempty"`
	Fix   string `json:"fix,omitempty"`

	// Optimisation: exactly one bottleneck, one method, one plan.
	Bottleneck string `json:"bottleneck,omitempty"`
	Method     string `json:"method,omitempty"`
	Plan       string `json:"plan,omitempty"`

	// Evidence is the numbers that led here, metric name to value.
	Evidence map[string]float64 `json:"evidence,omitempty"`
	// Knobs are named schedule knobs the plan would set, for a Coder that has
	// them. A language model may leave them out.
	Knobs map[string]int `json:"knobs,omitempty"`
	// Rule names the rule of the built-in Judge that spoke.
	Rule string `json:"rule,omitempty"`

	// Why the built-in Judge's feedback stands in the place of a language model's:
	// that one wanted to stop, with this reason, while there was something to try;
	// or, in a sentence, what its answer was that could not be used.
	WantedStop string `json:"wanted_stop,omitempty"`
	Unusable   string `json:"unusable,omitempty"`
}

// RunStatus is where a run stands.
type RunStatus string

// The statuses of a run.
const (
	RunQueued    RunStatus = "queued"
	RunRunning   RunStatus = "running"
	RunDone      RunStatus = "done"
	RunInvalid   RunStatus = "invalid"   // the reference is no task
	RunDeclined  RunStatus = "declined"  // the Coder cannot improve this task and said so
	RunFailed    RunStatus = "failed"    // infrastructure
	RunCancelled RunStatus = "cancelled" // somebody took it off the queue
)

// StopReason says why a run ended.
type StopReason string

// The reasons.
const (
	StopRounds     StopReason = "rounds"
	StopWallTime   StopReason = "wall_time"
	StopHeadroom   StopReason = "headroom"
	StopNoProgress StopReason = "no_progress"
	StopJudge      StopReason = "judge"
	StopDeclined   StopReason = "declined"
	StopBudget     StopReason = "budget"
	StopTurns      StopReason = "turns"
	StopSubmitted  StopReason = "submitted" // the agent that held the loop was done
)

// Run is one attempt to optimise one task on one device.
type Run struct {
	ID         int64      `json:"id"`
	Task       string     `json:"task"` // fingerprint
	TaskName   string     `json:"task_name"`
	Path       string     `json:"path,omitempty"` // the reference file, where it came from one
	Device     string     `json:"device"`
	DeviceKey  string     `json:"device_key"`
	Strategy   string     `json:"strategy"`
	Coder      string     `json:"coder"`
	Judge      string     `json:"judge"`
	Seed       int64      `json:"seed"`
	MaxRounds  int        `json:"max_rounds" unknown:"0"`
	Settings   string     `json:"settings,omitempty" holds:"json"` // the strategy's settings as JSON
	Status     RunStatus  `json:"status"`
	Stop       StopReason `json:"stop,omitempty"`
	Reason     string     `json:"reason,omitempty"` // one sentence, where it did not end well
	Hint       string     `json:"hint,omitempty"`
	Detail     string     `json:"detail,omitempty"` // a traceback, where there is one
	CreatedMS  int64      `json:"created" time:"ms"`
	StartedMS  int64      `json:"started,omitempty" time:"ms"`
	FinishedMS int64      `json:"finished,omitempty" time:"ms"`
	Best       *Round     `json:"best,omitempty"`
}

// Round has one candidate, one verdict and at most one feedback. Index counts
// from 0. The certification of a run's best kernel is recorded as the
// certificate of its round.
//
// Parent is the index of the round whose candidate and feedback the Coder saw,
// where that is not the one before: a beam goes on from several. -1: of none.
type Round struct {
	RunID       int64     `json:"run"`
	Index       int       `json:"index"`
	Parent      *int      `json:"parent,omitempty"`
	Candidate   Candidate `json:"candidate"`
	Verdict     Verdict   `json:"verdict"`
	Feedback    *Feedback `json:"feedback,omitempty"`
	Certificate *Verdict  `json:"certificate,omitempty"`
	StartedMS   int64     `json:"started" time:"ms"`
	FinishedMS  int64     `json:"finished" time:"ms"`
	CertifiedMS int64     `json:"certified_at,omitempty" time:"ms"` // when its certification ended, as it was recorded; 0 without a certificate
	OverheadMS  float64   `json:"overhead_ms" unknown:"0"`          // the loop's own share: all but Coder, Judge and evaluator
}

// After returns the index of the round that this one goes on from; -1 for none.
func (r Round) After() int {
	if r.Parent != nil {
		return *r.Parent
	}
	return r.Index - 1
}
