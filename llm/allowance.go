package llm

import (
	"fmt"
	"math"
	"time"
)

// Allowance is how much may be used. 0 is no limit.
type Allowance struct {
	USD    float64       `toml:"usd" json:"usd"`
	Tokens int64         `toml:"tokens" json:"tokens"`       // in and out
	Calls  int64         `toml:"calls" json:"calls"`         // attempts count
	Wall   time.Duration `toml:"wall_time" json:"wall_time"` // waiting for the model, summed over calls
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

// refuse says why a call that needs so much cannot be made where so much is used,
// or "".
func (a Allowance) refuse(need, used use, priced bool) string {
	switch {
	case a.USD > 0 && !priced:
		return "it is one of money, and the price of the model is not known"
	case a.USD > 0 && used.usd+need.usd > a.USD:
		return fmt.Sprintf("$%.4f of $%.4f are left, and the call could cost $%.4f", max(a.USD-used.usd, 0), a.USD, need.usd)
	case a.Tokens > 0 && used.tokens+need.tokens > a.Tokens:
		return fmt.Sprintf("%d of %d tokens are left, and the call could take %d", max(a.Tokens-used.tokens, 0), a.Tokens, need.tokens)
	case a.Calls > 0 && used.calls+need.calls > a.Calls:
		return fmt.Sprintf("%d of %d calls are left", max(a.Calls-used.calls, 0), a.Calls)
	case a.Wall > 0 && used.wall >= a.Wall:
		return fmt.Sprintf("nothing of %v of waiting for models is left", a.Wall)
	}
	return ""
}
