package llm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// foreignText is how much of what a server wrote goes into an error.
const foreignText = 300

// maxRetryAfter is the longest that a server is believed.
const maxRetryAfter = 24 * time.Hour

// serverError is what can be read of an error's body. The protocols agree on
// little more than that there is an object "error" with a message; Google wraps
// it in a list, some servers leave the object out.
type serverError struct {
	Message string
	Code    string // "insufficient_quota", "rate_limit_error", "RESOURCE_EXHAUSTED"
	Param   string
	Status  int // within the body
	Retry   time.Duration
	// Context and Prompt are tokens, as llama.cpp tells them; 0 elsewhere.
	Context, Prompt int
}

// readServerError never fails: of a body that is no JSON the text counts.
func readServerError(body []byte) serverError {
	body = []byte(strings.TrimSpace(string(body)))
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var outer map[string]json.RawMessage
	if json.Unmarshal(body, &outer) != nil {
		return serverError{Message: string(body)}
	}
	inner := outer
	if raw, ok := outer["error"]; ok {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) == nil && object != nil {
			inner = object
		} else {
			inner = map[string]json.RawMessage{"message": raw}
		}
	}
	var e serverError
	e.Message = first(inner, "message", "detail", "error", "msg")
	var codes []string
	for _, key := range []string{"code", "type", "status", "reason"} {
		if s := first(inner, key); s != "" {
			if n, err := strconv.Atoi(s); err == nil {
				if n >= 300 && n < 600 {
					e.Status = n
				}
				continue
			}
			codes = append(codes, s)
		}
	}
	e.Param = first(inner, "param")
	tokens := func(key string) int {
		n, err := strconv.Atoi(first(inner, key))
		if err != nil || n < 0 || n > mostContext {
			return 0
		}
		return n
	}
	e.Context, e.Prompt = tokens("n_ctx"), tokens("n_prompt_tokens")
	var details []struct {
		Reason string `json:"reason"`
		Delay  string `json:"retryDelay"`
	}
	if json.Unmarshal(inner["details"], &details) == nil {
		for _, d := range details {
			if d.Reason != "" {
				codes = append(codes, d.Reason)
			}
			if delay, err := time.ParseDuration(d.Delay); err == nil {
				e.Retry = boundRetry(delay)
			}
		}
	}
	e.Code = strings.ToLower(strings.Join(codes, " "))
	for _, code := range codes {
		if e.Status == 0 {
			e.Status = statusOfError[code]
		}
	}
	return e
}

// first returns the first of the keys that holds a string or a number.
func first(object map[string]json.RawMessage, keys ...string) string {
	for _, key := range keys {
		var s string
		if json.Unmarshal(object[key], &s) == nil && s != "" {
			return s
		}
		var n json.Number
		if json.Unmarshal(object[key], &n) == nil && n != "" {
			return n.String()
		}
	}
	return ""
}

// plain makes one short line of foreign text.
func plain(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if utf8.RuneCountInString(s) > foreignText {
		s = string([]rune(s)[:foreignText]) + "..."
	}
	return s
}

// What servers write about a prompt that is too long, and about an account with
// nothing left.
var (
	tooLongWords = []string{
		"context_length_exceeded", "maximum context length", "context window", "context length", "prompt is too long",
		"exceeds the available context", "exceed_context_size", "input token count", "too many tokens in the prompt",
		"reduce the length", "input is too long", "max_model_len", "longer than the maximum", "exceeds the maximum allowed length",
	}
	quotaWords = []string{
		"insufficient_quota", "billing", "credit balance", "insufficient balance", "insufficient credits", "insufficient_credits",
		"exceeded your current quota", "payment required",
	}
	keyWords = []string{"api_key_invalid", "api key not valid", "invalid api key", "incorrect api key", "api key expired", "invalid_api_key"}
	// Of these only what speaks of a model counts.
	modelWords = []string{"not_found", "not found", "does not exist", "unknown model", "no such model", "not a valid model", "invalid model"}
)

func hasAny(s string, words []string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// answered makes an error of what a server answered with. Filtered prompts are
// none: ok is false then, and the reply is an empty one.
func (c *call) answered(status int, header http.Header, body []byte, now time.Time) (e *Error, ok bool) {
	s := readServerError(body)
	if s.Status != 0 && status < 300 {
		status = s.Status
	}
	all := strings.ToLower(s.Code + " " + s.Message)
	if status == http.StatusBadRequest && strings.Contains(s.Code, "content_filter") {
		return nil, false
	}
	e = &Error{Model: c.name, Status: status, RetryAfter: max(retryAfter(header, now), s.Retry)}
	// Google's limits by the minute are called quotas too, but say when to come back.
	quota := hasAny(all, quotaWords) && e.RetryAfter == 0
	switch {
	case status == http.StatusUnauthorized || hasAny(all, keyWords):
		e.Kind, e.Text, e.Hint = BadKey, "the server refuses the key", c.keyHint()
	case status == http.StatusPaymentRequired || quota && status < 500:
		e.Kind, e.Text, e.Hint = Quota, "the account has nothing left", "look at the provider's billing page"
	case status == http.StatusForbidden:
		e.Kind, e.Text, e.Hint = BadKey, "the key may not do this", c.keyHint()
	case len(c.request.Tools) > 0 && hasAny(all, noToolsWords):
		e.Kind, e.Text, e.Hint = NoTools, "the server takes no tools for this model", noToolsHint
	case status == http.StatusTooManyRequests:
		e.Kind, e.Text = RateLimited, "the server wants fewer requests"
		e.Hint = "set concurrency, requests_per_minute or tokens_per_minute for this model"
	case status == http.StatusRequestEntityTooLarge || status < 500 && hasAny(all, tooLongWords) || strings.Contains(all, "exceed_context_size"):
		e.Kind, e.Text = TooLong, "the request does not fit the model's context"
		e.Context, e.Prompt = s.Context, s.Prompt
		if e.Context == 0 {
			e.Context = saidTokens(all, saidContext)
		}
		if e.Prompt == 0 {
			e.Prompt = saidTokens(all, saidPrompt)
		}
		if e.Context < leastContext {
			e.Context = 0
		}
	case status == http.StatusNotFound || status < 500 && strings.Contains(all, "model") && hasAny(all, modelWords):
		e.Kind, e.Text = UnknownModel, fmt.Sprintf("the server does not know the model %q", c.model)
		e.Hint = "check the model's name, and base_url: it is where the protocol's own paths begin, and often ends in /v1"
	case status >= 500 || status == http.StatusRequestTimeout || status == http.StatusConflict || status == http.StatusTooEarly:
		e.Kind, e.Text = Unavailable, "the server failed"
	case status >= 300 && status < 400:
		e.Kind, e.Text, e.Hint = BadRequest, "the server sends requests elsewhere", "set base_url to where the API is"
	case status >= 400:
		e.Kind, e.Text = BadRequest, "the server refuses the request"
		switch p := strings.ToLower(s.Param + " " + s.Message); {
		case strings.Contains(p, "temperature"), strings.Contains(p, "top_p"):
			e.Hint = "set sampling = false for this model"
		case strings.Contains(p, "reasoning_effort"), strings.Contains(p, "thinking"), strings.Contains(p, "effort"):
			e.Hint = "leave reasoning_effort out for this model; some of OpenAI's take it only with native_tools = false"
		case strings.Contains(p, "schema"), strings.Contains(p, "response_format"):
			e.Hint = "set json_schema = false for this model"
		case strings.Contains(p, "token_ids"), strings.Contains(p, "logprobs"), strings.Contains(p, "meta_info"):
			e.Hint = "set token_ids = false for this model: its server does not give them"
		case strings.Contains(p, "max_tokens"), strings.Contains(p, "max_completion_tokens"):
			e.Hint = "set a smaller max_tokens for this model"
		}
	default: // an error inside an answer, without a number
		e.Kind, e.Text = Unavailable, "the server reports an error in its answer"
	}
	if status != 0 {
		e.Text += fmt.Sprintf(" (HTTP %d)", status)
	}
	if s.Message != "" {
		e.Text += ": " + c.plain(s.Message)
	}
	return e, true
}

func (c *call) keyHint() string {
	if c.options.KeyEnv == noKey {
		return "set key_env for this provider to the environment variable that holds the key"
	}
	return fmt.Sprintf("check the key in %s", c.options.KeyEnv)
}

// retryAfter reads how long a server wants to be left alone: seconds or a date,
// or milliseconds in a header of OpenAI's.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		return seconds(ms / 1000)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		return seconds(s)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date // the server's clock, whatever ours says
	}
	return boundRetry(at.Sub(now))
}

func seconds(s float64) time.Duration {
	if math.IsNaN(s) || s < 0 {
		return 0
	}
	return boundRetry(time.Duration(min(s, maxRetryAfter.Seconds()) * float64(time.Second)))
}

func boundRetry(d time.Duration) time.Duration { return min(max(d, 0), maxRetryAfter) }

// unanswered makes an error of a request that brought no answer.
func (c *call) unanswered(err error) *Error {
	e := &Error{Model: c.name, Err: errors.New(c.plain(err.Error()))}
	var dial *net.OpError
	var dns *net.DNSError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &dns):
		e.Kind, e.Text, e.Hint = Unreachable, fmt.Sprintf("the name %q is not known to this machine's network", dns.Name), "check base_url and the network"
	case errors.As(err, &record):
		e.Kind, e.Text, e.Hint = Unreachable, "the server does not speak TLS: "+e.Err.Error(), "check base_url: it may have to begin with http://"
	case errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid):
		e.Kind, e.Text, e.Hint = Unreachable, "the server's certificate is not to be trusted: "+e.Err.Error(), "check base_url, and the certificates of this machine"
	case errors.As(err, &dial) && dial.Op == "dial":
		e.Kind, e.Text, e.Hint = Unreachable, "nobody answers there: "+e.Err.Error(), "check base_url, and that the server runs"
	default:
		e.Kind, e.Text = Unavailable, "the connection broke before there was an answer: "+e.Err.Error()
	}
	return e
}

// brokenOff makes an error of an answer that could not be read to its end.
func (c *call) brokenOff(err error) *Error {
	e := &Error{Kind: Malformed, Model: c.name, Status: http.StatusOK, Err: errors.New(c.plain(err.Error()))}
	var netErr net.Error
	switch {
	case errors.Is(err, errTooLarge):
		e.Text = fmt.Sprintf("the reply does not end: it was left after %d bytes", c.options.MaxReplyBytes)
		e.Hint = "set max_tokens, or max_reply_bytes where such a reply is right"
		e.Err = errTooLarge
	case errors.Is(err, errCutOff):
		e.Kind, e.Text, e.Err = Truncated, "the reply broke off without a reason to stop", errCutOff
	case errors.As(err, &netErr), isBroken(err):
		e.Kind, e.Text = Truncated, "the connection broke in the middle of the reply: "+e.Err.Error()
	case errors.Is(err, errForeign) && !c.begun:
		e.Text = "what answers speaks no such protocol: " + e.Err.Error()
		e.Hint = "check base_url: it is where the protocol's own paths begin, such as http://localhost:8000/v1"
	default:
		e.Text = "the reply cannot be read: " + e.Err.Error()
	}
	return e
}

// ctxOr returns the context's error once it is done, and e before.
func ctxOr(ctx context.Context, e error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return e
}
