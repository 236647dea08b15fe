package hwfeedback

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// tidyWait is how long opening waits for the device in order to tidy up: not
// at all where somebody measures.
const tidyWait = 50 * time.Millisecond

// halfMade is what the harness calls files and folders of the cache until they
// are whole. A process that is killed leaves them.
var halfMade = map[string]*regexp.Regexp{
	"":          regexp.MustCompile(`^(tmp.*\.so|cc.{6}(\..*)?|inductor-.{8})$`),
	"allocator": regexp.MustCompile(`^(tmp.*\.so|cc.{6}(\..*)?)$`),
	"objects":   regexp.MustCompile(`^\.new-`),
	"builds":    regexp.MustCompile(`^\.new-`),
}

// tidy removes what killed processes left half made in the cache. Everything
// there is made under the lease of the device, so who holds it may: nobody
// else is making anything. The allocator alone is made before, by the first
// start on a machine; once it is there nobody makes another.
func (e *Evaluator) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tidyWait)
	defer cancel()
	lease, err := e.turn.take(ctx, e.device.String(), false)
	if err != nil {
		return // the next start will
	}
	defer e.letGo(lease, false)
	for folder, pattern := range halfMade {
		dir := filepath.Join(e.cacheDir(), folder)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // nothing was made yet
		}
		if made, _ := filepath.Glob(filepath.Join(dir, "allocator-*.so")); folder == "allocator" && len(made) == 0 {
			continue
		}
		for _, entry := range entries {
			if !pattern.MatchString(entry.Name()) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				e.options.Log.Warn("what a killed process left in the cache cannot be removed", "error", err)
			}
		}
	}
}
