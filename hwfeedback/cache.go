package hwfeedback

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
)

// Cache keeps small values by kind and key. Errors are logged and otherwise
// treated as absence: what is lost is measured again.
type Cache interface {
	Get(ctx context.Context, kind, key string) (value []byte, found bool, err error)
	Put(ctx context.Context, kind, key string, value []byte) error
}

// The kinds of value that an Evaluator keeps in its Cache.
const (
	cacheSource      = "source"      // exact text to what is read of it
	cacheTask        = "task"        // exact text to inspected task
	cacheVerdict     = "verdict"     // see verdictKey
	cacheCeilings    = "ceilings"    // device key to ceilings
	cacheCalibration = "calibration" // see learnedKey
	cacheBaselines   = "baselines"   // see learnedKey
	cacheProfile     = "profile"     // of eager; see profileKey
	cachePython      = "python"      // path of an interpreter to what it is; see environment.probe
	cacheVersions    = "versions"    // path of an interpreter to what its server said; see identify
	cacheGPU         = "gpu"         // number of a GPU to what it is; see gpuFinder
)

// Remembered are the kinds of value that can be found out again: what an
// Evaluator keeps to save time, and nothing is lost when it is forgotten.
var Remembered = []string{cacheSource, cacheTask, cacheVerdict, cacheCalibration, cacheBaselines, cacheProfile, cachePython, cacheVersions, cacheGPU}

func (e *Evaluator) cacheDir() string { return filepath.Join(e.options.DataDir, "cache") }

// recall reads a value from the cache; a value that cannot be read is absent.
func (e *Evaluator) recall(ctx context.Context, kind, key string, into any) bool {
	return recall(ctx, e.cache, e.options.Log, kind, key, into)
}

// remember keeps a value even when the context has just ended: it is paid for.
func (e *Evaluator) remember(ctx context.Context, kind, key string, value any) {
	remember(ctx, e.cache, e.options.Log, kind, key, value)
}

func recall(ctx context.Context, cache Cache, log *slog.Logger, kind, key string, into any) bool {
	if cache == nil {
		return false
	}
	b, found, err := cache.Get(ctx, kind, key)
	if err != nil {
		if ctx.Err() == nil {
			log.Warn("the cache cannot be read", "kind", kind, "error", err)
		}
		return false
	}
	if !found {
		return false
	}
	if err := json.Unmarshal(b, into); err != nil {
		log.Warn("a cached value is damaged and is made again", "kind", kind, "key", key, "error", err)
		return false
	}
	return true
}

func remember(ctx context.Context, cache Cache, log *slog.Logger, kind, key string, value any) {
	if cache == nil {
		return
	}
	b, err := json.Marshal(value)
	if err == nil {
		err = cache.Put(context.WithoutCancel(ctx), kind, key, b)
	}
	if err != nil {
		log.Warn("the cache cannot be written", "kind", kind, "error", err)
	}
}
