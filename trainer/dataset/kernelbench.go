package dataset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// ofOthers is where the numbers begin of problems that are not KernelBench's, which
// has 100 a level.
const ofOthers = 1001

var (
	levelFolder = regexp.MustCompile(`^level_?([1-9])$`)
	numbered    = regexp.MustCompile(`^0*([1-9]\d{0,3})_`)
	notInNames  = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// problem is a reference with its best certified kernel on each device.
type problem struct {
	level, number int
	name          string
	reference     string // SHA-256
	task          string
	of            int64 // a run that has its text
	kernels       map[string]kernel
}

type kernel struct {
	run    int64
	round  int
	device string
	ms     float64
}

// Indexed is a line of index.jsonl.
type Indexed struct {
	Level     int      `json:"level"`
	Problem   int      `json:"problem"`
	Name      string   `json:"name"`
	Task      string   `json:"task"`
	Reference string   `json:"reference_file"` // path in the folder
	Kernel    string   `json:"kernel_file"`
	SHA256    string   `json:"sha256"` // of the kernel's file, as it was certified
	Device    string   `json:"device"`
	DeviceKey string   `json:"device_key"`
	Run       int64    `json:"run"`
	Round     int      `json:"round"`
	MS        float64  `json:"candidate_ms"`
	Speedup   *float64 `json:"speedup"`
	Against   *string  `json:"against"`
}

// KernelBench writes references and certified kernels as KernelBench's folders have
// them: KernelBench/levelL/N_name.py, and of each device the best kernel of each
// reference as runs/kernelwright-DEVICE/level_L_problem_N_sample_0_kernel.py, a file that
// needs PyTorch alone. index.jsonl has a line a kernel. The path must not be there; it is
// whole, or not there. Memory is some hundred bytes a reference.
func KernelBench(ctx context.Context, path string, from Source) (c Counts, err error) {
	if _, err := os.Lstat(path); err == nil {
		return c, &os.PathError{Op: "write", Path: path, Err: os.ErrExist}
	}
	half, err := os.MkdirTemp(filepath.Dir(path), ".kernelwright-export-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(half)) }()
	problems, c, err := problemsOf(ctx, from)
	if err != nil {
		return c, err
	}
	folder := filepath.Join(half, "made")
	if err := os.MkdirAll(filepath.Join(folder, "KernelBench", "level1"), 0o755); err != nil { // by which the folder is known
		return c, err
	}
	index, err := os.OpenFile(filepath.Join(folder, "index.jsonl"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return c, err
	}
	lines := json.NewEncoder(index)
	for _, p := range problems {
		if err := writeProblem(ctx, from, folder, p, &c, lines); err != nil {
			return c, errors.Join(err, index.Close())
		}
	}
	if err := errors.Join(index.Sync(), index.Close()); err != nil {
		return c, err
	}
	if c.Rows == 0 {
		return c, nil
	}
	return c, os.Rename(folder, path)
}

// problemsOf finds the best kernel of each reference and device, and numbers them.
func problemsOf(ctx context.Context, from Source) ([]*problem, Counts, error) {
	c := Counts{Coders: map[string]int64{}, Devices: map[string]int64{}, Statuses: map[string]int64{}, Rewards: map[string]int64{}}
	found := map[string]*problem{}
	err := from.Each(ctx, func(run kernelwright.Run) error {
		b := run.Best
		if b == nil || b.Certificate == nil || b.Certificate.Status != kernelwright.Certified {
			c.Empty++
			return nil
		}
		task, err := from.Store.RunTask(ctx, run.ID)
		if err != nil {
			return ignoreNotFound(err)
		}
		if from.Secret != nil && from.Secret(task.Source) {
			c.Secrets++
			return nil
		}
		c.Runs++
		hash := kernelwright.HashText(task.Source)
		p := found[hash]
		if p == nil {
			p = &problem{name: run.TaskName, reference: hash, task: run.Task, of: run.ID, kernels: map[string]kernel{}}
			found[hash] = p
		}
		p.place(run.Path, len(task.Operators))
		k, has := p.kernels[run.DeviceKey]
		if !has || b.Certificate.CandidateMS < k.ms {
			p.kernels[run.DeviceKey] = kernel{run.ID, b.Index, run.Device, b.Certificate.CandidateMS}
		}
		return nil
	})
	if err != nil {
		return nil, c, err
	}
	return numberedAll(found), c, nil
}

// place takes level and number from a path of KernelBench; else a level as KernelBench
// means it: one operator, or several.
func (p *problem) place(path string, operators int) {
	level := levelFolder.FindStringSubmatch(filepath.Base(filepath.Dir(path)))
	number := numbered.FindStringSubmatch(filepath.Base(path))
	if level != nil && number != nil {
		p.level, _ = strconv.Atoi(level[1])
		p.number, _ = strconv.Atoi(number[1])
	}
	if p.level == 0 {
		p.level = min(2, max(1, operators))
	}
}

// numberedAll gives each problem a number of its own in its level.
func numberedAll(found map[string]*problem) []*problem {
	all := make([]*problem, 0, len(found))
	for _, p := range found {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *problem) int {
		return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.number, b.number), cmp.Compare(a.name, b.name), cmp.Compare(a.reference, b.reference))
	})
	taken := map[[2]int]bool{}
	for _, p := range all {
		if at := [2]int{p.level, p.number}; p.number > 0 && !taken[at] {
			taken[at] = true
		} else {
			p.number = 0
		}
	}
	next := map[int]int{}
	for _, p := range all {
		if p.number > 0 {
			continue
		}
		n := max(next[p.level], ofOthers)
		for taken[[2]int{p.level, n}] {
			n++
		}
		p.number, next[p.level] = n, n+1
	}
	return all
}

func writeProblem(ctx context.Context, from Source, folder string, p *problem, c *Counts, lines *json.Encoder) error {
	task, err := from.Store.RunTask(ctx, p.of)
	if err != nil {
		return ignoreNotFound(err)
	}
	name := strings.Trim(notInNames.ReplaceAllString(p.name, "_"), "._")
	if n := numbered.FindString(name); n != "" {
		name = name[len(n):]
	}
	reference := filepath.Join("KernelBench", fmt.Sprintf("level%d", p.level), fmt.Sprintf("%d_%s.py", p.number, cmp.Or(name[:min(len(name), 150)], "task")))
	written := false
	for _, key := range sortedKeys(p.kernels) {
		k := p.kernels[key]
		round, err := from.Store.Round(ctx, k.run, k.round)
		if err != nil {
			if err = ignoreNotFound(err); err != nil {
				return err
			}
			continue
		}
		v := round.Certificate
		if v == nil || v.Exported == "" || from.Secret != nil && from.Secret(v.Exported) {
			continue
		}
		place := filepath.Join("runs", "kernelwright-"+notInNames.ReplaceAllString(k.device, "_")+"-"+key[:min(len(key), 8)], fmt.Sprintf("level_%d_problem_%d_sample_0_kernel.py", p.level, p.number))
		if !written {
			if err := writeBelow(folder, reference, task.Source); err != nil {
				return err
			}
			written = true
			c.Tasks++
		}
		if err := writeBelow(folder, place, v.Exported); err != nil {
			return err
		}
		c.Rows++
		c.Certified++
		c.Devices[k.device]++
		line := Indexed{
			Level: p.level, Problem: p.number, Name: p.name, Task: p.task, Reference: filepath.ToSlash(reference), Kernel: filepath.ToSlash(place), SHA256: kernelwright.HashText(v.Exported),
			Device: k.device, DeviceKey: key, Run: k.run, Round: k.round, MS: v.CandidateMS,
		}
		if v.Speedup != nil {
			line.Speedup, line.Against = positive(v.Speedup.Value), optional(v.Speedup.Against)
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

func writeBelow(folder, place, text string) error {
	path := filepath.Join(folder, place)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

func sortedKeys(m map[string]kernel) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
