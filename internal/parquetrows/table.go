// Package parquetrows reads files of Parquet that others have made. A few bytes of one
// can stand for any amount of data: counts, run lengths, compression and lengths of lists
// all ask for memory before anything is known to be there, and running out of memory ends
// a process. So another process reads it, which has a limit, no environment, and nothing
// to lose. It is this program again: who imports this package can be started as it.
package parquetrows

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

// Limits is what the reading of a file may take, however little of it there is. The
// largest published set has 30 MB, which are 300 MB of texts. Tests take less.
var Limits = struct {
	File    int64 // bytes
	Memory  int64 // bytes, while it is read
	Written int64 // bytes of its texts
}{1 << 30, 1 << 30, 4 << 30}

// Wanted is a column to read: the first of these names, in lower case, that the file
// has in any case. A text of it that is longer than Most bytes or is no UTF-8 is null;
// where Text is set, the row says why.
type Wanted struct {
	Names []string `json:"names"`
	Most  int      `json:"most"`
	Text  bool     `json:"text,omitempty"`
}

// Row is a row of what is wanted, by names in lower case: texts, numbers, bools, null.
type Row struct {
	Values map[string]json.RawMessage
	Bad    map[string]string // why a text is null, in words that follow its name
}

// Table is a file that another process reads.
type Table struct {
	Columns []string // as they are written: those with a value a row

	process *exec.Cmd
	told    bytes.Buffer // by the process, of its death
	from    *io.LimitedReader
	rows    *json.Decoder
}

// Open starts to read what is wanted of a file. An error says what is wrong with it, in
// words that follow its name.
func Open(path string, wanted []Wanted) (*Table, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > Limits.File:
		return nil, fmt.Errorf("it is larger than %d MiB", Limits.File>>20)
	}
	choice, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := &Table{process: &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{rowsName, strconv.FormatInt(Limits.Memory, 10), string(choice)},
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
	t.from = &io.LimitedReader{R: out, N: Limits.Written}
	t.rows = json.NewDecoder(t.from)
	first, err := t.next()
	if err == nil && len(first.Columns) == 0 {
		err = errors.New("it has no columns")
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.Columns = first.Columns
	return t, nil
}

// Next returns the next row, and io.EOF behind the last one.
func (t *Table) Next() (Row, error) {
	m, err := t.next()
	return Row{m.Row, m.Bad}, err
}

// next returns what the process says next, io.EOF behind the last row.
func (t *Table) next() (m rowMessage, err error) {
	switch err = t.rows.Decode(&m); {
	case err == nil && m.End:
		return m, io.EOF
	case err == nil && m.Problem != "":
		return m, errors.New(m.Problem)
	case err == nil:
		return m, nil
	case t.from.N <= 0:
		return m, fmt.Errorf("what it holds is longer than %d MiB", Limits.Written>>20)
	}
	return m, t.died(err)
}

// outOfMemory is what a process says that is refused memory; the last is the race
// detector's.
var outOfMemory = []string{"out of memory", "cannot allocate memory", "failed to create new OS thread", "pthread_create failed", "failed to allocate"}

// died says why the process has ended before the file.
func (t *Table) died(err error) error {
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
		return fmt.Errorf("it takes more than %d MiB of memory to read", Limits.Memory>>20)
	}
	said, _, _ := strings.Cut(strings.TrimSpace(told), "\n")
	return fmt.Errorf("what reads it ended: %w: %s", cmp.Or(failed, err), said)
}

// Close ends the process.
func (t *Table) Close() {
	_ = t.process.Process.Kill() // it may have ended
	_ = t.process.Wait()         // of what it came to, nothing more is of interest
}
