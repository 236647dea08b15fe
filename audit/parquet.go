package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// What the reading of a file may take, however little of it there is. The largest
// published set has 30 MB, which are 300 MB of texts. Tests take less.
var (
	maxParquet int64 = 1 << 30 // bytes of the file
	maxReading int64 = 1 << 30 // of memory, while it is read
	maxWritten int64 = 4 << 30 // of its texts
)

// isParquet reports whether a file's name says that it is Parquet.
func isParquet(path string) bool { return strings.HasSuffix(strings.ToLower(path), ".parquet") }

// table is a file of Parquet that another process reads.
type table struct {
	process *exec.Cmd
	told    bytes.Buffer // by the process, of its death
	from    *io.LimitedReader
	rows    *json.Decoder
	columns []string
}

// openTable starts to read a file. An error says what is wrong with it, in words.
func openTable(path string) (*table, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxParquet:
		return nil, fmt.Errorf("it is larger than %d MiB", maxParquet>>20)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := &table{process: &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{rowsName, strconv.FormatInt(maxReading, 10)},
		Env: []string{"GOTRACEBACK=none"}, Stdin: f,
	}}
	t.process.Stderr = &t.told
	out, err := t.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.process.Start(); err != nil {
		return nil, fmt.Errorf("no process can be started to read it: %w", err)
	}
	t.from = &io.LimitedReader{R: out, N: maxWritten}
	t.rows = json.NewDecoder(t.from)
	first, err := t.next()
	if err == nil && len(first.Columns) == 0 {
		err = errors.New("it has no columns")
	}
	if err != nil {
		t.close()
		return nil, err
	}
	t.columns = first.Columns
	return t, nil
}

// next returns what the process says next, io.EOF behind the last row.
func (t *table) next() (m rowMessage, err error) {
	switch err = t.rows.Decode(&m); {
	case err == nil && m.End:
		return m, io.EOF
	case err == nil && m.Problem != "":
		return m, errors.New(m.Problem)
	case err == nil:
		return m, nil
	case t.from.N <= 0:
		return m, fmt.Errorf("what it holds is longer than %d MiB", maxWritten>>20)
	}
	return m, t.died(err)
}

// outOfMemory is what a process says that is refused memory; the last is the race
// detector's.
var outOfMemory = []string{"out of memory", "cannot allocate memory", "failed to create new OS thread", "pthread_create failed", "failed to allocate"}

// died says why the process has ended before the file.
func (t *table) died(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		_ = t.process.Process.Kill() // what it wrote makes no sense
	}
	failed := t.process.Wait()
	var exit *exec.ExitError
	if errors.As(failed, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
			return fmt.Errorf("it takes longer than %d minutes of a processor to read, or what reads it was killed", readingSeconds/60)
		}
	}
	told := t.told.String()
	// A fault outside of Go's code, which Go tells by this line, is what C libraries and
	// the race detector make of memory that they are refused.
	refused := strings.HasPrefix(told, "SIGSEGV")
	if refused || slices.ContainsFunc(outOfMemory, func(words string) bool { return strings.Contains(told, words) }) {
		return fmt.Errorf("it takes more than %d MiB of memory to read", maxReading>>20)
	}
	said, _, _ := strings.Cut(strings.TrimSpace(told), "\n")
	return fmt.Errorf("what reads it ended: %w: %s", cmp.Or(failed, err), said)
}

// close ends the process.
func (t *table) close() {
	_ = t.process.Process.Kill() // it may have ended
	_ = t.process.Wait()         // of what it came to, nothing more is of interest
}

// parquet reads the pairs of a file.
func (f *finder) parquet(path string, alone bool) error {
	t, err := openTable(path)
	if err != nil {
		if alone {
			return nothing(path+" cannot be read as Parquet: "+err.Error(), "see that the file is whole")
		}
		f.add(asParquet, unusable(path, "it cannot be read as Parquet: "+err.Error(), "see that the file is whole, split it, or take it out"))
		return nil
	}
	defer t.close()
	names := map[string]string{}
	for _, name := range t.columns {
		names[strings.ToLower(name)] = name
	}
	if first(names, referenceNames) == "" || first(names, candidateNames) == "" {
		if alone {
			return nothing(path+" has no columns of a reference and a candidate", `name them "reference" and "candidate", and a claimed speedup "claimed"`)
		}
		return nil // it is about something else
	}
	for number := 1; ; number++ {
		m, err := t.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && number > maxPairs {
			err = tooMany()
		}
		if err != nil {
			f.add(asParquet, unusable(label(path, number, ""), "from here on the file cannot be read: "+err.Error(), "see that the file is whole; what is larger is to be split"))
			return nil
		}
		f.add(asParquet, f.pairFrom(path, object{number: number, bad: m.Bad, texts: f.texts()}, m.Row, names))
	}
}
