package audit

import (
	"fmt"
	"os"

	"github.com/kernelwright/kernelwright"
)

// spool keeps texts in a file without a name, each once, which goes with the process.
type spool struct {
	file *os.File // nil: there is none yet
	size int64
	kept map[string]spooled // by hash
	err  error              // why nothing more can be kept
}

// spooled is a text in a spool.
type spooled struct {
	of         *spool
	at, length int64
	err        error
}

// keep puts a text away. Where that fails, reading it will say why.
func (s *spool) keep(text string) span {
	hash := kernelwright.HashText(text)
	if known, has := s.kept[hash]; has {
		return known
	}
	if s.file == nil && s.err == nil {
		s.open()
	}
	if s.err != nil {
		return spooled{err: s.err}
	}
	if _, err := s.file.WriteAt([]byte(text), s.size); err != nil {
		s.err = fmt.Errorf("its text cannot be kept in %s: %w", os.TempDir(), err)
		return spooled{err: s.err}
	}
	put := spooled{of: s, at: s.size, length: int64(len(text))}
	s.size += put.length
	s.kept[hash] = put
	return put
}

func (s *spool) open() {
	f, err := os.CreateTemp("", "kernelwright-audit-*")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err != nil {
		s.err = fmt.Errorf("its text cannot be kept in %s: %w", os.TempDir(), err)
		return
	}
	s.file, s.kept = f, map[string]spooled{}
}

func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

func (p spooled) text() (string, error) {
	text := make([]byte, p.length)
	err := p.err
	if err == nil {
		_, err = p.of.file.ReadAt(text, p.at)
	}
	if err != nil {
		return "", invalid(err.Error(), "make room there, or name another folder in TMPDIR, and give the command again")
	}
	return string(text), nil
}
