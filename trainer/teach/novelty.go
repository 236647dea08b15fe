package teach

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
)

// Candidate is a right one of a policy.
type Candidate struct {
	Task   kernelwright.Task // as inspected
	Source string
	Tokens int // of the policy's tokenizer; 0: not known
}

// Novelty is how much of a policy's right candidates is its own. A candidate is a copy
// where its text is, up to renaming (Normal), that of a candidate it was taught by, or
// of a point of the built-in Coder's schedule space for its task.
type Novelty struct {
	Candidates int `json:"candidates"`
	Different  int `json:"different"` // of them, up to renaming
	Taught     int `json:"taught"`    // copies of what it was taught by
	Space      int `json:"space"`     // copies of points
	Copies     int `json:"copies"`    // of either
	// Share is that of copies, nil of no candidates.
	Share *float64 `json:"share"`
	// Whole is of how many candidates the whole space of their task was looked at; of
	// others only so much as was allowed, so that they may be copies all the same.
	Whole int `json:"whole"`
	// Of candidates whose tokens are known, nil of none: the mean of each.
	Tokens             *float64 `json:"tokens"`
	CharactersPerToken *float64 `json:"characters_per_token"`
}

// DefaultLook is how many points of each space are compared with.
const DefaultLook = 1 << 14

// Measure compares candidates with what their policy was taught by, as sources, and with
// at most so many points of each task's space (0: DefaultLook), which the seed draws. The
// error is the context's.
func Measure(ctx context.Context, candidates []Candidate, taught []string, d kernelwright.Device, most int64, seed int64) (Novelty, error) {
	n := Novelty{Candidates: len(candidates)}
	if most == 0 {
		most = DefaultLook
	}
	type key = [sha256.Size]byte
	keyOf := func(source string) key { return sha256.Sum256([]byte(Normal(source))) }
	known := map[key]bool{}
	for _, source := range taught {
		known[keyOf(source)] = true
	}
	different := map[key]bool{}
	byTask := map[string][]int{} // by the reference's text
	keys := make([]key, len(candidates))
	var order []string
	for i, c := range candidates {
		keys[i] = keyOf(c.Source)
		different[keys[i]] = true
		if byTask[c.Task.Source] == nil {
			order = append(order, c.Task.Source)
		}
		byTask[c.Task.Source] = append(byTask[c.Task.Source], i)
	}
	n.Different = len(different)
	point := make([]bool, len(candidates))
	for _, source := range order {
		of := byTask[source]
		left := slices.Clone(of)
		whole, err := walk(ctx, candidates[of[0]].Task, d, most, seed, func(text string) bool {
			k := keyOf(text)
			left = slices.DeleteFunc(left, func(i int) bool {
				point[i] = point[i] || keys[i] == k
				return point[i]
			})
			return len(left) > 0
		})
		if err != nil {
			return n, err
		}
		if whole || len(left) == 0 {
			n.Whole += len(of)
		} else {
			n.Whole += len(of) - len(left)
		}
	}
	for i := range candidates {
		if known[keys[i]] {
			n.Taught++
		}
		if point[i] {
			n.Space++
		}
		if known[keys[i]] || point[i] {
			n.Copies++
		}
	}
	n.count(candidates)
	return n, nil
}

// count fills in the means.
func (n *Novelty) count(candidates []Candidate) {
	if n.Candidates > 0 {
		share := float64(n.Copies) / float64(n.Candidates)
		n.Share = &share
	}
	tokens, characters, known := 0, 0, 0
	for _, c := range candidates {
		if c.Tokens > 0 {
			known, tokens, characters = known+1, tokens+c.Tokens, characters+len([]rune(c.Source))
		}
	}
	if known > 0 {
		mean, per := float64(tokens)/float64(known), float64(characters)/float64(tokens)
		n.Tokens, n.CharactersPerToken = &mean, &per
	}
}

// walk gives the programs of a task's space, and returns whether these were all.
func walk(ctx context.Context, t kernelwright.Task, d kernelwright.Device, most, seed int64, yield func(text string) bool) (whole bool, err error) {
	space, err := coder.Builtin{}.Space(ctx, kernelwright.CoderInput{Task: t, Device: d})
	if errors.As(err, new(*kernelwright.DeclinedError)) {
		return true, nil // there is none
	}
	if err != nil {
		return false, err
	}
	whole = space.Points() <= most
	err = space.Walk(ctx, uint64(seed), most, func(_ int64, text string) bool { return yield(text) })
	return whole, err
}

// Sources returns the candidates of a corpus.
func Sources(pairs []Pair) ([]string, error) {
	sources := make([]string, len(pairs))
	for i, p := range pairs {
		c, err := coder.Read(p.Answer, "", coder.Builtin{}.Name())
		if err != nil {
			return nil, err
		}
		sources[i] = c.Source
	}
	return sources, nil
}
