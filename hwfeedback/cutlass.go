package hwfeedback

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cutlassPath is the checkout of CUTLASS that the environment names, empty
// where it names none. Python has another working folder.
func cutlassPath() string {
	root := os.Getenv("CUTLASS_PATH")
	if root == "" {
		return ""
	}
	if abs, err := filepath.Abs(root); err == nil {
		return abs
	}
	return root
}

// cutlassOf tells the CUTLASS that a source may be compiled with from every
// other one: the place, size and time of its headers. Empty for a source that
// names none of its folders; build/object_cache.py in the harness keys objects in the same way.
func cutlassOf(source string) string {
	if !strings.Contains(source, "cute/") && !strings.Contains(source, "cutlass/") {
		return ""
	}
	h := sha256.New()
	root := cutlassPath()
	if root == "" {
		return "without CUTLASS"
	}
	for _, folder := range []string{"include", "tools/util/include"} {
		folder, err := filepath.EvalSymlinks(filepath.Join(root, folder))
		if err != nil {
			continue // it is not there
		}
		fmt.Fprintln(h, folder)
		_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() { // what cannot be read, nobody includes
				if info, err := os.Stat(path); err == nil {
					fmt.Fprintln(h, path, info.Size(), info.ModTime().UnixNano())
				}
			}
			return nil
		})
	}
	return "CUTLASS " + hex.EncodeToString(h.Sum(nil))[:16]
}
