package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kernelwright/kernelwright/store"
)

// Problem is an answer that is none: a sentence, and what to do.
type Problem struct {
	Text  string `json:"error" nullable:"false" doc:"What is wrong, in a sentence."`
	Hint  string `json:"hint,omitempty" nullable:"false" doc:"What to do."`
	Code  int    `json:"status" doc:"The HTTP status."`
	retry bool
}

// Error implements error.
func (p *Problem) Error() string { return p.Text }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Code }

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	if p.retry {
		return http.Header{"Retry-After": {retryAfter}}
	}
	return http.Header{}
}

const documented = "/openapi.json says what each parameter takes"

func init() {
	huma.NewError = func(status int, text string, errs ...error) huma.StatusError {
		var found []string
		for _, err := range errs {
			var of huma.ErrorDetailer
			if !errors.As(err, &of) {
				found = append(found, err.Error())
				continue
			}
			d := of.ErrorDetail()
			found = append(found, fmt.Sprintf("%.100s: %.200s", d.Location, d.Message))
		}
		switch status {
		case http.StatusUnprocessableEntity:
			status = http.StatusBadRequest
		case http.StatusRequestEntityTooLarge:
			return &Problem{Text: text, Hint: "send less", Code: status}
		case http.StatusInternalServerError: // of huma's: a body that is cut short
			return &Problem{Text: "the body cannot be read to its end", Hint: "send it again", Code: http.StatusBadRequest}
		}
		if len(found) == 0 {
			return &Problem{Text: text, Hint: documented, Code: status}
		}
		return &Problem{Text: strings.ToValidUTF8(strings.Join(found[:min(len(found), 5)], "; "), "\uFFFD"), Hint: documented, Code: status}
	}
}

// bad is an error that is the client's.
func bad(text, hint string) error {
	return &Problem{Text: text, Hint: hint, Code: http.StatusBadRequest}
}

// missing is the error of what is not there.
func missing(text, hint string) error {
	return &Problem{Text: text, Hint: hint, Code: http.StatusNotFound}
}

// problem returns an error as clients get it. What the record or the machine cannot do
// now is a 503.
func (a *API) problem(ctx context.Context, err error) error {
	var ours *Problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ours):
		return ours
	case refusal(err) != nil:
		return refusal(err)
	case errors.Is(err, store.ErrNotFound):
		return missing(err.Error(), "the lists beside it have what there is")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Problem{Text: fmt.Sprintf("the answer took longer than %v", answerTime), Hint: "narrow it by a task or a run", Code: http.StatusServiceUnavailable, retry: true}
	}
	if a.o.Log != nil && ctx.Err() == nil {
		a.o.Log.Error("a request could not be answered", "error", err)
	}
	return &Problem{Text: "the record, or a folder, cannot be used now", Hint: "the daemon's log has more; `kernelwright history check` examines the record", Code: http.StatusServiceUnavailable, retry: true}
}

// refuse answers a request that comes to no handler.
func refuse(w http.ResponseWriter, status int, text, hint string) {
	b, err := json.Marshal(&Problem{Text: text, Hint: hint, Code: status})
	if err != nil { // texts alone: cannot fail
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
