package daemon

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever the lock file of a held data folder says of its holder, the error
// is one line.
func FuzzLockFile(f *testing.F) {
	f.Add([]byte(`{"pid":1,"since":1700000000000,"command":"kernelwright daemon"}`))
	f.Add([]byte(`{"pid":-1,"since":9223372036854775807,"command":"a\nb\u001b[2J"}`))
	f.Add([]byte(`{"pid":1,"command":"` + strings.Repeat("x", 70<<10) + `"}`))
	f.Add([]byte(`{"pid":1,"since":"x","command":"half"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		e := &HeldError{Folder: "/data", Holder: readHolder(bytes.NewReader(content))}
		if s := e.Error(); strings.ContainsAny(s, "\n\r\t") || len(s) > 2000 || !utf8.ValidString(s) {
			t.Fatalf("no sentence: %.200q", s)
		}
		if !strings.Contains(e.Error(), "/data") {
			t.Fatalf("the folder is not named: %q", e)
		}
	})
}
