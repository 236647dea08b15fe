package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/parquet-go/parquet-go"
)

// maxParquet bounds a file that is read: the largest published set has some 30 MB.
const maxParquet = 1 << 30

// isParquet reports whether a file's name says that it is Parquet.
func isParquet(path string) bool { return strings.HasSuffix(strings.ToLower(path), ".parquet") }

// cells reads single values of a file of Parquet. Who asks for rows in their
// order has each page decoded once.
type cells struct {
	path   string
	file   *os.File
	groups []parquet.RowGroup
	begin  []int64           // the first row of each group, and how many rows there are
	names  map[string]string // as they are written, by lower case

	mu      sync.Mutex // guards what follows
	columns map[string]*column
}

// column is where one column is read.
type column struct {
	index  int // of the file's
	group  int
	pages  parquet.Pages // nil: nothing was read
	page   parquet.Page
	values []parquet.Value // of the page
	first  int64           // their first row
}

// openCells opens a file. Only columns that have a value a row are found.
func openCells(path string) (c *cells, err error) {
	defer undamaged(&err)
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
	defer func() {
		if err != nil || c == nil {
			_ = f.Close() // it was only read
		}
	}()
	whole, err := parquet.OpenFile(f, info.Size(), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	c = &cells{path: path, file: f, groups: whole.RowGroups(), begin: []int64{0}, names: map[string]string{}, columns: map[string]*column{}}
	for _, g := range c.groups {
		c.begin = append(c.begin, c.rows()+g.NumRows())
	}
	for _, of := range whole.Root().Columns() {
		if of.Leaf() && !of.Repeated() {
			c.names[strings.ToLower(of.Name())] = of.Name()
			c.columns[of.Name()] = &column{index: of.Index()}
		}
	}
	return c, nil
}

// undamaged makes an error of a panic: the library panics on some damaged files.
func undamaged(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("it is damaged: %v", r)
	}
}

func (c *cells) rows() int64 { return c.begin[len(c.begin)-1] }

func (c *cells) close() error { return c.file.Close() }

// value returns what a row, from 0, has in a column: a string, a bool or a number;
// nil for nothing and for what is none of these.
func (c *cells) value(row int64, name string) (_ any, err error) {
	defer undamaged(&err)
	c.mu.Lock()
	defer c.mu.Unlock()
	of, known := c.columns[name]
	if !known {
		return nil, nil
	}
	if err := c.seek(of, row); err != nil {
		return nil, err
	}
	switch v := of.values[row-of.first]; v.Kind() {
	case parquet.ByteArray:
		return string(v.ByteArray()), nil
	case parquet.Boolean:
		return v.Boolean(), nil
	case parquet.Int32:
		return v.Int32(), nil
	case parquet.Int64:
		return v.Int64(), nil
	case parquet.Float:
		return number(float64(v.Float())), nil
	case parquet.Double:
		return number(v.Double()), nil
	}
	return nil, nil
}

// number is what JSON can hold.
func number(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return f
}

// seek has the page of a row decoded.
func (c *cells) seek(of *column, row int64) error {
	if row < 0 || row >= c.rows() {
		return io.ErrUnexpectedEOF
	}
	if of.pages != nil && row >= of.first && row < of.first+int64(len(of.values)) {
		return nil
	}
	group, here := slices.BinarySearch(c.begin, row)
	if !here {
		group--
	}
	for c.begin[group+1] <= row { // groups without a row
		group++
	}
	if of.pages == nil || of.group != group || row < of.first {
		of.leave()
		of.pages, of.group = c.groups[group].ColumnChunks()[of.index].Pages(), group
		if err := of.pages.SeekToRow(row - c.begin[group]); err != nil {
			return err
		}
		of.first = row
	}
	for row >= of.first+int64(len(of.values)) {
		if err := of.next(); err != nil {
			return err
		}
	}
	return nil
}

// next decodes the page behind the one that is decoded.
func (of *column) next() error {
	first := of.first + int64(len(of.values))
	parquet.Release(of.page)
	of.page, of.values = nil, nil
	page, err := of.pages.ReadPage()
	if err != nil {
		return err
	}
	values := make([]parquet.Value, page.NumValues())
	n, err := page.Values().ReadValues(values)
	if err != nil && !errors.Is(err, io.EOF) || n == 0 {
		return cause(err)
	}
	of.page, of.values, of.first = page, values[:n], first
	return nil
}

func cause(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// leave gives back what was read.
func (of *column) leave() {
	if of.pages != nil {
		parquet.Release(of.page)
		_ = of.pages.Close() // it was only read
	}
	of.pages, of.page, of.values = nil, nil, nil
}

// cell is a text in a file of Parquet.
type cell struct {
	*cells
	row  int64
	name string
}

func (c cell) text() (string, error) {
	v, err := c.value(c.row, c.name)
	if err != nil {
		return "", invalid("it cannot be read: "+err.Error(), "see that the file and its disk are in order")
	}
	text, _ := v.(string) // another type than before is another text
	return text, nil
}

// parquet reads the pairs of a file.
func (f *finder) parquet(path string, alone bool) error {
	c, err := openCells(path)
	if err != nil {
		if alone {
			return nothing(path+" cannot be read as Parquet: "+err.Error(), "see that the file is whole")
		}
		f.add(asParquet, unusable(path, "it cannot be read as Parquet: "+err.Error(), "see that the file is whole, or take it out"))
		return nil
	}
	f.set.open = append(f.set.open, c)
	if first(c.names, referenceNames) == "" || first(c.names, candidateNames) == "" {
		if alone {
			return nothing(path+" has no columns of a reference and a candidate", `name them "reference" and "candidate", and a claimed speedup "claimed"`)
		}
		return nil // it is about something else
	}
	for row := range c.rows() {
		o := object{cells: c, row: row, number: int(row) + 1}
		fields, err := c.fields(row)
		if err != nil {
			f.add(asParquet, unusable(label(path, o.number, ""), "from here on the file cannot be read: "+err.Error(), "see that the file is whole"))
			return nil //nolint:nilerr // it is told of the row
		}
		f.add(asParquet, f.pairFrom(path, o, fields, c.names))
	}
	return nil
}

// fields returns what a row says of a pair, by names in lower case, as JSON.
func (c *cells) fields(row int64) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	for _, list := range [][]string{referenceNames, functionalNames, candidateNames, claimNames, againstNames, calledNames, {levelField, taskField}} {
		for _, low := range list {
			name, has := c.names[low]
			if !has {
				continue
			}
			v, err := c.value(row, name)
			if err != nil {
				return nil, err
			}
			if fields[low], err = json.Marshal(v); err != nil {
				return nil, err
			}
		}
	}
	return fields, nil
}
