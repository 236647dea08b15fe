package hwfeedback

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kernelwright/kernelwright"
)

// measuredCeilings is what the cache keeps of a device.
type measuredCeilings struct {
	kernelwright.Ceilings
	Spread  float64 `json:"spread"`             // a share from 0 to 1
	L2Bytes int64   `json:"l2_bytes,omitempty"` // of a GPU, which NVML does not tell
	// TriedMS is when they were measured last, whether or not that saw more; Unix milliseconds.
	TriedMS int64 `json:"tried_ms,omitempty"`
}

func (m measuredCeilings) quiet() bool {
	return m.Spread > 0 && m.Spread <= kernelwright.Shared.QuietSpread
}

// ceilingsAgain is how long ceilings from a busy machine serve: measuring them takes
// seconds, and a machine that is busy now mostly is so a minute later.
const ceilingsAgain = time.Hour

// serve reports whether they need not be measured now.
func (m measuredCeilings) serve(now time.Time) bool {
	age := now.Sub(time.UnixMilli(m.TriedMS))
	return m.quiet() || m.TriedMS > 0 && age >= 0 && age < ceilingsAgain
}

// and returns what two measurements know together: a ceiling is the most that
// was ever seen, and one quiet measurement is enough. A busy one that saw
// nothing more leaves the earlier as it is, with the verdicts that rest on it.
func (m measuredCeilings) and(earlier measuredCeilings) measuredCeilings {
	const more = 1.02 // less is noise, and no headroom looks different for it
	a, b := m.Ceilings, earlier.Ceilings
	if !m.quiet() && a.MemoryGBs <= more*b.MemoryGBs && a.CacheGBs <= more*b.CacheGBs && a.FP32GFLOPs <= more*b.FP32GFLOPs {
		return earlier
	}
	m.MemoryGBs = max(a.MemoryGBs, b.MemoryGBs)
	m.CacheGBs = max(a.CacheGBs, b.CacheGBs)
	m.FP32GFLOPs = max(a.FP32GFLOPs, b.FP32GFLOPs)
	m.ReadGBs = max(a.ReadGBs, b.ReadGBs)
	if b.CallUS > 0 {
		m.CallUS = min(a.CallUS, b.CallUS)
	}
	return m
}

// settle does once what comes before anything is measured: it tidies up, and has the
// ceilings measured where that is due.
func (e *Evaluator) settle(ctx context.Context) error {
	select {
	case <-e.settling:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { e.settling <- struct{}{} }()
	if e.settled.Load() {
		return nil
	}
	e.tidy(ctx)
	if err := e.measure(ctx); err != nil {
		return err
	}
	e.settled.Store(true)
	return nil
}

// due reports whether the ceilings have to be measured before a candidate is.
func (e *Evaluator) due(ctx context.Context) bool {
	return !e.settled.Load() && (e.options.Remeasure || !e.knownCeilings(ctx).serve(e.now()))
}

// knownCeilings are those in the cache, none where there are none.
func (e *Evaluator) knownCeilings(ctx context.Context) (known measuredCeilings) {
	e.recall(ctx, cacheCeilings, e.ceilingsKey(), &known)
	return known
}

func (e *Evaluator) ceilingsKey() string { return joinKey(e.device.Key, kernelwright.Version) }

// measure has the device's ceilings.
func (e *Evaluator) measure(ctx context.Context) error {
	c, err := e.ceilings(ctx)
	if err == nil {
		e.reaches(c)
	}
	return err
}

// reaches takes ceilings as the device's.
func (e *Evaluator) reaches(c measuredCeilings) {
	e.reach.Lock()
	defer e.reach.Unlock()
	e.device.Ceilings, e.spread = c.Ceilings, c.Spread
	if c.L2Bytes > 0 {
		e.device.Specs.L2Bytes = c.L2Bytes
	}
}

// ceilings returns what the device can reach, from the cache where that serves.
func (e *Evaluator) ceilings(ctx context.Context) (measuredCeilings, error) {
	var known measuredCeilings
	if !e.options.Remeasure {
		if known = e.knownCeilings(ctx); known.serve(e.now()) {
			return known, nil
		}
	}
	what := "this machine"
	if e.gpu != nil {
		what = e.device.String()
	}
	e.options.Progress("device", "measuring what "+what+" can reach")
	lease, err := e.turn.take(ctx, e.device.String(), false)
	if err != nil {
		return known, err
	}
	defer e.letGo(lease, false)
	// One that has evaluated has a context of its own there, and memory in use.
	if err := e.super.fresh(ctx); err != nil {
		return known, err
	}
	result, err := e.super.request(ctx, "ceilings", e.workplace(), ceilingsTimeout, lease.File())
	for tries := 1; err != nil && inducible(ctx, err) && tries < ceilingsTries; tries++ {
		e.options.Log.Warn("measuring what the device can reach failed and is tried again", "error", err)
		if err = e.super.renew(ctx); err == nil {
			result, err = e.super.request(ctx, "ceilings", e.workplace(), ceilingsTimeout, lease.File())
		}
	}
	if err != nil {
		return known, requestError(err)
	}
	var reply struct {
		Ceilings kernelwright.Ceilings `json:"ceilings"`
		Spread   float64               `json:"spread"`
		Has      struct {
			L2Bytes int64 `json:"l2_bytes"`
		} `json:"attributes"` // of a GPU
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return known, infrastructure("ceilings", err)
	}
	c := measuredCeilings{Ceilings: reply.Ceilings, Spread: reply.Spread, L2Bytes: reply.Has.L2Bytes}
	if c.MemoryGBs <= 0 || c.FP32GFLOPs <= 0 {
		return known, infrastructure("ceilings", fmt.Errorf("impossible ceilings: %s", result))
	}
	c = c.and(known)
	c.TriedMS = e.now().UnixMilli()
	e.remember(ctx, cacheCeilings, e.ceilingsKey(), c)
	return c, nil
}
