package report

import (
	"slices"
	"strings"
	"testing"
)

func TestCode(t *testing.T) {
	const text = "first\r\n\tsecond = 1\n\nfourth\x1b[2J"
	for _, tt := range []struct {
		line int
		want []string
	}{
		{1, []string{">    1 | first"}},
		{2, []string{"     1 | first", ">    2 |     second = 1"}},
		{3, nil}, // nothing is on it
		{4, []string{">    4 | fourth⟨U+001B⟩[2J"}},
		{0, nil},
		{-1, nil},
		{5, nil},
	} {
		if got := Code(text, tt.line); !slices.Equal(got, tt.want) {
			t.Errorf("line %d: %q, want %q", tt.line, got, tt.want)
		}
	}
	long := Code(strings.Repeat("é", 1000), 1)
	if len(long) != 1 || len([]rune(long[0])) != maxCode+len(">    1 | ") || !strings.HasSuffix(long[0], "…") {
		t.Errorf("got %q", long)
	}
}
