// Package nightstest has what tests of nights share: a schedule, and a clock that they set.
package nightstest

import (
	"sync"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/timetable"
)

// Eleven is when a night of Table is due.
var Eleven = time.Date(2026, 11, 27, 23, 0, 0, 0, time.UTC)

// Cron is the schedule of Table: eleven in the evening.
const Cron = "0 23 * * *"

// Table has a night each evening at eleven.
func Table(t testing.TB) timetable.Timetable {
	t.Helper()
	table, err := timetable.Parse(Cron, time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// Clock shows what it is set to. Its timers ring at once: who is woken looks at what it
// shows.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows a time.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now implements nights.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After implements nights.Clock.
func (*Clock) After(time.Duration) <-chan time.Time { return time.After(time.Millisecond) }

// Set has it show another time.
func (c *Clock) Set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}
