// Command kernelwright turns PyTorch reference files into verified, faster
// kernels.
package main

import (
	"os"

	"github.com/kernelwright/kernelwright/cli"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := cli.Interruptible()
	defer stop()
	err := cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	cli.Explain(os.Stderr, err)
	return cli.ExitCode(err)
}
