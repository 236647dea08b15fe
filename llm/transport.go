package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/kernelwright/kernelwright"
)

// errCutOff is a reply that ends without a reason to stop.
var errCutOff = errors.New("no reason to stop")

// errForeign is a whole answer that is none of the protocol: a page for people, or
// JSON of something else. A reply that is broken is not.
var errForeign = errors.New("nothing that a model answers")

// call is one attempt on its way through langchaingo. It goes in with the
// context, and what came of it is read from there: langchaingo's own types lose
// most of it.
type call struct {
	name    string // Model.Name()
	model   string // as the provider names it
	request Request
	options Options // resolved
	window  Window
	key     secret
	origin  []int // the message that each of langchaingo's turns is a part of

	begun bool   // some of the reply has come
	lacks string // what its tokens lack, should they have been asked for
	reply Reply
	err   *Error // nil, and done: it was answered
	done  bool
}

type callKey struct{}

// wanted is what the reply may take by the settings and the request.
func (c *call) wanted() int {
	if c.request.MaxTokens > 0 {
		return c.request.MaxTokens
	}
	return c.options.MaxTokens
}

// maxTokens is that, or what the context leaves.
func (c *call) maxTokens() int {
	n := c.wanted()
	if c.window.Context > 0 {
		// Servers refuse what could run over. The prompt is only estimated, so
		// some room is left for a short reply in any case.
		n = min(n, max(c.window.Context-c.window.Estimate(c.request), leastReply))
	}
	return n
}

// tokenBytes is room for what an answer tells of its tokens, where it is asked: an
// entry of 1 KiB for each at most.
func (c *call) tokenBytes() int64 {
	if !*c.options.TokenIDs {
		return 0
	}
	return int64(c.maxTokens()) << 10
}

// scrub takes the key out of foreign text, before that is cut to a length: half
// of a key is no key to it. What is shorter than a key ever is would be found
// everywhere.
func (c *call) scrub(s string) string {
	key := c.key()
	if len(key) < 8 {
		return s
	}
	return strings.ReplaceAll(s, key, "[key]")
}

// plain makes one short line of foreign text, without the key.
func (c *call) plain(s string) string { return plain(c.scrub(s)) }

// secret is a key. Printed with what holds it, it is an address.
type secret func() string

// transport is what makes langchaingo reliable. It takes its requests apart,
// writes what langchaingo leaves out or gets wrong, signs them (langchaingo never
// holds a key), and reads the answer itself, streamed or not, within bounds.
type transport struct {
	dialect dialect
	base    http.RoundTripper
	sign    func(h http.Header, key string)
}

// RoundTrip implements http.RoundTripper. langchaingo is given an empty answer
// of the right form: the reply is in the call.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, ok := req.Context().Value(callKey{}).(*call)
	if !ok {
		return nil, errors.New("llm: a request that is no call")
	}
	if err := t.exchange(req, c); err != nil {
		c.err = err
		return nil, err
	}
	c.done = true
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(
			`{"choices":[{"message":{"role":"assistant","content":""}}],"type":"message","content":[{"type":"text","text":""}]}`)),
	}, nil
}

func (t *transport) exchange(req *http.Request, c *call) *Error {
	out, err := t.rewrite(req, c)
	if err != nil {
		return &Error{Kind: BadRequest, Model: c.name, Text: "the request cannot be written: " + c.plain(err.Error()), Err: err}
	}
	resp, err := t.base.RoundTrip(out)
	if err != nil {
		return c.unanswered(err)
	}
	defer resp.Body.Close()
	body := &bounded{r: resp.Body, left: 32*c.options.MaxReplyBytes + 1<<20 + c.tokenBytes()}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, 64<<10)) // as much of it as there is
		return c.refused(resp.StatusCode, resp.Header, text)
	}
	r := t.dialect.reader(c)
	if err := c.readAll(r, resp.Header, body, resp.Body.Close); err != nil {
		var refused *refusal
		if errors.As(err, &refused) {
			return c.refused(refused.status, resp.Header, refused.body)
		}
		return c.brokenOff(err)
	}
	reply, err := r.close()
	if err != nil {
		return c.brokenOff(err)
	}
	reply.Usage = c.believed(reply)
	if kind, failed := byReason(failedStops, r.reason()); failed {
		return &Error{Kind: kind, Model: c.name, Status: http.StatusOK, Text: fmt.Sprintf("the model gave up with the reason %q", c.plain(r.reason()))}
	}
	for _, name := range []string{"X-Request-Id", "Request-Id"} {
		if id := resp.Header.Get(name); id != "" {
			reply.RequestID = id
		}
	}
	c.reply = c.clean(reply)
	return nil
}

// refused is what to make of an error that the server reports: an error, or,
// where it has filtered the prompt, an empty reply.
func (c *call) refused(status int, header http.Header, body []byte) *Error {
	if e, isError := c.answered(status, header, body, time.Now()); isError {
		e.begun = c.begun
		return e
	}
	c.reply = Reply{Stop: StopFiltered, Usage: Usage{In: promptEstimate(c.request), Estimated: true}}
	return nil
}

// rewrite makes the request that is sent.
func (t *transport) rewrite(req *http.Request, c *call) (*http.Request, error) {
	body, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	if err := t.dialect.write(fields, c); err != nil {
		return nil, err
	}
	if body, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	out := req.Clone(req.Context())
	out.Body = io.NopCloser(bytes.NewReader(body))
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	out.ContentLength = int64(len(body))
	// Headers that langchaingo takes from the environment would go to every
	// server.
	out.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"},
		"User-Agent": {"kernelwright/" + kernelwright.Version},
	}
	if *c.options.Stream {
		out.Header.Set("Accept", "text/event-stream")
	}
	t.sign(out.Header, c.key())
	return out, nil
}

// linger is how long a stream is still read whose reply is whole: its usage comes
// last, and some servers leave the connection open after that.
const linger = 10 * time.Second

// readAll reads an answer to its end: a stream where the server sends one,
// whatever was asked for. leave ends the reading.
func (c *call) readAll(r reader, header http.Header, body io.Reader, leave func() error) error {
	// One JSON value, all of it escaped, with what surrounds it.
	bound := 6*c.options.MaxReplyBytes + 1<<20 + c.tokenBytes()
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	if kind != "text/event-stream" {
		data, err := io.ReadAll(&bounded{r: body, left: bound})
		if err != nil {
			return err
		}
		if strings.HasPrefix(strings.TrimSpace(string(data)), "<") {
			return fmt.Errorf("a page of HTML: %w", errForeign)
		}
		if _, err := r.read(data, false); err != nil {
			return err
		}
		if r.reason() == "" {
			return errCutOff
		}
		return nil
	}
	in := newEvents(body, int(bound))
	var left *time.Timer
	for {
		if left == nil && r.reason() != "" {
			left = time.AfterFunc(linger, func() { _ = leave() }) // it is closed again
			defer left.Stop()
		}
		data, err := in.next()
		switch {
		case err != nil && r.reason() != "" && !errors.Is(err, errTooLarge):
			return nil // all that matters was there
		case errors.Is(err, io.EOF):
			return errCutOff
		case err != nil:
			return err
		}
		if strings.TrimSpace(data) == "" {
			continue
		}
		done, err := r.read([]byte(data), true)
		if err != nil {
			return err
		}
		c.begun = true
		if done && r.reason() == "" {
			return errCutOff
		}
		if done {
			return nil
		}
	}
}

// clean takes the key out of a reply, should a server echo it, and makes its
// strings what JSON can hold: what comes back from a record is the same.
func (c *call) clean(r Reply) Reply {
	strs := []*string{&r.Text, &r.Reasoning, &r.Model, &r.RequestID}
	for i := range r.ToolCalls {
		t := &r.ToolCalls[i]
		strs = append(strs, &t.ID, &t.Name, &t.Arguments)
	}
	for _, s := range strs {
		*s = c.scrub(strings.ToValidUTF8(*s, "\ufffd"))
	}
	if r.Carry != nil {
		r.Carry = json.RawMessage(c.scrub(string(r.Carry)))
	}
	r.Model, r.RequestID = plain(r.Model), plain(r.RequestID)
	return r
}

// isBroken reports whether a connection ended before its answer.
func isBroken(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "stream error")
}
