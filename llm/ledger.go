package llm

import (
	"context"
	"time"

	"github.com/kernelwright/kernelwright"
)

// Scope narrows what was spent. A zero field does not.
type Scope struct {
	Run   int64     // calls of this run
	Since time.Time // that ended then or later
	Model string    // of this model: Model.Name()
}

// Spent is what calls have used.
type Spent struct {
	kernelwright.Spend
	Wall time.Duration
}

// Charge is one attempt that has ended, answered or not.
type Charge struct {
	Key   Key
	Model string // Model.Name()
	// Usage is what it consumed. Of an attempt that failed but may have been
	// billed it is the most that it can have been, and Estimated.
	Usage   Usage
	USD     *float64 // nil: the price is not known
	EndedMS int64    // Unix milliseconds
	Took    time.Duration
	Failed  Kind // "": it was answered
}

// Ledger keeps what was spent, over restarts. It is safe for concurrent use.
type Ledger interface {
	// Spent sums the charges within the scope.
	Spent(ctx context.Context, s Scope) (Spent, error)
	// Book adds a charge; what it has acknowledged survives a crash.
	Book(ctx context.Context, c Charge) error
}
