// Package llmtest is what tests of language models need: servers that speak the
// providers' protocols and say what a test tells them to, written from the
// public descriptions of these protocols; a journal and a ledger in memory; and
// the contract of llm.Model as a suite.
package llmtest

import (
	"net/http"

	"github.com/kernelwright/kernelwright/llm"
)

// Answer is what a server says to one request, in no protocol's words.
type Answer struct {
	Text      string
	Reasoning string
	Tools     []llm.ToolCall // an id that is empty is left out
	Stop      llm.Stop       // "": as Text and Tools would have it
	Usage     *llm.Usage     // nil: 11 in, 7 out
	NoUsage   bool           // the server counts nothing
	Tokens    *Tokens        // of a Serving; nil: it tells none
	Pieces    int            // how many pieces Text comes in, where it is streamed; 0: three

	Problem Problem     // instead of a reply
	Header  http.Header // sent besides

	Fault Fault         // while replying
	Hold  chan struct{} // nothing is sent until it is closed, or the caller gone

	asked []string // of a Serving: which of its fields the request has
}

// Problem is an error that a server reports in its protocol's words.
type Problem string

// The problems.
const (
	WrongKey      Problem = "wrong key"
	NoRight       Problem = "no right"
	NoModel       Problem = "no model"
	TooMany       Problem = "too many requests"
	NoMoney       Problem = "no money"
	Overloaded    Problem = "overloaded"
	Broken        Problem = "broken"
	PromptTooLong Problem = "prompt too long"
	BadField      Problem = "bad field"
	Page          Problem = "a page of HTML" // of a proxy in front
	Moved         Problem = "moved"
)

// Fault is a reply that goes wrong on the way.
type Fault string

// The faults.
const (
	Cut      Fault = "cut"       // the body ends in the middle, as a whole
	NoStop   Fault = "no stop"   // all is there but the reason to stop
	Reset    Fault = "reset"     // the connection breaks in the middle
	Refused  Fault = "refused"   // the connection breaks before a byte
	Garbage  Fault = "garbage"   // no JSON
	Endless  Fault = "endless"   // text without an end
	LongLine Fault = "long line" // one line without an end
	InStream Fault = "in stream" // an error in the middle of the reply
)
