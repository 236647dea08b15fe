package hwfeedback

import (
	"context"
	"os"
	"sync"
)

// Shared is a Leaser whose device several evaluators of this process have at once: for
// work that nobody times. Others have it between: where somebody waits for it, who asks
// here waits until it is free of all, and takes its turn.
func Shared(leases Leaser) Leaser {
	return &sharedLeases{inner: leases, of: map[string]*shared{}}
}

type sharedLeases struct {
	inner Leaser
	mu    sync.Mutex
	of    map[string]*shared // by device, as long as somebody has it or asks for it
}

// shared is one device.
type shared struct {
	taking chan struct{} // has a token while nobody takes it
	lease  Lease         // guarded by sharedLeases.mu, as the rest
	users  int
	free   chan struct{} // closed when nobody has it any more
}

// Wanted implements Leaser.
func (l *sharedLeases) Wanted(device string) bool { return l.inner.Wanted(device) }

// Acquire implements Leaser.
func (l *sharedLeases) Acquire(ctx context.Context, device string) (Lease, error) {
	l.mu.Lock()
	s := l.of[device]
	if s == nil {
		s = &shared{taking: make(chan struct{}, 1)}
		s.taking <- struct{}{}
		l.of[device] = s
	}
	l.mu.Unlock()
	waited := func() error {
		return &HeldError{device, holder{PID: os.Getpid()}.String(), false, context.Cause(ctx)}
	}
	if ctx.Err() != nil {
		return nil, waited()
	}
	select {
	case <-s.taking:
	case <-ctx.Done():
		return nil, waited()
	}
	defer func() { s.taking <- struct{}{} }()
	for {
		wanted := l.inner.Wanted(device)
		l.mu.Lock()
		if s.users > 0 && !wanted {
			s.users++
			l.mu.Unlock()
			return &sharedLease{Lease: s.lease, of: s, by: l}, nil
		}
		free := s.free
		if s.users == 0 {
			free = nil
		}
		l.mu.Unlock()
		if free == nil {
			break
		}
		select {
		case <-free:
		case <-ctx.Done():
			return nil, waited()
		}
	}
	lease, err := l.inner.Acquire(ctx, device)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.lease, s.users, s.free = lease, 1, make(chan struct{})
	return &sharedLease{Lease: lease, of: s, by: l}, nil
}

// sharedLease is one user's.
type sharedLease struct {
	Lease
	of   *shared
	by   *sharedLeases
	once sync.Once
	err  error
}

// Release implements Lease: the last user's gives up the device.
func (u *sharedLease) Release() error {
	u.once.Do(func() {
		u.by.mu.Lock()
		defer u.by.mu.Unlock()
		if u.of.users--; u.of.users == 0 {
			u.err = u.Lease.Release()
			close(u.of.free)
		}
	})
	return u.err
}
