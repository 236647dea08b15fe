// Package wholefile writes files that are there whole or not at all.
package wholefile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
)

// Write writes a file beside, flushes it and renames it. One that holds the text
// already is left.
func Write(path string, text []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) //nolint:errcheck // it was renamed, or it is of no use
	if _, err := temp.Write(text); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err := errors.Join(temp.Chmod(0o644), temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
