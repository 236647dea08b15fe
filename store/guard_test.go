package store

import (
	"bytes"
	"database/sql"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// scramble overwrites pages of a database with noise.
func scramble(t testing.TB, path string, pages ...int64) {
	t.Helper()
	f := must(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	noise := rand.NewChaCha8([32]byte{1})
	for _, n := range pages {
		page := must(io.ReadAll(io.LimitReader(noise, 4096)))(t)
		must(f.WriteAt(page, (n-1)*4096))(t)
	}
}

// pagesOf returns the numbers of the pages that a table is on.
func pagesOf(t *testing.T, path, table string) []int64 {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	ok(t, err)
	defer db.Close()
	rows, err := db.Query(`SELECT pageno FROM dbstat WHERE name = ?`, table)
	ok(t, err)
	return must(scanAll(rows, func(r *sql.Rows) (n int64, err error) { return n, r.Scan(&n) }))(t)
}

// A file with damaged pages is not opened to be written to, and stays as it is.
// It is opened to be read.
func TestDamagedPagesAreNotWrittenTo(t *testing.T) {
	lived := lived(t, 20)
	whole := must(os.ReadFile(lived))(t)
	last := int64(len(whole) / 4096)
	schema := pagesOf(t, lived, "sqlite_schema") // without it nothing can be read
	random := rand.New(rand.NewPCG(1, 2))
	page := func() int64 {
		for {
			if n := 2 + random.Int64N(last-1); !slices.Contains(schema, n) {
				return n
			}
		}
	}
	for range 20 {
		path := filepath.Join(t.TempDir(), FileName)
		ok(t, os.WriteFile(path, whole, 0o600))
		pages := []int64{page(), page(), page()}
		scramble(t, path, pages...)
		before := must(os.ReadFile(path))(t)
		s, err := Open(path)
		var damaged *DamagedError
		if !errors.As(err, &damaged) || damaged.Path != path {
			t.Errorf("pages %d: %v", pages, err)
		}
		if s != nil {
			s.Close()
		}
		if !bytes.Equal(before, must(os.ReadFile(path))(t)) {
			t.Errorf("pages %d: the file was changed", pages)
		}
		if s, err = OpenToRead(path); err != nil {
			t.Errorf("pages %d: to read: %v", pages, err)
			continue
		}
		s.Close()
	}
}

// The log of a process that was killed is not folded into a damaged file.
func TestADamagedFileWithALogIsLeftAlone(t *testing.T) {
	path := lived(t, 20)
	s, err := Open(path)
	ok(t, err)
	defer s.Close()
	ok(t, s.Put(t.Context(), "k", "v", []byte("only in the log")))
	killed := filepath.Join(t.TempDir(), FileName)
	for _, end := range []string{"", "-wal"} {
		ok(t, os.WriteFile(killed+end, must(os.ReadFile(path+end))(t), 0o600))
	}
	scramble(t, killed, 5, 6, 7, 8, 9, 10)
	before, log := must(os.ReadFile(killed))(t), must(os.ReadFile(killed+"-wal"))(t)
	var damaged *DamagedError
	if _, err := Open(killed); !errors.As(err, &damaged) {
		t.Errorf("got %v", err)
	}
	if len(log) == 0 || !bytes.Equal(before, must(os.ReadFile(killed))(t)) || !bytes.Equal(log, must(os.ReadFile(killed+"-wal"))(t)) {
		t.Error("it was changed")
	}
}

// What SQLite says of damage later is a *DamagedError for whoever asks, to read
// or to write, and from then on for whoever wants to know.
func TestDamageThatIsMetLater(t *testing.T) {
	var damaged *DamagedError
	for name, ask := range map[string]func(*Store) error{
		"a row":         func(s *Store) error { _, err := s.Run(t.Context(), 1); return err },
		"rows":          func(s *Store) error { _, err := s.Runs(t.Context(), RunFilter{}); return err },
		"a write":       func(s *Store) error { return s.Put(t.Context(), "k", "v", nil) },
		"a transaction": func(s *Store) error { _, err := s.CreateRun(t.Context(), kw.Run{}); return err },
	} {
		path := lived(t, 20)
		last := must(os.Stat(path))(t).Size() / 4096
		s, err := Open(path)
		ok(t, err)
		ok(t, s.Usable())
		for page := int64(2); page <= last; page++ {
			scramble(t, path, page)
		}
		if err := ask(s); !errors.As(err, &damaged) || damaged.Path != path {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Usable(); !errors.As(err, &damaged) {
			t.Errorf("%s, afterwards: %v", name, err)
		}
		s.Close()
	}
}

// A file that was deleted, moved or replaced under who has it open.
func TestAFileThatGoesAwayWhileItIsOpen(t *testing.T) {
	for name, away := range map[string]func(path string) error{
		"deleted":            os.Remove,
		"moved":              func(path string) error { return os.Rename(path, path+".away") },
		"its folder deleted": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".other", []byte("x"), 0o600), os.Rename(path+".other", path))
		},
	} {
		path := filepath.Join(t.TempDir(), "data", FileName)
		s, err := Open(path)
		ok(t, err)
		ok(t, s.Usable())
		ok(t, away(path))
		var gone *GoneError
		if err := s.Usable(); !errors.As(err, &gone) || gone.Replaced != (name == "replaced") || gone.Path != path {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

// BenchmarkOpen is what examining the pages costs.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), FileName)
	s, err := Open(path)
	ok(b, err)
	_, err = s.write.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 250000)
		INSERT INTO cache (kind, key, value, created) SELECT 'k', hex(randomblob(32)), randomblob(600), i FROM n`)
	ok(b, err)
	ok(b, s.Close())
	size := must(os.Stat(path))(b).Size()
	b.SetBytes(size)
	for b.Loop() {
		s, err := Open(path)
		ok(b, err)
		ok(b, s.Close())
	}
	b.ReportMetric(float64(size)/(1<<20), "MB")
}
