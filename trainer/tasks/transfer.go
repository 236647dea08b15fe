package tasks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/parquet-go/parquet-go"

	"github.com/kernelwright/kernelwright/internal/parquetrows"
	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// Row is a task as CUDA-Agent-Ops-6K (BytedTsinghua-SIA, Hugging Face) has it.
type Row struct {
	Ops        string `json:"ops" parquet:"ops"`                 // a JSON list of operators
	DataSource string `json:"data_source" parquet:"data_source"` // "torch#2": two operators
	Code       string `json:"code" parquet:"code"`
}

// ExportedRow is a Row and what a trainer wants of the task beside it.
type ExportedRow struct {
	Ops        string `json:"ops" parquet:"ops"`
	DataSource string `json:"data_source" parquet:"data_source"`
	Code       string `json:"code" parquet:"code"`
	ID         string `json:"id" parquet:"id"` // the task's fingerprint
	Level      int64  `json:"level" parquet:"level"`
	Split      string `json:"split" parquet:"split"`
}

// RowOf returns a task as a row.
func RowOf(t Task) (ExportedRow, error) {
	names := make([]string, len(t.Operators))
	for i, path := range t.Operators {
		names[i] = strings.NewReplacer("torch.nn.functional.", "F.", "torch.nn.", "nn.").Replace(path)
	}
	ops, err := json.Marshal(names)
	return ExportedRow{
		Ops: string(ops), DataSource: fmt.Sprintf("torch#%d", max(1, len(names))), Code: t.Source,
		ID: t.Fingerprint, Level: int64(t.Level), Split: string(t.Split),
	}, err
}

// Export writes tasks to a path: a file of JSON lines or Parquet by its ending,
// else a folder of reference files with an index.
func Export(path string, all []Task) error {
	ending := filepath.Ext(path)
	if ending != ".jsonl" && ending != ".parquet" {
		return WriteFolder(path, all)
	}
	rows := make([]ExportedRow, len(all))
	for i, t := range all {
		var err error
		if rows[i], err = RowOf(t); err != nil {
			return err
		}
	}
	var text bytes.Buffer
	if ending == ".parquet" {
		if err := parquet.Write(&text, rows); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return wholefile.Write(path, text.Bytes())
	}
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	return wholefile.Write(path, text.Bytes())
}

// maxRows bounds a file that is read: CUDA-Agent-Ops-6K is 20 MB.
const maxRows = 1 << 30 // bytes

// ReadAny returns the references at a path: a file of them, a folder, JSON lines
// or Parquet.
func ReadAny(path string) ([]Protected, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxRows {
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxRows>>20)
	}
	switch ending := filepath.Ext(path); {
	case info.IsDir():
		return readFolder(path)
	case ending == ".jsonl":
		return readLines(path)
	case ending == ".parquet":
		return readParquet(path)
	}
	f, err := task.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return []Protected{{path, f.Source}}, nil
}

func readFolder(path string) ([]Protected, error) {
	var all []Protected
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(p) != ".py" {
			return err
		}
		f, err := task.Read(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		all = append(all, Protected{p, f.Source})
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s holds no *.py file", path)
	}
	return all, err
}

func readLines(path string) ([]Protected, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Protected
	lines := bufio.NewReaderSize(f, 1<<20)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var row Row
			if bad := json.Unmarshal(line, &row); bad != nil {
				return nil, fmt.Errorf("%s:%d is no JSON object with a text `code`: %w", path, n, bad)
			}
			if row.Code == "" {
				return nil, fmt.Errorf("%s:%d has no `code`", path, n)
			}
			all = append(all, Protected{fmt.Sprintf("%s:%d", path, n), row.Code})
		}
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// readParquet reads a file that may be anybody's: package parquetrows bounds what that
// takes.
func readParquet(path string) (all []Protected, err error) {
	t, err := parquetrows.Open(path, []parquetrows.Wanted{{Names: []string{"code"}, Most: task.MaxBytes, Text: true}})
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read as Parquet: %w", path, err)
	}
	defer t.Close()
	if !slices.ContainsFunc(t.Columns, func(name string) bool { return strings.EqualFold(name, "code") }) {
		return nil, fmt.Errorf("%s has no column `code`", path)
	}
	held := 0
	for n := 0; ; n++ {
		row, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read from row %d on: %w", path, n, err)
		}
		var code *string
		if err := json.Unmarshal(row.Values["code"], &code); err != nil || code == nil || *code == "" {
			return nil, fmt.Errorf("row %d of %s has no `code`%s", n, path, because(row.Bad["code"]))
		}
		if held += len(*code); held > maxRows { // a file may name one text any number of times
			return nil, fmt.Errorf("the references of %s take more than %d MiB", path, maxRows>>20)
		}
		all = append(all, Protected{fmt.Sprintf("%s:%d", path, n), *code})
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// OverlapsError says that references that are brought in are like tasks that they
// must not be like: held-out ones like those that are trained on, or the reverse.
type OverlapsError struct {
	Count, Of  int
	File, To   string // the first of them
	Similarity float64
	Split      store.Split // that they were meant for
}

func (e *OverlapsError) Error() string {
	other := "the training task"
	if !e.Split.HeldOut() {
		other = "the held-out task"
	}
	return fmt.Sprintf("%d of %d references for the split %s overlap with tasks on the other side of the gate: the first, %s, is %.2f alike to %s %s", e.Count, e.Of, e.Split, e.File, e.Similarity, other, e.To)
}

// Import brings references to a split of a set. They pass the same filters as
// those that are composed. Where one overlaps with the other side of the gate,
// none is brought in: *OverlapsError.
func (m *Maker) Import(ctx context.Context, set store.TaskSet, s Settings, split store.Split, files []Protected) error {
	state, err := m.resume(ctx, set, s)
	if err != nil {
		return err
	}
	defer state.like.Close()
	if err := m.overlap(ctx, state.like, s, split, files); err != nil {
		return err
	}
	files = slices.DeleteFunc(slices.Clone(files), func(f Protected) bool {
		return slices.ContainsFunc(state.like.known, func(k knownFile) bool { return k.tag == ownTag(split) && k.source == f.Source })
	})
	state.wanted = map[store.Split]int{split: int(state.kept[split].Load()) + len(files)}
	s.Wanted, s.Room = state.wanted, 0 // what people bring need not leave room
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	drafts := make(chan draft)
	all.Go(func() {
		defer close(drafts)
		for i, f := range files {
			select {
			case drafts <- draft{index: state.next + int64(i), plan: plan{split: split}, source: f.Source, task: Task{Origin: originImported}}:
			case <-ctx.Done():
				return
			}
		}
	})
	measured := inOrder(ctx, &all, drafts, len(m.Hardware), func(worker int, d draft) draft {
		return m.measure(ctx, m.Hardware[worker], s, state, d)
	})
	for d := range measured {
		if d.err != nil {
			return d.err
		}
		if len(d.task.Operators) == 0 {
			d.task.Operators = d.task.Kinds
		}
		state.missed.Store(0)
		if err := m.decide(ctx, set, s, state, d); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// overlap returns an *OverlapsError where a file is like a task on the other side.
func (m *Maker) overlap(ctx context.Context, j *comparer, s Settings, split store.Split, files []Protected) error {
	other := map[string]bool{tagHeld: true, tagOwnHeld: true}
	if split.HeldOut() {
		other = map[string]bool{tagTrained: true, tagOwn: true}
	}
	found := &OverlapsError{Of: len(files), Split: split}
	for _, f := range files {
		l, err := j.likeTagged(ctx, f.Source, other, s.Similarity)
		if err != nil {
			return err
		}
		if l.Similarity > s.Similarity {
			if found.Count++; found.Count == 1 {
				found.File, found.To, found.Similarity = f.Name, l.To, l.Similarity
			}
		}
	}
	if found.Count > 0 {
		return found
	}
	return nil
}
