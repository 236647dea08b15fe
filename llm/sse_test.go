package llm

import (
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

func TestEvents(t *testing.T) {
	for _, test := range []struct {
		name, body string
		want       []string
		err        error // instead of io.EOF
	}{
		{"none", "", nil, nil},
		{"two", "data: a\n\ndata:b\n\n", []string{"a", "b"}, nil},
		{"without an end", "data: a\n\ndata: b", []string{"a", "b"}, nil},
		{"one JSON in two lines", "data: {\"a\":\ndata: 1}\n\n", []string{"{\"a\":\n1}"}, nil},
		{"two in one", "data: {}\ndata: []\n\n", []string{"{}", "[]"}, nil},
		{"fields, comments, CRLF", ": hello\r\nevent: x\r\nid: 7\r\ndata: a\r\n\r\n\r\n", []string{"a"}, nil},
		{"as long as may be", "data: " + strings.Repeat("x", 57) + "\n", []string{strings.Repeat("x", 57)}, nil},
		{"a line that is too long", "data: a\n\ndata: " + strings.Repeat("x", 100) + "\n\n", []string{"a"}, errTooLarge},
		{"a line without an end", strings.Repeat("x", 100), nil, errTooLarge},
		{"lines of one event that are too long", strings.Repeat("data: xxxxxxxxxx\n", 10) + "\n", nil, errTooLarge},
	} {
		for _, slow := range []bool{false, true} {
			var r io.Reader = strings.NewReader(test.body)
			if slow {
				r = iotest.OneByteReader(r)
			}
			in := newEvents(r, 64)
			var got []string
			var err error
			for err == nil {
				var data string
				if data, err = in.next(); err == nil {
					got = append(got, data)
				}
			}
			want := test.err
			if want == nil {
				want = io.EOF
			}
			if !reflect.DeepEqual(got, test.want) || !errors.Is(err, want) {
				t.Errorf("%s: %q and %v, want %q and %v", test.name, got, err, test.want, want)
			}
		}
	}
}
