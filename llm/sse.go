package llm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// maxLines is how many lines one event may have: empty ones have no bytes that
// would count.
const maxLines = 1 << 16

// errTooLarge is a line or a body over its bound.
var errTooLarge = errors.New("more than a reply may have")

// events reads server-sent events as the HTML standard frames them: lines of
// fields, an empty line after each event. It is lenient where servers of models
// are sloppy: an event needs no empty line after it at the end of the body, and
// lines of data that make no JSON together are events by themselves.
type events struct {
	r       *bufio.Reader
	maxLine int
	queue   []string
	begun   bool
}

func newEvents(r io.Reader, maxLine int) *events {
	return &events{r: bufio.NewReaderSize(r, 32<<10), maxLine: maxLine}
}

// next returns the data of the next event that has any; io.EOF after the last.
// The type of an event is left out: every protocol here repeats it inside.
func (e *events) next() (string, error) {
	var lines []string
	size := 0
	for len(e.queue) == 0 {
		line, err := e.line()
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = bytes.TrimPrefix(data, []byte(" "))
			if size += len(data); size > e.maxLine || len(lines) == maxLines {
				return "", errTooLarge
			}
			lines = append(lines, string(data))
		}
		if len(lines) > 0 && (len(line) == 0 || err != nil) {
			e.queue = split(lines)
			break
		}
		if err != nil {
			return "", err
		}
	}
	data := e.queue[0]
	e.queue = e.queue[1:]
	return data, nil
}

// split returns the payloads that lines of data of one event hold.
func split(lines []string) []string {
	if len(lines) == 1 {
		return lines
	}
	var whole []byte
	for i, l := range lines {
		if i > 0 {
			whole = append(whole, '\n')
		}
		whole = append(whole, l...)
	}
	if json.Valid(whole) {
		return []string{string(whole)}
	}
	return lines
}

// line returns the next line without its end. The last one comes with io.EOF.
func (e *events) line() ([]byte, error) {
	var line []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if len(line)+len(part) > e.maxLine {
			return nil, errTooLarge
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if !e.begun {
			e.begun = true
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		return line, err
	}
}

// bounded reads at most left bytes, then fails.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	return n, err
}
