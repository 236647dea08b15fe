// Package tasks makes the tasks that a policy is trained on: it composes
// references of the installed PyTorch's operators, keeps those that are worth
// training on, and keeps apart what a policy is held against.
package tasks

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// DefaultSimilarity is how alike a task may be to another one (CUDA Agent, arXiv
// 2602.24286, section 3.1).
const DefaultSimilarity = 0.9

// Settings say what a set is to be. The same settings, catalogue and machine
// draw the same files.
type Settings struct {
	Seed       int64               `json:"seed"`
	Wanted     map[store.Split]int `json:"wanted"` // how many tasks in each split
	LowMS      float64             `json:"low_ms"` // eager's time
	HighMS     float64             `json:"high_ms"`
	Similarity float64             `json:"similarity"`
	HeldKinds  float64             `json:"held_kinds"` // share of the operator kinds that is never trained on
	Room       float64             `json:"room"`       // share of the training tasks whose fastest baseline is over 1.05 times the floor
	Shares     map[string]float64  `json:"shares"`     // number of operators to how often
	// Kinds are the operator kinds that tasks are composed of, beside held-out ones of their
	// families; none: all of the catalogue.
	Kinds     []string           `json:"kinds,omitempty"`
	Ranks     []int              `json:"ranks,omitempty"` // of the first input, each as often; none: 2 to 5
	Modules   float64            `json:"modules"`         // share of the tasks that is a module of transformers, at most
	DTypes    map[string]float64 `json:"dtypes"`
	Machine   Machine            `json:"machine"`
	Catalogue string             `json:"catalogue"`        // its version
	Writer    string             `json:"writer,omitempty"` // the language model that writes them; empty: they are composed
	Held      []string           `json:"held"`             // the operator kinds of HeldKinds
}

// Machine is what sizes are chosen by.
type Machine struct {
	BytesS      float64 `json:"bytes_s"`
	OperationsS float64 `json:"operations_s"`
	CallMS      float64 `json:"call_ms"`
	// Rates are what operators take on a CPU, by one of Threads threads: see Catalogue.Rates.
	Rates   map[string]float64 `json:"rates,omitempty"`
	Threads int                `json:"threads,omitempty"`
}

// PaperShares are the shares of tasks by their number of operators in CUDA
// Agent's set (arXiv 2602.24286, section 3.1).
var PaperShares = map[string]float64{"1": 3.4, "2": 83.8, "3": 7.6, "4": 2.8, "5": 1.2}

// PaperModules is the share of modules of transformers in that set.
const PaperModules = 0.012

// The origins of tasks.
const (
	originComposed = "composed" // by the combinatorial composer
	originWritten  = "written"  // by a language model
	originImported = "imported"
	// A module of the installed transformers, by itself.
	originTransformers = "transformers"
)

// roomy is over how many times the floor the fastest baseline is where a task has room.
const roomy = 1.05

// Task is a task of a set, as the index has it.
type Task struct {
	File        string      `json:"file"`
	Index       int64       `json:"index"`
	Split       store.Split `json:"split"`
	Level       int         `json:"level"`
	Fingerprint string      `json:"fingerprint"`
	Origin      string      `json:"origin"` // "composed", "written", "transformers" or "imported"
	Operators   []string    `json:"operators"`
	Kinds       []string    `json:"kinds"`
	Primitives  []string    `json:"primitives"` // core ATen
	// Unseen are primitives that no training task of the set has. Held-out tasks only.
	Unseen []string `json:"unseen_primitives,omitempty"`

	Inputs  []kernelwright.TensorSpec `json:"inputs"`
	EagerMS float64                   `json:"eager_ms"`
	// Of a task that is taught there are none of these four.
	CompileMS  float64                      `json:"compile_ms,omitempty"`
	FloorMS    float64                      `json:"floor_ms,omitempty"`
	Bound      string                       `json:"bound,omitempty"` // "memory", "cache" or "compute"
	Room       float64                      `json:"room,omitempty"`  // the fastest baseline over the floor
	Similarity float64                      `json:"similarity"`
	Device     string                       `json:"device"`
	Versions   map[string]string            `json:"versions,omitempty"`
	Launches   []kernelwright.KernelProfile `json:"launches,omitempty"` // eager's, where a profiler looked

	Source string `json:"-"`
}

// HasRoom reports whether a kernel can be 5 % faster than the fastest baseline.
func (t Task) HasRoom() bool { return t.Room > roomy }

// plan is what is to be drawn at an index.
type plan struct {
	split     store.Split
	operators int
	module    bool // of transformers, instead of operators
}

// plan returns what is drawn at an index: it depends on the settings alone, so
// draws may be made in any order.
func (s Settings) plan(index int64) plan {
	r := rand.New(rand.NewPCG(uint64(s.Seed), uint64(index))) //nolint:gosec // what is drawn has to be drawn again
	weights := make([]float64, len(store.Splits))
	for i, split := range store.Splits {
		weights[i] = float64(s.Wanted[split])
	}
	p := plan{split: store.Splits[pick(r, weights)]}
	counts := make([]string, 0, len(s.Shares))
	for n := range s.Shares {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	shares := make([]float64, len(counts))
	for i, n := range counts {
		shares[i] = s.Shares[n]
	}
	if _, err := fmt.Sscan(counts[pick(r, shares)], &p.operators); err != nil {
		p.operators = 2
	}
	p.module = r.Float64() < s.Modules && p.split != store.KindsSplit
	return p
}

// pick draws an index by weights.
func pick(r *rand.Rand, weights []float64) int {
	total := 0.0
	for _, w := range weights {
		total += w
	}
	at := r.Float64() * total
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}

// products and rows are parts of the names of ATen operators that are not
// pointwise.
var (
	products = regexp.MustCompile(`conv|mm$|^mm|bmm|linear$|matmul|attention|bilinear|rnn|lstm|gru`)
	rows     = regexp.MustCompile(`softmax|norm|sum|mean|amax|amin|^max|^min|max_pool|avg_pool|cumprod|cummax|cummin|var|std|prod|argm|topk|sort|median|logsumexp|loss|cdist|pdist`)
)

// Level says how hard a task is by its number and kind of operators, from 1 to
// 8: the number of operators, one more with a reduction among them, two more
// with a product or convolution.
func Level(operators int, aten []string) int {
	level := operators
	if slices.ContainsFunc(aten, func(name string) bool { return rows.MatchString(bare(name)) }) {
		level++
	}
	if slices.ContainsFunc(aten, func(name string) bool { return products.MatchString(bare(name)) }) {
		level += 2
	}
	return min(max(level, 1), 8)
}

func bare(operator string) string {
	name := operator[strings.LastIndexByte(operator, '.')+1:]
	return strings.TrimPrefix(name, "_")
}

// inspected takes over what is known of a reference.
func (t *Task) inspected(of kernelwright.Task) {
	t.Fingerprint, t.Inputs, t.EagerMS = of.Fingerprint, of.Inputs, of.EagerMS
	if len(t.Primitives) == 0 {
		t.Primitives = of.Operators
	}
	t.Level = Level(max(1, len(t.Operators)), of.Operators)
}

// measured takes over what the hardware says of a task.
func (t *Task) measured(v kernelwright.Verdict) {
	t.Device, t.Versions = v.Device, v.Versions
	t.EagerMS, t.CompileMS = v.Baselines["eager"], v.Baselines["compile"]
	t.FloorMS, t.Bound = v.Floor.MS, v.Floor.Bound
	fastest := math.Inf(1)
	for _, ms := range v.Baselines {
		fastest = min(fastest, ms)
	}
	if v.Floor.MS > 0 {
		t.Room = fastest / v.Floor.MS
	}
	if v.EagerProfile != nil {
		t.Launches = v.EagerProfile.Kernels
	}
}

// decode reads a kept draw.
func decode(d store.TaskDraw) (Task, error) {
	var t Task
	if err := json.Unmarshal(d.Detail, &t); err != nil {
		return t, fmt.Errorf("task %d of the set: %w", d.Index, err)
	}
	t.Index, t.Split, t.Source = d.Index, d.Split, d.Source
	return t, nil
}

// Decode reads the kept draws of a set, says of the held-out ones which of their
// primitives no training task has, and returns them by index.
func Decode(draws []store.TaskDraw) ([]Task, error) {
	var all []Task
	trained := map[string]bool{}
	for _, d := range draws {
		if d.Reason != "" {
			continue
		}
		t, err := decode(d)
		if err != nil {
			return nil, err
		}
		if t.Split.Trained() {
			for _, p := range t.Primitives {
				trained[p] = true
			}
		}
		all = append(all, t)
	}
	for i, t := range all {
		if !t.Split.HeldOut() || len(trained) == 0 { // a set that nobody is trained on tells nothing of it
			continue
		}
		for _, p := range t.Primitives {
			if !trained[p] {
				all[i].Unseen = append(all[i].Unseen, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b Task) int { return cmp.Compare(a.Index, b.Index) })
	return all, nil
}

// Differs names what other settings have otherwise, "" where they draw the same.
// What a machine reaches differs a little from one measurement to the next, and is
// the set's own.
func (s Settings) Differs(other Settings) string {
	switch {
	case s.Seed != other.Seed:
		return "seed"
	case slices.ContainsFunc(store.Splits, func(of store.Split) bool { return s.Wanted[of] != other.Wanted[of] }):
		return "number of tasks"
	case s.LowMS != other.LowMS || s.HighMS != other.HighMS:
		return "window of eager's time"
	case s.Similarity != other.Similarity:
		return "similarity"
	case !maps.Equal(s.DTypes, other.DTypes) || !maps.Equal(s.Shares, other.Shares):
		return "share of dtypes or numbers of operators"
	case !slices.Equal(s.Kinds, other.Kinds) || !slices.Equal(s.Ranks, other.Ranks):
		return "choice of operator kinds or ranks"
	case s.Catalogue != other.Catalogue:
		return "PyTorch"
	case s.Modules != other.Modules:
		return "share of modules of transformers"
	case s.Writer != other.Writer:
		return "composer"
	case !slices.Equal(s.Held, other.Held):
		return "choice of held-out operator kinds"
	}
	return ""
}
