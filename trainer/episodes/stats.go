package episodes

import (
	"time"

	"github.com/kernelwright/kernelwright"
)

// VerdictStats says where the verdicts of episodes came from.
type VerdictStats struct {
	Asked    int64 `json:"asked"`
	Cached   int64 `json:"cached"`   // remembered of these very bytes
	Joined   int64 `json:"joined"`   // somebody else had asked for it, and it was not there yet
	Measured int64 `json:"measured"` // the device was asked
	Failed   int64 `json:"failed"`   // by infrastructure
	Again    int64 `json:"again"`    // measured once more, as the first time told no reward
	Batches  int64 `json:"batches"`  // in which the device was asked
	Waiting  int   `json:"waiting"`
	// HitRate is the share of what was asked that the device was not asked for.
	HitRate float64 `json:"hit_rate"`
}

// Stats is what has happened since a server began.
type Stats struct {
	SinceMS  int64         `json:"since"` // Unix milliseconds
	Open     int           `json:"open"`
	MaxOpen  int           `json:"max_open"`
	Begun    int64         `json:"begun"`
	Done     int64         `json:"done"`
	Dropped  int64         `json:"dropped"` // by infrastructure errors
	Noisy    int64         `json:"noisy"`   // of those dropped: the machine was too noisy to tell
	Capped   int64         `json:"capped"`  // of those done: as fast as can be told without a compile baseline
	Expired  int64         `json:"expired"`
	GivenUp  int64         `json:"given_up"`
	Refused  int64         `json:"refused"` // those that could not begin
	Rewards  map[int]int64 `json:"rewards"` // of those that are done
	Turns    int64         `json:"turns"`
	CutOff   int64         `json:"cut_off"`  // turns that ended by length or context
	Unusable int64         `json:"unusable"` // rounds whose completion held no candidate
	Verdicts VerdictStats  `json:"verdicts"`
}

// Stats returns them.
func (e *Episodes) Stats() Stats {
	e.mu.Lock()
	s := e.stats
	s.Rewards = map[int]int64{kernelwright.RewardNotCorrect: 0, kernelwright.RewardCorrect: 0, kernelwright.RewardFasterThanEager: 0, kernelwright.RewardFasterThanCompile: 0}
	for reward, n := range e.stats.Rewards {
		s.Rewards[reward] = n
	}
	s.Open = e.taken
	e.mu.Unlock()
	s.MaxOpen, s.Verdicts = e.o.MaxOpen, e.queue.counted()
	return s
}

func (e *Episodes) count(f func(*Stats)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.stats)
}

// tell logs what has happened, where something has.
func (e *Episodes) tell(now time.Time) {
	s := e.Stats()
	if e.told.Turns == s.Turns && e.told.Begun == s.Begun && e.told.Done == s.Done {
		return
	}
	e.told = s
	e.o.Log.Info("episodes", "open", s.Open, "done", s.Done, "dropped", s.Dropped, "noisy", s.Noisy, "expired", s.Expired, "turns", s.Turns,
		"verdicts", s.Verdicts.Asked, "hit_rate", s.Verdicts.HitRate, "waiting", s.Verdicts.Waiting, "for", now.Sub(time.UnixMilli(s.SinceMS)).Round(time.Second))
}
