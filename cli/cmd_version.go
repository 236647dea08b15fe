package cli

import (
	"runtime"

	"github.com/kernelwright/kernelwright"
)

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(a *app) error {
	if a.json {
		return a.printJSON(map[string]string{"version": kernelwright.Version, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
	}
	return a.printf("kernelwright %s (%s, %s/%s)\n", kernelwright.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
