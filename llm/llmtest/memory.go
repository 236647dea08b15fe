package llmtest

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright/llm"
)

// Journal is an llm.Journal in memory.
type Journal struct {
	mu      sync.Mutex
	records []llm.Record
}

// Recall implements llm.Journal.
func (j *Journal) Recall(_ context.Context, key llm.Key, digest [sha256.Size]byte) (llm.Record, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	found, ok := llm.Record{}, false
	for _, r := range j.records {
		if r.Key == key && r.Request.Digest(r.Model) == digest && (!ok || found.Reply.Stop == llm.StopTooLong) {
			found, ok = r, true
		}
	}
	return found, ok, nil
}

// Known implements llm.Journal.
func (j *Journal) Known(_ context.Context, key llm.Key) (bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.records, func(r llm.Record) bool { return r.Key == key }), nil
}

// LastFit implements llm.Journal.
func (j *Journal) LastFit(_ context.Context, key llm.Key, model string) (fit *llm.Fit, stop llm.Stop, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.records {
		if r.Key == key && r.Model == model && (stop == "" || stop == llm.StopTooLong || r.Reply.Stop != llm.StopTooLong) {
			fit, stop = r.Request.Fit, r.Reply.Stop
		}
	}
	return fit, stop, nil
}

// Append implements llm.Journal.
func (j *Journal) Append(ctx context.Context, r llm.Record) error {
	if err := ctx.Err(); err != nil { // as of one that is no memory
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = append(j.records, r)
	return nil
}

// Records returns what was recorded, in order.
func (j *Journal) Records() []llm.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.records)
}

// Ledger is an llm.Ledger in memory.
type Ledger struct {
	mu      sync.Mutex
	charges []llm.Charge
}

// Spent implements llm.Ledger.
func (l *Ledger) Spent(_ context.Context, s llm.Scope) (llm.Spent, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var sum llm.Spent
	for id, c := range l.charges {
		if slices.Contains(s.Except, int64(id)) || s.Run != 0 && c.Key.Run != s.Run || s.Model != "" && c.Model != s.Model || time.UnixMilli(c.EndedMS).Before(s.Since) {
			continue
		}
		sum.Calls++
		sum.TokensIn += c.Usage.In
		sum.TokensOut += c.Usage.Out
		sum.CachedIn += c.Usage.CachedIn
		sum.CacheWrite += c.Usage.CacheWrite
		sum.Wall += c.Took
		if c.Failed == llm.Unfinished {
			sum.Unfinished++
		}
		atWorst := c.Failed != "" && c.Usage.In+c.Usage.Out > 0
		if atWorst {
			sum.AtWorst++
		}
		if c.USD == nil {
			sum.Unpriced++
			continue
		}
		sum.USD += *c.USD
		if atWorst {
			sum.USDAtWorst += *c.USD
		}
	}
	return sum, nil
}

// Book implements llm.Ledger.
func (l *Ledger) Book(ctx context.Context, c llm.Charge) (int64, error) {
	if err := ctx.Err(); err != nil { // as of one that is no memory
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charges = append(l.charges, c)
	return int64(len(l.charges) - 1), nil
}

// Rebook implements llm.Ledger.
func (l *Ledger) Rebook(ctx context.Context, id int64, c llm.Charge) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charges[id] = c
	return nil
}

// Charges returns what was booked, in order.
func (l *Ledger) Charges() []llm.Charge {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.charges)
}
