// Command kernelwright turns PyTorch reference files into verified, faster
// kernels.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/kernelwright/kernelwright/cli"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal meets no handler and ends the process at once: locks fall
	// with it, and workers die when their stream ends.
	context.AfterFunc(ctx, stop)
	defer stop()
	err := cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	cli.Explain(os.Stderr, err)
	return cli.ExitCode(err)
}
