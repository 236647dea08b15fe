package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible gives a context that the first SIGINT or SIGTERM cancels. By
// then the signals have their default effect again, so that a second one ends
// the process at once, from the moment that anybody can tell the user so: locks
// fall with the process, and workers die when their stream ends.
func Interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan os.Signal, 1)
	signal.Notify(first, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer cancel()
		defer signal.Stop(first)
		select {
		case <-first:
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
