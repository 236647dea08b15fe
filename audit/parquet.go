package audit

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/internal/parquetrows"
	"github.com/kernelwright/kernelwright/task"
)

// isParquet reports whether a file's name says that it is Parquet.
func isParquet(path string) bool { return strings.HasSuffix(strings.ToLower(path), ".parquet") }

// maxWord is the longest text that is taken of a column that holds none of a pair's texts.
const maxWord = 1 << 10

// ofPair is what is read of a file's columns.
func ofPair() (wanted []parquetrows.Wanted) {
	for _, names := range [][]string{referenceNames, functionalNames, candidateNames} {
		wanted = append(wanted, parquetrows.Wanted{Names: names, Most: task.MaxBytes, Text: true})
	}
	for _, name := range slices.Concat(claimNames, againstNames, calledNames, []string{levelField, taskField}) {
		wanted = append(wanted, parquetrows.Wanted{Names: []string{name}, Most: maxWord})
	}
	return wanted
}

// parquet reads the pairs of a file.
func (f *finder) parquet(path string, alone bool) error {
	t, err := parquetrows.Open(path, ofPair())
	if err != nil {
		if alone {
			return nothing(path+" cannot be read as Parquet: "+err.Error(), "see that the file is whole")
		}
		f.add(asParquet, unusable(path, "it cannot be read as Parquet: "+err.Error(), "see that the file is whole, split it, or take it out"))
		return nil
	}
	defer t.Close()
	names := map[string]string{}
	for _, name := range t.Columns {
		names[strings.ToLower(name)] = name
	}
	if first(names, referenceNames) == "" || first(names, candidateNames) == "" {
		if alone {
			return nothing(path+" has no columns of a reference and a candidate", `name them "reference" and "candidate", and a claimed speedup "claimed"`)
		}
		return nil // it is about something else
	}
	for number := 1; ; number++ {
		m, err := t.Next()
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
		f.add(asParquet, f.pairFrom(path, object{number: number, bad: m.Bad, texts: f.texts()}, m.Values, names))
	}
}
