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
	// Except leaves these charges out, by the ids that Book gave them.
	Except []int64
}

// Spent is what calls have used.
type Spent struct {
	kernelwright.Spend
	Wall time.Duration
}

// Charge is one attempt: one that has ended, answered or not, or, where Failed is
// Unfinished, one that was begun, with the most that it can take. That is what
// stays of it where its process dies: it may have been billed.
type Charge struct {
	Key   Key
	Model string // Model.Name()
	// Usage is what it consumed. Of an attempt that failed or did not come back, but
	// may have been billed, it is the most that it can have been, and Estimated.
	Usage   Usage
	USD     *float64 // nil: the price is not known
	EndedMS int64    // Unix milliseconds; of one that is unfinished: when it began
	Took    time.Duration
	Failed  Kind // "": it was answered
}

// Ledger keeps what was spent, over restarts. It is safe for concurrent use.
type Ledger interface {
	// Spent sums the charges within the scope.
	Spent(ctx context.Context, s Scope) (Spent, error)
	// Book adds a charge and returns its id; what it has acknowledged survives a
	// crash.
	Book(ctx context.Context, c Charge) (id int64, err error)
	// Rebook puts another charge in the place of one.
	Rebook(ctx context.Context, id int64, c Charge) error
}
