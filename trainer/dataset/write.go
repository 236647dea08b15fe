package dataset

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

const (
	groupBytes = 32 << 20  // of texts in a group of rows, which a writer of Parquet holds
	shardBytes = 256 << 20 // of texts in a file of a dataset's folder
)

// Source is the runs to take, and what must not be.
type Source struct {
	Store *store.Store
	// Each gives the runs one by one, and stops at an error.
	Each func(ctx context.Context, give func(kernelwright.Run) error) error
	// Secret reports whether a text holds what must not leave this machine: a run that
	// has such a text is left out.
	Secret func(text string) bool
}

// Counts says what was written.
type Counts struct {
	Rows      int64            `json:"rows"`
	Runs      int64            `json:"runs"`
	Tasks     int64            `json:"tasks"`
	Certified int64            `json:"certified"` // rows
	Bytes     int64            `json:"bytes"`     // of texts
	Secrets   int64            `json:"secrets"`   // runs that were left out: they hold what looks like a secret
	Empty     int64            `json:"empty"`     // runs without a round
	Coders    map[string]int64 `json:"coders"`    // rows by author
	Devices   map[string]int64 `json:"devices"`
	Statuses  map[string]int64 `json:"statuses"`
	Rewards   map[string]int64 `json:"rewards"`

	tasks map[string]bool
}

// writer takes rows.
type writer interface {
	write(Row) error
	close() error
}

// Write writes rows to a path that is not there: JSON lines or Parquet by its ending,
// else a folder that is a dataset. It is whole, or not there.
func Write(ctx context.Context, path string, from Source, rows Rows) (c Counts, err error) {
	if _, err := os.Lstat(path); err == nil {
		return c, &os.PathError{Op: "write", Path: path, Err: os.ErrExist}
	}
	half, err := os.MkdirTemp(filepath.Dir(path), ".kernelwright-export-")
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(half)) }()
	made := filepath.Join(half, "made")
	var to writer
	ending := filepath.Ext(path)
	switch ending {
	case ".jsonl":
		to, err = newLines(made)
	case ".parquet":
		to, err = newTable(made)
	default:
		to, err = newShards(made)
	}
	if err != nil {
		return c, err
	}
	c, err = fill(ctx, from, rows, to)
	if err = errors.Join(err, to.close()); err != nil {
		return c, err
	}
	if ending != ".jsonl" && ending != ".parquet" {
		if err := os.WriteFile(filepath.Join(made, "README.md"), []byte(card(filepath.Base(path), rows, c)), 0o644); err != nil {
			return c, err
		}
	}
	return c, os.Rename(made, path)
}

func fill(ctx context.Context, from Source, rows Rows, to writer) (Counts, error) {
	c := Counts{Coders: map[string]int64{}, Devices: map[string]int64{}, Statuses: map[string]int64{}, Rewards: map[string]int64{}, tasks: map[string]bool{}}
	r := reader{store: from.Store, rows: rows, held: map[string]bool{}}
	held, err := from.Store.HeldOut(ctx)
	if err != nil {
		return c, err
	}
	for _, fingerprint := range held {
		r.held[fingerprint] = true
	}
	err = from.Each(ctx, func(run kernelwright.Run) error {
		all, err := r.rowsOf(ctx, run)
		if err != nil {
			return fmt.Errorf("run %d: %w", run.ID, err)
		}
		if len(all) == 0 {
			c.Empty++
			return nil
		}
		for _, row := range all {
			if from.Secret != nil && row.holds(from.Secret) {
				c.Secrets++
				return nil
			}
		}
		c.Runs++
		for _, row := range all {
			c.count(row)
			if err := to.write(row); err != nil {
				return err
			}
		}
		return nil
	})
	c.Tasks = int64(len(c.tasks))
	return c, err
}

func (c *Counts) count(r Row) {
	c.Rows++
	c.Bytes += r.bytes()
	c.tasks[r.Task] = true
	c.Coders[r.Coder]++
	c.Devices[r.Device]++
	if r.Certified {
		c.Certified++
	}
	if r.Status != nil {
		c.Statuses[*r.Status]++
	}
	reward := "unknown"
	if r.Reward != nil {
		reward = fmt.Sprint(*r.Reward)
	}
	c.Rewards[reward]++
}

// texts calls see with each of the row's long texts.
func (r Row) texts(see func(string)) {
	see(r.Reference)
	if r.Candidate != nil {
		see(*r.Candidate)
	}
	if r.Reason != nil {
		see(*r.Reason)
	}
	for _, m := range r.Messages {
		see(m.Content)
		for _, c := range m.ToolCalls {
			see(c.Function.Arguments)
		}
	}
}

func (r Row) bytes() (n int64) {
	r.texts(func(text string) { n += int64(len(text)) })
	return n
}

func (r Row) holds(secret func(string) bool) (found bool) {
	r.texts(func(text string) { found = found || secret(text) })
	return found
}

// valid makes of each text one that is UTF-8, as JSON and Parquet want them.
func valid(r Row) Row {
	text := func(s *string) {
		if s != nil {
			*s = strings.ToValidUTF8(*s, "\uFFFD")
		}
	}
	again := func(s *string) *string { // the caller's stays as it is
		if s == nil {
			return nil
		}
		copied := *s
		text(&copied)
		return &copied
	}
	text(&r.Reference)
	r.Candidate, r.Reason = again(r.Candidate), again(r.Reason)
	for i := range r.Messages {
		m := &r.Messages[i]
		text(&m.Content)
		if m.ToolCalls == nil {
			m.ToolCalls = []ToolCall{}
		}
		for j := range m.ToolCalls {
			text(&m.ToolCalls[j].Function.Arguments)
		}
	}
	return r
}

// lines is a file of JSON lines.
type lines struct {
	file   *os.File
	buffer *bufio.Writer
	to     *json.Encoder
}

func newLines(path string) (*lines, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	l := &lines{file: f, buffer: bufio.NewWriterSize(f, 1<<20)}
	l.to = json.NewEncoder(l.buffer)
	l.to.SetEscapeHTML(false)
	return l, nil
}

func (l *lines) write(r Row) error { return l.to.Encode(valid(r)) }

func (l *lines) close() error {
	return errors.Join(l.buffer.Flush(), l.file.Sync(), l.file.Close())
}

// table is a file of Parquet.
type table struct {
	file *os.File
	to   *parquet.GenericWriter[Row]
	held int64
}

func newTable(path string) (*table, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	options := []parquet.WriterOption{parquet.Compression(&parquet.Zstd), parquet.CreatedBy("kernelwright", kernelwright.Version, "")}
	for _, long := range [][]string{{"reference"}, {"candidate"}, {"reason"}, {"messages", "list", "element", "content"}} {
		options = append(options, parquet.SkipPageBounds(long...)) // or a file has its longest texts a second time
	}
	return &table{file: f, to: parquet.NewGenericWriter[Row](f, options...)}, nil
}

func (t *table) write(r Row) error {
	if _, err := t.to.Write([]Row{valid(r)}); err != nil {
		return err
	}
	if t.held += r.bytes(); t.held < groupBytes {
		return nil
	}
	t.held = 0
	return t.to.Flush()
}

func (t *table) close() error {
	return errors.Join(t.to.Close(), t.file.Sync(), t.file.Close())
}

// shards is a folder whose files of Parquet have some rows each.
type shards struct {
	folder string
	now    *table
	n      int
	held   int64
}

func newShards(folder string) (*shards, error) {
	s := &shards{folder: folder}
	if err := os.MkdirAll(filepath.Join(folder, "data"), 0o755); err != nil {
		return nil, err
	}
	return s, s.next()
}

func (s *shards) next() (err error) {
	s.now, err = newTable(filepath.Join(s.folder, "data", fmt.Sprintf("train-%05d.parquet", s.n)))
	s.n, s.held = s.n+1, 0
	return err
}

func (s *shards) write(r Row) error {
	if s.held >= shardBytes {
		if err := s.now.close(); err != nil {
			return err
		}
		if err := s.next(); err != nil {
			return err
		}
	}
	s.held += r.bytes()
	return s.now.write(r)
}

func (s *shards) close() error {
	if s.now == nil {
		return nil
	}
	return s.now.close()
}
