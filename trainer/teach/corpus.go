package teach

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// RecordSuffix ends the name of a corpus's record: what came of each task, a line each,
// from which a corpus that was stopped goes on.
const RecordSuffix = ".record"

// OtherError says that a record is of another corpus.
type OtherError struct{ Path, What string }

func (e *OtherError) Error() string {
	return fmt.Sprintf("%s was begun with another %s", e.Path, e.What)
}

// BusyError says that another process works on the corpus.
type BusyError struct{ Path string }

func (e *BusyError) Error() string { return "another process writes " + e.Path }

// head is the first line of a record.
type head struct {
	Settings Settings `json:"settings"`
	Device   string   `json:"device"` // its key
	Version  string   `json:"version"`
}

// differs names what another corpus has otherwise, "" for nothing.
func (h head) differs(o head) string {
	a, b := h, o
	a.Settings.Seed, b.Settings.Seed = 0, 0
	switch {
	case h.Settings.Seed != o.Settings.Seed:
		return "seed"
	case !bytes.Equal(encoded(a.Settings), encoded(b.Settings)):
		return "number of answers, or another request"
	case h.Device != o.Device:
		return "device"
	case h.Version != o.Version:
		return "version of kernelwright"
	}
	return ""
}

// encoded is a value as a line of JSON, with its end.
func encoded(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // texts and numbers alone
		panic(err)
	}
	return b.Bytes()
}

// Pairs makes the corpus of tasks, in their order, and returns what came of it. What was
// done before, up to a kill at any moment, is not done again; the corpus is there, whole,
// when all tasks are done. Errors are *HeldOutError, *OtherError, *BusyError, the
// context's, or infrastructure: after any of them it can be called again.
func Pairs(ctx context.Context, s Settings, all []tasks.Task, o Options) (Counts, error) {
	if len(o.Hardware) == 0 {
		return newCounts(), errors.New("there is no device to verify candidates on")
	}
	for _, t := range all {
		if t.Split.HeldOut() {
			return newCounts(), &HeldOutError{t.Fingerprint, string(t.Split)}
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s.Each = cmp.Or(s.Each, DefaultEach)
	r, err := openRecord(o.Out+RecordSuffix, head{s, o.Hardware[0].Device().Key, kernelwright.Version})
	if err != nil {
		return newCounts(), err
	}
	defer r.close()
	t := &teacher{s, o}
	if err := t.all(ctx, all, r); err != nil {
		return newCounts(), err
	}
	return r.write(all, o.Out)
}

// all does the tasks that the record does not have.
func (t *teacher) all(ctx context.Context, all []tasks.Task, r *record) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	left, found := make(chan tasks.Task), make(chan lesson)
	var at, devices sync.WaitGroup
	at.Go(func() {
		defer close(left)
		begun := map[string]bool{}
		for _, task := range all {
			if begun[task.Fingerprint] || r.has(task.Fingerprint) {
				continue
			}
			begun[task.Fingerprint] = true
			select {
			case left <- task:
			case <-ctx.Done():
				return
			}
		}
	})
	for _, h := range t.Hardware {
		devices.Go(func() {
			for task := range left {
				l, err := t.teach(ctx, h, task)
				if err != nil {
					cancel(fmt.Errorf("task %.12s: %w", task.Fingerprint, err))
					return
				}
				select {
				case found <- l:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	at.Go(func() {
		devices.Wait()
		close(found)
	})
	done, pairs := r.sum()
	for l := range found {
		if err := r.append(l); err != nil {
			cancel(err)
			break
		}
		done, pairs = done+1, pairs+len(l.Pairs)
		if t.Progress != nil {
			t.Progress(Progress{done, len(all), pairs, l.Task})
		}
	}
	for range found { // nobody waits for who does not listen any more
	}
	at.Wait()
	return context.Cause(ctx)
}

// record is what came of each task that is done. One goroutine appends to it.
type record struct {
	path string
	file *os.File

	mu   sync.Mutex
	done map[string]place // by task
	size int64
}

// place is where a task's line is, and what it counts.
type place struct {
	at, size int64
	counts   Counts
}

// openRecord opens a record, or begins it. A line that a crash broke off is cut off.
func openRecord(path string, h head) (_ *record, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	r := &record{path: path, file: f, done: map[string]place{}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &BusyError{path}
		}
		return nil, err
	}
	if err := r.read(h); err != nil {
		return nil, err
	}
	if r.size > 0 {
		return r, f.Truncate(r.size)
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	return r, r.line(h)
}

// read takes the lines that are whole.
func (r *record) read(h head) error {
	lines := bufio.NewReaderSize(r.file, 1<<20)
	for {
		text, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		at := r.size
		if at == 0 {
			var was head
			if err := json.Unmarshal(text, &was); err != nil {
				return fmt.Errorf("%s is no record of a corpus: %w", r.path, err)
			}
			if what := h.differs(was); what != "" {
				return &OtherError{r.path, what}
			}
		} else {
			var l lesson
			if err := json.Unmarshal(text, &l); err != nil || l.Task == "" {
				return fmt.Errorf("%s is damaged at byte %d: remove it, and the corpus is begun anew", r.path, at)
			}
			r.done[l.Task] = place{at, int64(len(text)), l.Counts}
		}
		r.size += int64(len(text))
	}
}

func (r *record) has(task string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.done[task]
	return ok
}

// sum is how many tasks are done, and how many pairs they have.
func (r *record) sum() (done, pairs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.done {
		pairs += p.counts.Pairs
	}
	return len(r.done), pairs
}

// append notes what came of a task: when it returns, no crash loses it.
func (r *record) append(l lesson) error {
	at := r.size
	if err := r.line(l); err != nil {
		return fmt.Errorf("write %s: %w", r.path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[l.Task] = place{at, r.size - at, l.Counts}
	return nil
}

func (r *record) line(v any) error {
	text := encoded(v)
	if _, err := r.file.WriteAt(text, r.size); err != nil {
		return err
	}
	if err := r.file.Sync(); err != nil {
		return err
	}
	r.size += int64(len(text))
	return nil
}

func (r *record) close() { _ = r.file.Close() } // every line was synced

// write makes the corpus of the tasks, in their order, in one piece.
func (r *record) write(all []tasks.Task, path string) (Counts, error) {
	counts := newCounts()
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return counts, err
	}
	defer os.Remove(temp.Name()) //nolint:errcheck // it was renamed, or it is of no use
	out := bufio.NewWriterSize(temp, 1<<20)
	written := map[string]bool{}
	for _, t := range all {
		if written[t.Fingerprint] {
			counts.Left[leftTwice]++
			counts.Tasks++
			continue
		}
		written[t.Fingerprint] = true
		if err := r.copy(r.done[t.Fingerprint], out, &counts); err != nil {
			return counts, errors.Join(err, temp.Close())
		}
	}
	if err := errors.Join(out.Flush(), temp.Chmod(0o644), temp.Sync(), temp.Close()); err != nil {
		return counts, err
	}
	return counts, os.Rename(temp.Name(), path)
}

// copy writes the pairs of a task.
func (r *record) copy(p place, out *bufio.Writer, counts *Counts) error {
	text := make([]byte, p.size)
	if _, err := r.file.ReadAt(text, p.at); err != nil {
		return fmt.Errorf("read %s: %w", r.path, err)
	}
	var l lesson
	if err := json.Unmarshal(text, &l); err != nil {
		return fmt.Errorf("read %s: %w", r.path, err)
	}
	for _, pair := range l.Pairs {
		if _, err := out.Write(encoded(Pair{l.Prompt, pair.Answer, l.Task, pair.Candidate, pair.Schedule})); err != nil {
			return err
		}
	}
	counts.add(l.Counts)
	return nil
}

// Read returns the pairs of a corpus.
func Read(path string) ([]Pair, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var pairs []Pair
	for d := json.NewDecoder(bufio.NewReaderSize(f, 1<<20)); ; {
		var p Pair
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pairs, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s, after %d pairs: %w", path, len(pairs), err)
		}
		pairs = append(pairs, p)
	}
}
