package policies

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Export copies a policy's folder to one that is not there yet. What was changed by hand
// is a *ChangedError, and nothing is written.
func (r *Registry) Export(ctx context.Context, p Policy, to string) (err error) {
	if err := r.Check(ctx, p); err != nil {
		return err
	}
	if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(err, &Error{Text: fmt.Sprintf("there is something at %s already", to), Hint: "name a folder that is not there yet"})
	}
	beside, err := os.MkdirTemp(filepath.Dir(to), unfinished)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(beside))
		}
	}()
	if _, err := (&copying{ctx: ctx}).model(p.Folder, beside); err != nil {
		return fmt.Errorf("copy policy %s: %w", p.Name(), err)
	}
	if err := os.Chmod(beside, 0o755); err != nil {
		return err
	}
	return os.Rename(beside, to)
}
