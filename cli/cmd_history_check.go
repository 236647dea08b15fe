package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historyCheckCmd struct {
	Salvage string `help:"Copy whatever can be read into this new file, and check that." placeholder:"FILE" type:"path" predictor:"file"`
}

// Help is shown below the flags.
func (historyCheckCmd) Help() string {
	return "Reads every byte of the record, changes nothing, and may be used beside a daemon: pages and indexes, references between rows, rows against the digests that they carry, texts against their hashes, the search index against its texts, rounds without gaps, runs that agree with their rounds. What is not checked is said, with the reason. Exit code 0 says that the record is sound, or with --salvage that the copy was made; 1 that it is damaged."
}

// Run examines the record, and copies it.
func (c historyCheckCmd) Run(a *app) error {
	settings, _, err := a.settings()
	if err != nil {
		return err
	}
	folder, err := config.DataFolder(settings, a.getenv)
	if err != nil {
		return err
	}
	path := filepath.Join(folder, store.FileName)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nothingRecorded(folder)
	}
	show := newProgress(a.stderr)
	show.begin("history")
	defer show.done()
	progress := func(what string) { show.stage("check", what) }
	found, err := store.Examine(a.ctx, path, progress)
	var damaged *store.DamagedError
	if errors.As(err, &damaged) { // nothing could be examined
		hint := cmp.Or(damaged.Hint, "`kernelwright history check --salvage FILE` tries to copy what can be read; or put a copy of yours in its place")
		err = &Error{Code: ExitFailure, Err: err, Hint: hint}
	}
	if err != nil && (damaged == nil || c.Salvage == "") {
		return cutShort(a.ctx, dataError(folder, err))
	}
	if damaged != nil {
		found.Faults = append(found.Faults, store.Fault{What: damaged.Err.Error(), Count: 1, Examples: []string{}})
	}
	var saved *store.Salvaged
	if c.Salvage != "" {
		out, err := store.Salvage(a.ctx, path, c.Salvage, progress)
		if err != nil {
			hint := "name a new file on a disk with room for a whole record"
			if errors.As(err, &damaged) {
				hint = "nothing of it can be read: put a copy in its place, or move it aside and keep it, and a new record is begun"
			}
			return cutShort(a.ctx, &Error{Code: ExitFailure, Text: "salvage", Err: err, Hint: hint})
		}
		saved = &out
	}
	show.done()
	var failed error
	if !found.Sound() && saved == nil {
		failed = &Error{Code: ExitFailure, Text: path + " is damaged", Hint: salvageHint}
	}
	if a.json {
		return a.printLast(map[string]any{"sound": found.Sound(), "examination": found, "salvaged": saved}, failed)
	}
	return cmp.Or(a.printf("%s", examinationText(found)+salvagedText(saved)), failed)
}

const salvageHint = "`kernelwright history check --salvage FILE` copies what can be read into a new record; or put a copy of yours in its place"

func examinationText(e store.Examination) string {
	var b strings.Builder
	n := func(table string) string {
		if e.Rows[table] < 0 {
			return "an unknown number of " + table
		}
		return fmt.Sprintf("%d %s", e.Rows[table], table)
	}
	if len(e.Rows) > 0 {
		fmt.Fprintf(&b, "%s: %s, %s, %s, %s\n", report.Line(e.Path), n("runs"), n("rounds"), n("tasks"), n("texts"))
	}
	if e.Sound() {
		b.WriteString("sound\n")
	}
	for _, f := range e.Faults {
		fmt.Fprintf(&b, "damaged: %s (%d)\n", report.Line(f.What), f.Count)
		for _, x := range f.Examples {
			for line := range strings.Lines(x) {
				fmt.Fprintf(&b, "  %s\n", report.Line(strings.TrimSuffix(line, "\n")))
			}
		}
	}
	if e.DigestsMS != 0 {
		fmt.Fprintf(&b, "rows from before %s got their digests then: what was changed in them earlier is not noticed\n", time.UnixMilli(e.DigestsMS).Format(time.DateTime))
	}
	for _, u := range e.Unchecked {
		fmt.Fprintf(&b, "not checked: %s: %s\n", u.What, u.Why)
	}
	return b.String()
}

func salvagedText(s *store.Salvaged) string {
	if s == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "salvaged into %s: %d runs, %d rounds\n", report.Line(s.Path), s.Kept["runs"], s.Kept["rounds"])
	for _, table := range slices.Sorted(maps.Keys(s.Lost)) {
		if n := s.Lost[table]; n > 0 {
			fmt.Fprintf(&b, "  lost of %s: %d\n", table, n)
		}
	}
	if len(s.Cut) > 0 {
		fmt.Fprintf(&b, "  %d unfinished runs go on from before a round that was lost\n", len(s.Cut))
	}
	return b.String()
}
