package mcp

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// argumentError is what is wrong with an argument, and what to send instead.
type argumentError struct{ what, hint string }

func (e *argumentError) Error() string { return e.what }

func bad(hint, format string, args ...any) error {
	return &argumentError{fmt.Sprintf(format, args...), hint}
}

// taskArgs say which task a call is about.
type taskArgs struct {
	Path      string `json:"path,omitempty" jsonschema:"reference file, by its path from the server's --root folder"`
	Task      string `json:"task,omitempty" jsonschema:"name or fingerprint of a task that is recorded"`
	Reference string `json:"reference,omitempty" jsonschema:"source of a reference: Model, get_inputs() and get_init_inputs()"`
	Name      string `json:"name,omitempty" jsonschema:"what to call the task of reference"`
}

// maxPath is the longest path that is looked at.
const maxPath = 4096

// maxName bounds what names a task and what a client may be called.
const maxName = 64

var (
	taskName    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
	fingerprint = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// maxAmbiguous is how many fingerprints of one name are listed.
const maxAmbiguous = 5

// job finds the reference that a call names, or the one that was named last.
func (s *Server) job(ctx context.Context, req *sdk.CallToolRequest, a taskArgs) (Job, error) {
	const oneOf = `give one of path, task and reference; none of them means the task that was named last`
	given := 0
	for _, text := range []string{a.Path, a.Task, a.Reference} {
		if text != "" {
			given++
		}
	}
	client := ClientName(req.ClientInfo())
	if given > 1 {
		return Job{}, bad(oneOf, "%d of path, task and reference are given", given)
	}
	if a.Name != "" && (a.Reference == "" || !taskName.MatchString(a.Name)) {
		return Job{}, bad("name goes with reference: up to 64 letters, digits, _ - and .", "the name %s cannot be used", quoted(a.Name))
	}
	var j Job
	var err error
	switch {
	case a.Path != "":
		j, err = s.byPath(a.Path)
	case a.Task != "":
		j, err = s.byRecord(ctx, a.Task)
	case a.Reference != "":
		j.Name = a.Name
		if j.Name == "" {
			j.Name = "reference"
		}
		j.Source, err = task.Decode([]byte(a.Reference))
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last == nil {
			return Job{}, bad(oneOf, "no task was named yet")
		}
		j = *s.last
	}
	if err != nil {
		return Job{}, err
	}
	j.Client = client
	if given > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		last := j
		s.last = &last
	}
	return j, nil
}

func (s *Server) byPath(path string) (Job, error) {
	const hint = "name a reference file by its path from the folder that the server was started with (--root)"
	if len(path) > maxPath || strings.ContainsRune(path, 0) {
		return Job{}, bad(hint, "that is no path")
	}
	if !filepath.IsLocal(path) {
		return Job{}, bad(hint, "%s is not a path below the folder that may be read", quoted(path))
	}
	f, err := s.workshop.Read(path)
	if err != nil {
		return Job{}, err
	}
	return Job{Name: f.Name, Source: f.Source, Path: f.Path}, nil
}

func (s *Server) byRecord(ctx context.Context, called string) (Job, error) {
	const hint = "history with what = runs lists the tasks that are recorded; give path or reference for another"
	print := called
	if !fingerprint.MatchString(called) {
		if len(called) > maxPath {
			return Job{}, bad(hint, "that is no name of a task")
		}
		worked, err := s.record.Worked(ctx, store.RunFilter{Name: called})
		if err != nil {
			return Job{}, err
		}
		var all []string
		for _, w := range worked {
			if len(all) == 0 || all[len(all)-1] != w.Task {
				all = append(all, w.Task)
			}
		}
		all = distinct(all)
		switch len(all) {
		case 0:
			return Job{}, bad(hint, "no task %s is recorded", quoted(called))
		case 1:
			print = all[0]
		default:
			return Job{}, bad("name one by its fingerprint: "+strings.Join(all[:min(len(all), maxAmbiguous)], ", "), "%d recorded tasks are called %s", len(all), quoted(called))
		}
	}
	t, err := s.record.Task(ctx, print)
	if errors.Is(err, store.ErrNotFound) {
		return Job{}, bad(hint, "no task with this fingerprint is recorded")
	}
	if err != nil {
		return Job{}, err
	}
	return Job{Name: t.Name, Source: t.Source}, nil
}

func distinct(all []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range all {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// candidate reads a candidate's source as its file would be read.
func candidate(source string) (string, error) {
	if source == "" {
		return "", bad("candidate is the source of a Python file that defines ModelNew", "there is no candidate")
	}
	text, err := task.Decode([]byte(source))
	var unreadable *kernelwright.InvalidTaskError
	if errors.As(err, &unreadable) {
		return "", bad(unreadable.Hint, "the candidate cannot be read: %s", unreadable.Reason)
	}
	return text, err
}

// oneOf checks a choice; empty is the first.
func oneOf(what, value string, choices ...string) (string, error) {
	if value == "" {
		return choices[0], nil
	}
	for _, c := range choices {
		if value == c {
			return c, nil
		}
	}
	return "", bad(what+" is one of "+strings.Join(choices, ", "), "there is no %s %s", what, quoted(value))
}

// atMost checks a number of answers; 0 is the default.
func atMost(n, normal, most int) (int, error) {
	if n < 0 || n > most {
		return 0, bad(fmt.Sprintf("limit is from 1 to %d", most), "a limit of %d cannot be had", n)
	}
	if n == 0 {
		return normal, nil
	}
	return n, nil
}

// quoted shows what somebody sent in a sentence.
func quoted(s string) string {
	const most = 80
	s = report.Line(s)
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return `"` + s + `"`
}

var unnamed = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// ClientName is how records name a client: "mcp:claude-code". The name is the
// client's own word.
func ClientName(info *sdk.Implementation) string {
	name := ""
	if info != nil {
		name = strings.Trim(unnamed.ReplaceAllString(info.Name, "-"), "-")
	}
	if name == "" {
		name = "unknown"
	}
	return "mcp:" + name[:min(len(name), maxName)]
}
