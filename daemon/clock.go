package daemon

import "time"

// Clock is time as the daemon's parts see it; tests give their own.
type Clock interface {
	Now() time.Time
	// After sends once when d has passed. What nobody reads is collected.
	After(d time.Duration) <-chan time.Time
}

// System is the machine's clock.
type System struct{}

// Now implements Clock.
func (System) Now() time.Time { return time.Now() }

// After implements Clock.
func (System) After(d time.Duration) <-chan time.Time { return time.After(d) }
