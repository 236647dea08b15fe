package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/store"
)

// Operator is one spelling of an operator that was run and works.
type Operator struct {
	Path       string   `json:"path"` // "torch.nn.GELU"
	Kind       string   `json:"kind"` // one for every spelling: "gelu"
	Form       string   `json:"form"` // "module" or "function"
	Family     string   `json:"family"`
	Ranks      []int    `json:"ranks"`      // of the tensors that it works on
	Domain     string   `json:"domain"`     // what its input has to be: "any", "positive", "unit", "above_one"
	Primitives []string `json:"primitives"` // what it comes down to in core ATen
}

// Catalogue is what the installed PyTorch offers.
type Catalogue struct {
	Torch     string
	Operators []Operator
	Tried     int
	LeftOut   map[string]int    // reason to how many
	Left      map[string]string // path to reason

	Transformers   string // the version that is installed; empty: none is
	Modules        int    // of transformers, each a task of its own
	ModulesTried   int
	ModulesLeftOut map[string]int

	raw, modules json.RawMessage // the operators and modules as the composer wrote them
	key          string          // of what it was crawled from
}

// Version says what a set is drawn from.
func (c Catalogue) Version() string {
	if c.Transformers == "" {
		return c.Torch
	}
	return c.Torch + ", transformers " + c.Transformers
}

// crawled is a catalogue as the Python writes it.
type crawled struct {
	Torch     string            `json:"torch"`
	Operators json.RawMessage   `json:"operators"`
	Tried     int               `json:"tried"`
	LeftOut   map[string]int    `json:"left_out"`
	Left      map[string]string `json:"left"`

	Transformers   string          `json:"transformers"`
	Modules        json.RawMessage `json:"modules"`
	ModulesTried   int             `json:"modules_tried"`
	ModulesLeftOut map[string]int  `json:"modules_left_out"`
}

// Crawl returns the catalogue of an interpreter's PyTorch, and of its transformers. It is kept in the data
// folder, for these versions of everything: crawling takes a minute or more. One that
// is stopped goes on where it was. told hears how far it is.
func Crawl(ctx context.Context, dataDir, interpreter, versions string, told func(n, of int)) (Catalogue, error) {
	folder, err := unpack(dataDir)
	if err != nil {
		return Catalogue{}, err
	}
	s := &service{interpreter: interpreter, folder: folder}
	defer s.Close()
	var libraries struct{ Transformers string }
	if err := s.ask(ctx, map[string]any{"op": "libraries"}, &libraries, nil); err != nil {
		return Catalogue{}, fmt.Errorf("crawl the operators: %w", err)
	}
	kept := filepath.Join(folder, "catalogue-"+kernelwright.HashText(versions + libraries.Transformers)[:12]+".json")
	if text, err := os.ReadFile(kept); err == nil {
		if c, err := readCatalogue(text); err == nil {
			c.key = versions + libraries.Transformers
			return c, nil
		}
	}
	journal := func(op string) string { return strings.TrimSuffix(kept, ".json") + "-" + op + ".jsonl" }
	found := map[string]json.RawMessage{}
	ops := []string{"catalogue"}
	if libraries.Transformers != "" {
		ops = append(ops, "borrowed")
	}
	for _, op := range ops {
		var answer struct {
			Catalogue map[string]json.RawMessage `json:"catalogue"`
		}
		if err := s.ask(ctx, map[string]any{"op": op, "journal": journal(op)}, &answer, told); err != nil {
			return Catalogue{}, fmt.Errorf("crawl the operators: %w", err)
		}
		maps.Copy(found, answer.Catalogue)
	}
	text, err := json.Marshal(found)
	if err != nil {
		return Catalogue{}, err
	}
	c, err := readCatalogue(text)
	if err != nil {
		return c, fmt.Errorf("crawl the operators: %w", err)
	}
	c.key = versions + libraries.Transformers
	if err := wholefile.Write(kept, text); err != nil {
		return c, err
	}
	for _, op := range ops {
		if err := os.Remove(journal(op)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
	}
	return c, nil
}

func readCatalogue(text []byte) (Catalogue, error) {
	var c crawled
	if err := json.Unmarshal(text, &c); err != nil {
		return Catalogue{}, err
	}
	out := Catalogue{
		Torch: c.Torch, Tried: c.Tried, LeftOut: c.LeftOut, Left: c.Left, raw: c.Operators,
		Transformers: c.Transformers, ModulesTried: c.ModulesTried, ModulesLeftOut: c.ModulesLeftOut, modules: c.Modules,
	}
	var modules []struct{}
	if len(c.Modules) > 0 {
		if err := json.Unmarshal(c.Modules, &modules); err != nil {
			return Catalogue{}, err
		}
	}
	out.Modules = len(modules)
	if err := json.Unmarshal(c.Operators, &out.Operators); err != nil {
		return Catalogue{}, err
	}
	if len(out.Operators) == 0 {
		return Catalogue{}, fmt.Errorf("none of %d operators works", c.Tried)
	}
	return out, nil
}

// FirstHeld returns the operator kinds that the first of a data folder's sets holds out,
// none where no set does. Later sets hold out the same: a policy is trained on the tasks of
// more than one, and no kind may be trained on in one set and held out in another.
func FirstHeld(sets []store.TaskSet) ([]string, error) {
	for _, set := range sets {
		var s Settings
		if err := json.Unmarshal(set.Settings, &s); err != nil {
			return nil, fmt.Errorf("the settings of the set %s: %w", set.Name, err)
		}
		if len(s.Held) > 0 {
			return s.Held, nil
		}
	}
	return nil, nil
}

// Rates returns what core operators take on this machine's CPU by one thread, in nanoseconds
// an element, of products an operation. It is kept beside the catalogue: the composer chooses
// sizes by it, and is to choose the same ones. A process that dies over it leaves none.
func (c Catalogue) Rates(ctx context.Context, dataDir, interpreter string) (map[string]float64, error) {
	folder, err := unpack(dataDir)
	if err != nil {
		return nil, err
	}
	kept := filepath.Join(folder, "rates-"+kernelwright.HashText(c.key)[:12]+".json")
	var rates map[string]float64
	if text, err := os.ReadFile(kept); err == nil && json.Unmarshal(text, &rates) == nil {
		return rates, nil
	}
	s := &service{interpreter: interpreter, folder: folder}
	defer s.Close()
	var answer struct {
		Rates map[string]float64 `json:"rates"`
	}
	err = s.ask(ctx, map[string]any{"op": "rates", "operators": c.raw}, &answer, nil)
	if err != nil && !errors.Is(err, errServiceDied) {
		return nil, fmt.Errorf("measure operators: %w", err)
	}
	text, err := json.Marshal(answer.Rates)
	if err != nil {
		return nil, err
	}
	return answer.Rates, wholefile.Write(kept, text)
}

// HeldKinds returns the operator kinds of a share of each family that are never
// trained on, the same for the same seed.
func (c Catalogue) HeldKinds(ctx context.Context, dataDir, interpreter string, seed int64, share float64) ([]string, error) {
	folder, err := unpack(dataDir)
	if err != nil {
		return nil, err
	}
	s := &service{interpreter: interpreter, folder: folder}
	defer s.Close()
	var answer struct {
		Kinds []string `json:"kinds"`
	}
	err = s.ask(ctx, map[string]any{"op": "held", "operators": c.raw, "seed": seed, "share": share}, &answer, nil)
	return answer.Kinds, err
}
