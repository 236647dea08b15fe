package report

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// kindBench is of the cache: what benches that have ended came to, by number and version of
// kernelwright. To gather it again, all verdicts of all its runs would be read, and its
// intervals drawn.
const kindBench = "bench"

// endedBench is a bench that has ended, in the cache.
type endedBench struct {
	Bench   Bench        `json:"bench"`
	Figures BenchFigures `json:"figures"`
}

func benchKey(id int64, version string) string {
	return fmt.Sprintf("%d %s, with figures", id, version)
}

// KeepBench keeps what a bench came to, if it has ended, for those who open its page.
func KeepBench(ctx context.Context, s *store.Store, version string, b Bench, f BenchFigures) error {
	if b.FinishedMS == 0 {
		return nil
	}
	text, err := json.Marshal(endedBench{b, f})
	if err != nil {
		return err
	}
	return s.Put(ctx, kindBench, benchKey(b.ID, version), text)
}

// KeptBench returns what a bench came to, as far as that is kept.
func KeptBench(ctx context.Context, s *store.Store, version string, known kernelwright.Bench) (b Bench, f BenchFigures, kept bool, err error) {
	if known.FinishedMS == 0 {
		return b, f, false, nil
	}
	text, kept, err := s.Get(ctx, kindBench, benchKey(known.ID, version))
	var ended endedBench
	if err != nil || !kept || json.Unmarshal(text, &ended) != nil {
		return b, f, false, err
	}
	ended.Bench.Bench = known
	return ended.Bench, ended.Figures, true, nil
}
