package tasks

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/kernelwright/kernelwright/internal/parquetrows"
)

// A small file of Parquet that stands for any amount of text is told in a sentence, by
// a process that has bounds.
func TestHostileParquet(t *testing.T) {
	before := parquetrows.Limits
	t.Cleanup(func() { parquetrows.Limits = before })
	parquetrows.Limits.Memory, parquetrows.Limits.Written = 256<<20, 1<<20
	type row struct {
		Code string `parquet:"code,dict,zstd"`
	}
	type other struct {
		Text string `parquet:"text"`
	}
	same := make([]row, 4096)
	for i := range same {
		same[i].Code = "class Model: pass # " + strings.Repeat("x", 1000)
	}
	for name, c := range map[string]struct {
		write func(*bytes.Buffer) error
		want  string
	}{
		"one text, often":        {func(b *bytes.Buffer) error { return parquet.Write(b, same) }, "is longer than 1 MiB"},
		"a text over the bound":  {func(b *bytes.Buffer) error { return parquet.Write(b, []row{{strings.Repeat("x", 5<<20)}}) }, "it is larger than 4 MiB"},
		"no code":                {func(b *bytes.Buffer) error { return parquet.Write(b, []row{{"class Model: pass"}, {}}) }, "row 1 of "},
		"another column":         {func(b *bytes.Buffer) error { return parquet.Write(b, []other{{"x"}}) }, "has no column `code`"},
		"a text that is no text": {func(b *bytes.Buffer) error { return parquet.Write(b, []row{{"\xff\xfe"}}) }, "its text is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			var file bytes.Buffer
			ok(t, c.write(&file))
			path := filepath.Join(t.TempDir(), "set.parquet")
			ok(t, os.WriteFile(path, file.Bytes(), 0o644))
			if _, err := ReadAny(path); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}
