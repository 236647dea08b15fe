package coder

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// Space is the schedules that the built-in Coder has for a task. A point is a
// combination of its knobs' choices; several points may come to the same program. One
// goroutine at a time may use it.
type Space struct {
	writers []writer // as many as walk side by side: a plan is marked as it is written
	start   plan.Knobs
	names   []string // of the knobs, sorted: the first is the leading digit of a point
}

// mostWriters is how many walk side by side: each has a plan of its own.
const mostWriters = 8

// Space returns the schedules for a task on a device. The error is Propose's; of the
// input Task, Device and Language count.
func (b Builtin) Space(ctx context.Context, in kernelwright.CoderInput) (s *Space, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = declined("the operator graph breaks an assumption of the planner: %v", r)
		}
	}()
	s = &Space{}
	for range min(runtime.GOMAXPROCS(0), mostWriters) {
		w, start, err := b.writer(ctx, in)
		if err != nil {
			return nil, err
		}
		s.writers, s.start = append(s.writers, w), start
	}
	s.names = slices.Sorted(maps.Keys(s.start))
	return s, nil
}

// Points is how many points the space has.
func (s *Space) Points() int64 {
	n := int64(1)
	for _, name := range s.names {
		n *= int64(len(s.start[name].Choices))
	}
	return n
}

// at is the schedule of a point, from 0 to below Points.
func (s *Space) at(point int64) plan.Knobs {
	values := map[string]int{}
	for _, name := range slices.Backward(s.names) {
		choices := s.start[name].Choices
		values[name] = choices[point%int64(len(choices))]
		point /= int64(len(choices))
	}
	return s.start.With(values)
}

// first is the point that the Coder begins with.
func (s *Space) first() (point int64) {
	for _, name := range s.names {
		k := s.start[name]
		point = point*int64(len(k.Choices)) + int64(slices.Index(k.Choices, k.Value))
	}
	return point
}

// program is what a point comes to, without its head: the docstring, and the comment
// that states the schedule.
func (s *Space) program(w writer, point int64) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = declined("the operator graph breaks an assumption of the planner: %v", r)
		}
	}()
	code, err := w.code(s.at(point))
	if err != nil {
		return "", err
	}
	_, text, _ = strings.Cut(code, "\n")
	return text, nil
}

// Candidate returns the candidate of a point: what Propose would write with these
// knobs. Its note says the plan, and the knobs that have another choice.
func (s *Space) Candidate(point int64) (c kernelwright.Candidate, err error) {
	defer func() {
		if r := recover(); r != nil {
			c, err = kernelwright.Candidate{}, declined("the operator graph breaks an assumption of the planner: %v", r)
		}
	}()
	knobs := s.at(point)
	c, offered, err := s.writers[0].candidate(knobs)
	if err != nil {
		return c, err
	}
	var said []string
	for _, name := range s.names {
		if len(offered[name].Choices) > 1 {
			said = append(said, fmt.Sprintf("%s %d", name, knobs[name].Value))
		}
	}
	if len(said) > 0 {
		c.Note += "; " + strings.Join(said, ", ")
	}
	return c, nil
}

// Walk calls yield with points in an order that the seed draws, each program once: with
// a point that comes to it, and its text. It ends when yield returns false, after so
// many points in all (0: all of them), or when ctx is done.
func (s *Space) Walk(ctx context.Context, seed uint64, most int64, yield func(point int64, program string) bool) error {
	return s.walk(ctx, s.order(seed, -1), most, yield)
}

func (s *Space) walk(ctx context.Context, next func() int64, most int64, yield func(point int64, program string) bool) error {
	if n := s.Points(); most <= 0 || most > n {
		most = n
	}
	seen := map[[sha256.Size]byte]bool{}
	for done := int64(0); done < most; {
		batch := make([]int64, min(most-done, int64(4*len(s.writers))))
		for i := range batch {
			batch[i] = next()
		}
		done += int64(len(batch))
		programs, errs := make([]string, len(batch)), make([]error, len(batch))
		var all sync.WaitGroup
		for part, w := range s.writers {
			all.Go(func() {
				for i := part; i < len(batch) && ctx.Err() == nil; i += len(s.writers) {
					programs[i], errs[i] = s.program(w, batch[i])
				}
			})
		}
		all.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, point := range batch {
			if errs[i] != nil {
				return errs[i]
			}
			key := sha256.Sum256([]byte(programs[i]))
			if seen[key] {
				continue
			}
			seen[key] = true
			if !yield(point, programs[i]) {
				return nil
			}
		}
	}
	return nil
}

// order gives every point once: the first (-1: none is), then all others as a seed draws
// them. It takes no memory for them: a Feistel network over the next power of four is a
// permutation, and what it gives beyond the space is passed over.
func (s *Space) order(seed uint64, first int64) func() int64 {
	n := s.Points()
	half := 1
	for n > 1<<(2*half) {
		half++
	}
	mask := uint64(1)<<half - 1
	r := rand.New(rand.NewPCG(seed, uint64(n))) //nolint:gosec // what is drawn has to be drawn again
	keys := [4]uint64{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64()}
	at, begun := uint64(0), first < 0
	return func() int64 {
		if !begun {
			begun = true
			return first
		}
		for {
			left, right := at>>half, at&mask
			at++
			for _, k := range keys {
				h := (right ^ k) * 0x9e3779b97f4a7c15
				left, right = right, left^(h^h>>29)&mask
			}
			if p := int64(left<<half | right); p < n && p != first {
				return p
			}
		}
	}
}

// walked is of how many points Enumerate counts the programs, and of how many it looks
// at for each candidate that it is to draw beyond that.
const walked, drawn = 1 << 12, 16

// Enumerate returns the candidates of different programs of the space, at most so
// many: all there are, or those that the seed of the input draws, and how large the
// space is. The same input gives the same. The error is Propose's.
func (b Builtin) Enumerate(ctx context.Context, in kernelwright.CoderInput, most int) ([]kernelwright.Candidate, kernelwright.Space, error) {
	s, err := b.Space(ctx, in)
	if err != nil {
		return nil, kernelwright.Space{}, err
	}
	size := kernelwright.Space{Points: s.Points()}
	whole := size.Points <= walked
	look := size.Points
	if !whole {
		look = walked + drawn*int64(most)
	}
	var points []int64
	err = s.walk(ctx, s.order(uint64(in.Seed), s.first()), look, func(point int64, _ string) bool {
		size.Programs++
		if len(points) < most {
			points = append(points, point)
		}
		return whole || size.Programs < most
	})
	if err != nil {
		return nil, size, err
	}
	if size.Sampled = size.Programs > len(points); !whole {
		size.Programs, size.Sampled = 0, true
	}
	out := make([]kernelwright.Candidate, len(points))
	for i, point := range points {
		if out[i], err = s.Candidate(point); err != nil {
			return nil, size, err
		}
	}
	return out, size, nil
}
