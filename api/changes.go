package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
	"syscall"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

const (
	submitPattern = "POST /api/v1/tasks"
	// maxUpload is of a form or an object with the largest reference, whose lines and quotes
	// JSON writes as two characters.
	maxUpload = 10 << 20
	// queuedWithin is how long the answer to a submission waits for its run to be queued.
	queuedWithin = 2 * time.Second
	// promoteTime is how long a promotion may take: the policy is loaded, and asked.
	promoteTime = 10 * time.Minute
)

// Policies changes which policy serves.
type Policies interface {
	// Promote has a policy serve that answers. store.ErrNotFound says that there is none.
	Promote(ctx context.Context, version int64, reason string) error
	// Rollback has the policy serve again that did before.
	Rollback(ctx context.Context, reason string) error
}

// change mounts a handler that changes something.
func change[I, O any](a *API, method, path, summary string, handler func(context.Context, *I) (*O, error)) {
	op := operation(method, path, summary)
	op.Errors = append(op.Errors, http.StatusConflict)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		return out, a.problem(ctx, err)
	})
}

// runState is a run of the queue after a change.
type runState struct {
	Run  kernelwright.Run `json:"run"`
	Hold store.Held       `json:"hold" doc:"Why it is held back: paused, or cancelled where its round in progress is still to end."`
}

// priority is what a run of the queue is given.
type priority struct {
	Priority int `json:"priority" minimum:"-1000" maximum:"1000"`
}

type queueState struct {
	Paused bool `json:"paused"`
}

// alsoCreated has the document say that what is there already is answered with 200, and what
// is new with 201.
func (a *API) alsoCreated(path string) {
	responses := a.huma.OpenAPI().Paths[path].Post.Responses
	there := cmp.Or(responses["200"], responses["201"])
	responses["200"] = &huma.Response{Description: "It was there already.", Content: there.Content}
	responses["201"] = &huma.Response{Description: "Created", Content: there.Content}
}

// created is an answer with its status.
type created[T any] struct {
	Status int
	Body   T
}

// changes has the routes that change the queue and what serves.
func (a *API) changes() {
	s := a.o.Store
	for _, c := range []struct {
		verb, summary string
		do            func(context.Context, int64) error
	}{
		{"cancel", "Take a run off the queue, or end it after its round in progress.", s.Cancel},
		{"pause", "Hold back a run of the queue, after its round in progress.", s.Pause},
		{"resume", "Let a run go on that was paused.", s.Resume},
	} {
		change(a, http.MethodPost, "/api/v1/runs/{run}/"+c.verb, c.summary, func(ctx context.Context, in *RunNumber) (*answer[runState], error) {
			return a.stands(ctx, in.Run, c.do(ctx, in.Run))
		})
	}
	change(a, http.MethodPut, "/api/v1/runs/{run}/priority", "Give a run of the queue another priority: higher goes first.", func(ctx context.Context, in *struct {
		RunNumber
		Body priority
	}) (*answer[runState], error) {
		return a.stands(ctx, in.Run, s.SetPriority(ctx, in.Run, in.Body.Priority))
	})
	change(a, http.MethodPost, "/api/v1/runs/{run}/retry", "Queue a run that has ended once more, as a new run.", func(ctx context.Context, in *RunNumber) (*created[runState], error) {
		again, fresh, err := s.Requeue(ctx, in.Run, 0)
		if err != nil {
			return nil, err
		}
		state, err := a.stands(ctx, again.ID, nil)
		if err != nil {
			return nil, err
		}
		return &created[runState]{createdStatus(fresh), state.Body}, nil
	})
	a.alsoCreated("/api/v1/runs/{run}/retry")
	for _, c := range []struct {
		verb, summary string
		paused        bool
	}{{"pause", "Hold back all that waits; runs in progress go on.", true}, {"resume", "Let what waits be worked on.", false}} {
		change(a, http.MethodPost, "/api/v1/queue/"+c.verb, c.summary, func(ctx context.Context, _ *struct{}) (*answer[queueState], error) {
			return say(queueState{c.paused}, s.PauseQueue(ctx, c.paused))
		})
	}
	if a.o.Policies != nil {
		a.promotions()
	}
	if a.o.Folder != "" {
		a.submissions()
	}
}

// stands is the answer of a change of a run.
func (a *API) stands(ctx context.Context, run int64, err error) (*answer[runState], error) {
	var state runState
	if err == nil {
		state.Run, err = a.o.Store.Run(ctx, run)
	}
	if err == nil {
		state.Hold, err = a.o.Store.Wanted(ctx, run)
	}
	return say(state, err)
}

func createdStatus(fresh bool) int {
	if fresh {
		return http.StatusCreated
	}
	return http.StatusOK
}

// Why is said for the record.
type Why struct {
	Body reason
}

type reason struct {
	Reason string `json:"reason,omitempty" nullable:"false" maxLength:"1000" doc:"Why, in a sentence for the record."`
}

func (w Why) reason() string {
	if w.Body.Reason == "" {
		return "a person said so"
	}
	return w.Body.Reason
}

// promotions has the routes that change what serves.
func (a *API) promotions() {
	change(a, http.MethodPost, "/api/v1/policies/{version}/promote", "Have a policy serve, once it answers. It may take minutes.", func(ctx context.Context, in *struct {
		Version int64 `path:"version" minimum:"1"`
		Why
	}) (*answer[promotionRow], error) {
		return a.serves(ctx, a.o.Policies.Promote(ctx, in.Version, in.reason()))
	})
	change(a, http.MethodPost, "/api/v1/policies/rollback", "Have the policy serve again that did before.", func(ctx context.Context, in *Why) (*answer[promotionRow], error) {
		return a.serves(ctx, a.o.Policies.Rollback(ctx, in.reason()))
	})
}

// serves is the answer of a change of what serves: the last one.
func (a *API) serves(ctx context.Context, err error) (*answer[promotionRow], error) {
	if err != nil {
		return nil, err
	}
	found, err := a.o.Store.Promotions(ctx)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("a promotion: %w", store.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return say(promotionRow(found[len(found)-1]), nil)
}

// submission is what came of a file that was sent.
type submission struct {
	Path    string `json:"path" nullable:"false" minLength:"1" doc:"Of the file."`
	SHA256  string `json:"sha256" nullable:"false" doc:"Of its text."`
	Created bool   `json:"created" doc:"Whether it was written; else it was there already."`
	Run     int64  `json:"run" unknown:"0" doc:"That is for it; null: it is not queued yet."`
	Runs    string `json:"runs" nullable:"false" doc:"The list that its run is in."`
}

// upload is a reference as it is sent in JSON.
type upload struct {
	Name   string `json:"name" nullable:"false" minLength:"1" doc:"Of the file."`
	Source string `json:"source" nullable:"false" minLength:"1" doc:"Its text."`
}

// submissions has the route that takes references.
func (a *API) submissions() {
	op := operation(http.MethodPost, "/api/v1/tasks", "Submit a reference: it is written into the first watched folder.")
	op.MaxBodyBytes, op.SkipValidateBody = maxUpload, true
	op.Errors = append(op.Errors, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	op.DefaultStatus = http.StatusCreated
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[upload](), true, "")},
		"multipart/form-data": {Schema: &huma.Schema{
			Type: huma.TypeObject, Required: []string{"file"}, Properties: map[string]*huma.Schema{"file": {Type: huma.TypeString, Format: "binary"}},
		}},
	}}
	huma.Register(a.huma, op, func(ctx context.Context, in *struct {
		Type    string `header:"Content-Type" hidden:"true" maxLength:"1000"`
		Replace bool   `query:"replace" doc:"Replace a file of this name that has another text."`
		RawBody []byte `contentType:"multipart/form-data"`
	}) (*created[submission], error) {
		name, content, err := received(in.Type, in.RawBody)
		if err != nil {
			return nil, err
		}
		out, err := a.submit(ctx, name, content, in.Replace)
		return out, a.problem(ctx, err)
	})
	a.alsoCreated("/api/v1/tasks")
}

// submit keeps a reference in the watched folder, and waits a moment for its run.
func (a *API) submit(ctx context.Context, name string, content []byte, replace bool) (*created[submission], error) {
	if len(content) > task.MaxBytes {
		return nil, &Problem{Text: fmt.Sprintf("the file has more than %d bytes", task.MaxBytes), Hint: "a reference is source alone: let get_inputs make its data", Code: http.StatusRequestEntityTooLarge}
	}
	source, err := task.Decode(content)
	if err != nil {
		return nil, err
	}
	path, fresh, err := daemon.Submit(a.o.Folder, a.o.Patterns, name, content, replace)
	if err != nil {
		return nil, err
	}
	out := submission{Path: path, SHA256: kernelwright.HashText(source), Created: fresh, Runs: "/api/v1/runs?path=" + url.QueryEscape(path)}
	deadline := time.Now().Add(queuedWithin)
	for {
		file, known, err := a.o.Store.File(ctx, path)
		if err != nil {
			return nil, err
		}
		if known && file.Hash == out.SHA256 && file.RunID != 0 {
			out.Run = file.RunID
			break
		}
		if a.ready() == nil || !time.Now().Before(deadline) {
			break
		}
		select {
		case <-ctx.Done(): // the file is there all the same
			deadline = time.Time{}
		case <-time.After(lookForEvents):
		}
	}
	return &created[submission]{createdStatus(fresh), out}, nil
}

// received reads the reference of a request.
func received(kind string, body []byte) (name string, content []byte, err error) {
	media, parameters, err := mime.ParseMediaType(kind)
	switch {
	case err == nil && media == "application/json":
		var in upload
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil || d.More() {
			return "", nil, bad("the body is no JSON object with name and source", documented)
		}
		return in.Name, []byte(in.Source), nil
	case err == nil && media == "multipart/form-data" && parameters["boundary"] != "":
		return receivedForm(multipart.NewReader(bytes.NewReader(body), parameters["boundary"]))
	}
	return "", nil, &Problem{Text: "the body is neither JSON nor a form with a file", Hint: "send it as application/json or multipart/form-data", Code: http.StatusUnsupportedMediaType}
}

// receivedForm reads the one file of a form, and passes over all else.
func receivedForm(form *multipart.Reader) (name string, content []byte, err error) {
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) && content != nil {
			return name, content, nil
		}
		if err != nil {
			return "", nil, bad("the form has no file, or is cut short", "send one file as the field file")
		}
		if part.FormName() != "file" {
			continue
		}
		if content != nil {
			return "", nil, bad("the form has several files", "send each in a request of its own")
		}
		name = rawFileName(part)
		if content, err = io.ReadAll(part); err != nil {
			return "", nil, bad("the form is cut short", "send it again")
		}
	}
}

// rawFileName is the name as it was sent: a path in it is refused, not cut off.
func rawFileName(part *multipart.Part) string {
	_, parameters, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return parameters["filename"]
}

// refusal returns an error of a change as clients get it; nil for any other.
func refusal(err error) *Problem {
	var state *store.StateError
	var name *daemon.NameError
	var taken *daemon.TakenError
	var invalid *kernelwright.InvalidTaskError
	switch {
	case errors.As(err, &state):
		return &Problem{Text: state.Text, Hint: state.Hint, Code: http.StatusConflict}
	case errors.As(err, &name):
		return &Problem{Text: name.Error(), Hint: name.Hint, Code: http.StatusBadRequest}
	case errors.As(err, &taken):
		return &Problem{Text: taken.Error(), Hint: taken.Hint, Code: http.StatusConflict}
	case errors.As(err, &invalid):
		return &Problem{Text: "the file is no reference: " + invalid.Reason, Hint: invalid.Hint, Code: http.StatusBadRequest}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(store.Trouble(err), store.ErrFull):
		return &Problem{Text: "the disk is full", Hint: "make room, and send it again: nothing was changed", Code: http.StatusServiceUnavailable, retry: true}
	}
	return nil
}
