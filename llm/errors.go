package llm

import (
	"fmt"
	"time"
)

// Kind says what kept a call from being answered.
type Kind string

// The kinds of failure.
const (
	BadKey       Kind = "bad key"       // missing, refused, or without the right
	UnknownModel Kind = "unknown model" // or unknown provider
	Unreachable  Kind = "unreachable"   // no network, no server there
	RateLimited  Kind = "rate limited"
	Quota        Kind = "quota"       // the account has nothing left
	Unavailable  Kind = "unavailable" // the server's own failure
	TooLong      Kind = "too long"    // the request does not fit the model's context
	NoTools      Kind = "no tools"    // the model is not shown the request's tools
	BadRequest   Kind = "bad request" // anything else that the server refuses
	Malformed    Kind = "malformed"   // the server's answer cannot be read, or does not end
	Truncated    Kind = "truncated"   // the answer broke off without a reason to stop
	Late         Kind = "late"        // not there in the time that one call may take
	OverBudget   Kind = "over budget" // not asked: it could cost more than is left
	NotRecorded  Kind = "not recorded"
	// Of a Charge alone: it was begun, and has not come back; it was ended because a
	// run stopped.
	Unfinished  Kind = "unfinished"
	Interrupted Kind = "interrupted"
)

// Error is why a call was not answered. Its text names the model, holds no
// secret, and is one sentence; what a server wrote in it is foreign text.
type Error struct {
	Kind   Kind
	Model  string // Model.Name()
	Status int    // HTTP, or 0
	Text   string // what happened
	Hint   string // what to do about it
	// RetryAfter is how long the server wants to be left alone; 0: it did not
	// say.
	RetryAfter time.Duration
	// Context and Prompt are how long the model's context and the prompt are, in tokens,
	// where a server that refuses one as too long says so.
	Context, Prompt int
	Err             error

	begun bool   // some of a reply had come
	reply *Reply // of Kind NoTools: what came all the same; nil: nothing
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Model, e.Text) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// generalHints say what to do about a kind of which nothing more is known.
var generalHints = map[Kind]string{
	Unavailable: "try again later; the server's log, or its provider's status page, says more",
	Truncated:   "try again later; where it stays so, look at the server's log, and at what stands between: a proxy may end long replies",
	Malformed:   "try again later; where it stays so, look at the server's log",
	BadRequest:  "leave out what its words name: docs/models.md has the settings of a model",
}

const noMessages = "there is no message to answer"

// Temporary reports whether the same call may be answered later.
func (e *Error) Temporary() bool {
	switch e.Kind {
	case RateLimited, Unavailable, Unreachable, Malformed, Truncated, Late:
		return true
	}
	return false
}

// Mendable reports whether the same call may be answered once somebody has mended
// the key, the name or the account.
func (e *Error) Mendable() bool {
	switch e.Kind {
	case BadKey, UnknownModel, Quota:
		return true
	}
	return false
}
