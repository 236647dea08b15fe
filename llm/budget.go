package llm

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/kernelwright/kernelwright"
)

// Allowance is how much may be used. 0 is no limit.
type Allowance struct {
	USD    float64       `toml:"usd" json:"usd"`
	Tokens int64         `toml:"tokens" json:"tokens"` // in and out
	Calls  int64         `toml:"calls" json:"calls"`   // attempts count
	Wall   time.Duration `toml:"wall" json:"wall"`     // waiting for the model, summed over calls
}

// Allowances is what each run, each day (UTC, all runs together) and each day of
// a model ("provider:model") may use.
type Allowances struct {
	Run    Allowance            `toml:"run" json:"run"`
	Day    Allowance            `toml:"day" json:"day"`
	Models map[string]Allowance `toml:"models" json:"models"`
}

// Validate reports the first value that is no limit. Its text begins with the
// key.
func (a Allowances) Validate() error {
	check := func(key string, a Allowance) error {
		if a.USD < 0 || math.IsNaN(a.USD) || math.IsInf(a.USD, 0) || a.Tokens < 0 || a.Calls < 0 || a.Wall < 0 {
			return fmt.Errorf("%s: a limit is above 0, and 0 is none", key)
		}
		return nil
	}
	if err := check("run", a.Run); err != nil {
		return err
	}
	if err := check("day", a.Day); err != nil {
		return err
	}
	for name, m := range a.Models {
		if err := check(fmt.Sprintf("models.%q", name), m); err != nil {
			return err
		}
	}
	return nil
}

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
