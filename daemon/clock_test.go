package daemon

import (
	"sync"
	"time"
)

// fakeClock moves only when told to.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []fakeTimer
	asked  chan time.Duration // told of each After
}

type fakeTimer struct {
	at time.Time
	c  chan time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Unix(1_790_000_000, 0), asked: make(chan time.Duration, 1000)}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	if d <= 0 {
		ch <- c.now
	} else {
		c.timers = append(c.timers, fakeTimer{c.now.Add(d), ch})
	}
	select {
	case c.asked <- d:
	default:
	}
	return ch
}

func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	rest := c.timers[:0]
	for _, t := range c.timers {
		if t.at.After(c.now) {
			rest = append(rest, t)
		} else {
			t.c <- c.now
		}
	}
	c.timers = rest
}

// WaitFor returns once somebody has asked for a timer of this length.
func (c *fakeClock) WaitFor(d time.Duration) {
	for {
		select {
		case got := <-c.asked:
			if got == d {
				return
			}
		case <-time.After(testWait):
			panic("nobody asked for a timer of " + d.String())
		}
	}
}
