package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Curve returns the metrics of each step that a program's folder has, oldest first.
// What a program that was killed left half written is passed over.
func Curve(folder string) ([]map[string]float64, error) {
	text, err := os.ReadFile(filepath.Join(folder, MetricsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []map[string]float64
	for line := range bytes.Lines(text) {
		var found map[string]any
		if json.Unmarshal(line, &found) != nil {
			continue
		}
		step := map[string]float64{}
		for name, value := range found {
			if n, ok := value.(float64); ok {
				step[name] = n
			}
		}
		all = append(all, step)
	}
	return all, nil
}
