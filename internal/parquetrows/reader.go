package parquetrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
)

// rowsName is what a process of this program is called that reads Parquet on its
// standard input, and does nothing else. Its arguments are the memory that it may take,
// in bytes, and the columns that are wanted, as JSON.
const rowsName = "kernelwright: rows of Parquet"

func init() {
	if len(os.Args) != 3 || os.Args[0] != rowsName {
		return
	}
	memory, err := strconv.ParseInt(os.Args[1], 10, 64)
	if err == nil {
		err = limit(memory)
	}
	var wanted []Wanted
	if err == nil {
		err = json.Unmarshal([]byte(os.Args[2]), &wanted)
	}
	if err == nil {
		err = writeRows(os.Stdin, os.Stdout, wanted)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// readingSeconds is how much processor time the reading of one file may take.
const readingSeconds = 600

// limit has the kernel refuse this process more memory than it has now, but for so
// many bytes, and end it when it has computed for readingSeconds.
func limit(memory int64) error {
	debug.SetMemoryLimit(memory / 4 * 3) // what can be given back is, before it comes to that
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	has := uint64(0)
	if _, after, ok := strings.Cut(string(status), "VmData:"); ok {
		_, _ = fmt.Sscan(after, &has) // in kB; the file is the kernel's
	}
	for resource, most := range map[int]uint64{
		syscall.RLIMIT_DATA: has<<10 + uint64(max(memory, 0)),
		syscall.RLIMIT_CPU:  readingSeconds, syscall.RLIMIT_CORE: 0,
	} {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(resource, &now); err != nil {
			return err
		}
		most = min(most, now.Max) // somebody else may have set less
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}

// rowMessage is one of those that the process writes, as lines of JSON: the columns,
// the rows in their order, and the end or what is wrong. Where the last one is
// missing, something has ended the process.
type rowMessage struct {
	Columns []string                   `json:"columns,omitempty"` // as they are written: those with a value a row
	Row     map[string]json.RawMessage `json:"row,omitempty"`     // by names in lower case, of those that are wanted
	Bad     map[string]string          `json:"bad,omitempty"`     // why a value of the row is no text
	Problem string                     `json:"problem,omitempty"`
	End     bool                       `json:"end,omitempty"`
}

// writeRows writes what a file has. An error is of the writing.
func writeRows(in *os.File, out io.Writer, wanted []Wanted) error {
	to := json.NewEncoder(out)
	to.SetEscapeHTML(false)
	last := rowMessage{End: true}
	writing := func(m rowMessage) error {
		if err := to.Encode(m); err != nil {
			return &writeError{err}
		}
		return nil
	}
	err := rowsOf(in, wanted, writing)
	var failed *writeError
	if errors.As(err, &failed) {
		return err
	}
	if err != nil {
		last = rowMessage{Problem: err.Error()}
	}
	return to.Encode(last)
}

type writeError struct{ error }

// rowsOf reads a file, and hands over its columns and rows. The library panics on
// some damaged files.
func rowsOf(in *os.File, wanted []Wanted, yield func(rowMessage) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is damaged: %v", r)
		}
	}()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	whole, err := parquet.OpenFile(in, info.Size(), parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		return err
	}
	all := rowMessage{}
	columns := map[string]int{} // by names in lower case
	for _, of := range whole.Root().Columns() {
		if of.Leaf() && !of.Repeated() {
			all.Columns = append(all.Columns, of.Name())
			columns[strings.ToLower(of.Name())] = of.Index()
		}
	}
	if err := yield(all); err != nil {
		return err
	}
	read := chosen(wanted, columns)
	if len(read) == 0 {
		return nil
	}
	for _, group := range whole.RowGroups() {
		if err := rowsOfGroup(group, read, yield); err != nil {
			return err
		}
	}
	return nil
}

// readColumn is one that is wanted.
type readColumn struct {
	name  string // in lower case
	index int
	Wanted
}

// chosen is what is read of a file's columns: of each that is wanted the first name.
func chosen(wanted []Wanted, columns map[string]int) (read []readColumn) {
	for _, w := range wanted {
		for _, name := range w.Names {
			if index, has := columns[name]; has {
				read = append(read, readColumn{name, index, w})
				break
			}
		}
	}
	return read
}

func rowsOfGroup(group parquet.RowGroup, read []readColumn, yield func(rowMessage) error) (err error) {
	var cursors []*cursor
	defer func() {
		for _, c := range cursors {
			c.close()
		}
	}()
	for _, of := range read {
		cursors = append(cursors, &cursor{pages: group.ColumnChunks()[of.index].Pages()})
	}
	for range group.NumRows() {
		m := rowMessage{Row: map[string]json.RawMessage{}, Bad: map[string]string{}}
		for i, of := range read {
			v, err := cursors[i].next()
			if err != nil {
				return err
			}
			value, bad := plainValue(v, of.Most)
			if bad != "" && of.Text {
				m.Bad[of.name] = bad
			}
			if m.Row[of.name], err = json.Marshal(value); err != nil {
				return err
			}
		}
		if err := yield(m); err != nil {
			return err
		}
	}
	return nil
}

// plainValue is what JSON has for a value: a string, a bool or a number; nil for
// nothing and for what is none of these. Bad says why a text is not taken.
func plainValue(v parquet.Value, most int) (_ any, bad string) {
	switch v.Kind() {
	case parquet.ByteArray:
		switch text := v.ByteArray(); {
		case len(text) > most:
			return nil, fmt.Sprintf("it is larger than %d MiB", most>>20)
		case !utf8.Valid(text):
			return nil, "its text is not UTF-8"
		default:
			return string(text), ""
		}
	case parquet.Boolean:
		return v.Boolean(), ""
	case parquet.Int32:
		return v.Int32(), ""
	case parquet.Int64:
		return v.Int64(), ""
	case parquet.Float:
		return finite(float64(v.Float())), ""
	case parquet.Double:
		return finite(v.Double()), ""
	}
	return nil, ""
}

// finite is a number that JSON can hold, or nil.
func finite(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return f
}

// cursor reads the values of one column, one after the other.
type cursor struct {
	pages  parquet.Pages
	page   parquet.Page // nil: the next one is to be read
	from   parquet.ValueReader
	values [64]parquet.Value
	at, n  int
}

// next returns a value, which is good until the next one is asked for.
func (c *cursor) next() (parquet.Value, error) {
	for c.at == c.n {
		if c.page == nil {
			page, err := c.pages.ReadPage()
			if err != nil {
				return parquet.Value{}, ended(err)
			}
			c.page, c.from = page, page.Values()
		}
		n, err := c.from.ReadValues(c.values[:])
		if err != nil && !errors.Is(err, io.EOF) {
			return parquet.Value{}, err
		}
		if c.at, c.n = 0, n; n == 0 {
			parquet.Release(c.page)
			c.page = nil
		}
	}
	c.at++
	return c.values[c.at-1], nil
}

// ended says of a column that has come to its end that rows are missing.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("a column has fewer values than the file has rows")
	}
	return err
}

func (c *cursor) close() {
	if c.page != nil {
		parquet.Release(c.page)
	}
	_ = c.pages.Close() // it was only read
}
