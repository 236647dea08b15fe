package cli

import (
	"os"
	"path/filepath"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/report"
)

// mistyped is how many letters of a file's name may be wrong for it to be meant.
const mistyped = 2

// noFile is the error of a file that is not there. The hint is the nearest name in
// its folder, where one is near.
func noFile(path string) error {
	hint := ""
	if name := nearestIn(filepath.Dir(path), filepath.Base(path)); name != "" {
		hint = "did you mean " + short(filepath.Join(filepath.Dir(path), name))
	}
	return usage("there is no file "+path, hint)
}

func nearestIn(folder, name string) string {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return ""
	}
	best, at := "", mistyped+1
	for _, e := range entries {
		shown := report.Line(e.Name()) != report.Line(name) // what looks the same is no hint
		if d := config.Distance(name, e.Name()); shown && d < at && 2*d < len(name) {
			best, at = e.Name(), d
		}
	}
	return best
}
