// Package policies keeps versions of the Coder's weights. A version is a folder below
// the data folder that never changes; the store says what is in it, which version
// serves, and which served before.
package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/store"
)

// Current names whichever policy serves.
const Current = "current"

// Origin says which stage of which pipeline made a policy. Of one that a person brought
// it is zero.
type Origin struct {
	Pipeline int64  `json:"pipeline,omitempty"`
	Stage    string `json:"stage,omitempty"`
}

// Policy is a version.
type Policy struct {
	Version   int64
	Digest    string // SHA-256 over the names, sizes and digests of its files
	Folder    string // of a Hugging Face model, or of a PEFT adapter with its base within
	Base      string // what it was trained from: a policy's name, or a model's
	License   string // of its base, if known
	Origin    Origin
	Bytes     int64
	CreatedMS int64
	RemovedMS int64 // 0: its folder is there

	files []file
}

// Name is what a policy is called: "v3".
func (p Policy) Name() string { return name(p.Version) }

func name(version int64) string { return "v" + strconv.FormatInt(version, 10) }

// file is one of a policy's. Name is relative to its folder, with slashes.
type file struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Error says what is wrong with a policy, or with what is to become one, and what to do.
type Error struct {
	Text, Hint string
	// Missing: there is no such policy.
	Missing bool
	Err     error
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Registry is the policies of a data folder. It is safe for concurrent use, by several
// processes too.
type Registry struct {
	store  *store.Store
	folder string
}

// Open returns the registry of a data folder, which need not hold a policy yet.
func Open(s *store.Store, dataDir string) *Registry {
	return &Registry{s, filepath.Join(dataDir, "policies")}
}

// made is a policy as it was recorded.
func (r *Registry) made(p store.Policy) (Policy, error) {
	out := Policy{
		Version: p.Version, Digest: p.Digest, Folder: filepath.Join(r.folder, name(p.Version)), Base: p.Base, License: p.License,
		Origin: Origin{p.Pipeline, p.Stage}, Bytes: p.Bytes, CreatedMS: p.CreatedMS, RemovedMS: p.RemovedMS,
	}
	if err := json.Unmarshal(p.Files, &out.files); err != nil {
		return Policy{}, fmt.Errorf("what is recorded of policy v%d: %w", p.Version, err)
	}
	return out, nil
}

// List returns all versions, removed ones too, the oldest first.
func (r *Registry) List(ctx context.Context) ([]Policy, error) {
	found, err := r.store.Policies(ctx, store.Page{Oldest: true})
	if err != nil {
		return nil, err
	}
	all := make([]Policy, len(found))
	for i, p := range found {
		if all[i], err = r.made(p); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Find returns the policy that "current", "v3" or "3" names: an *Error where there is
// none, or it was removed. "policy:" may stand before any.
func (r *Registry) Find(ctx context.Context, called string) (Policy, error) {
	p, err := r.Lookup(ctx, called)
	if err == nil && p.RemovedMS != 0 {
		return Policy{}, &Error{Text: fmt.Sprintf("policy %s was removed", p.Name()), Hint: "add its folder again, where there is a copy of it; `kernelwright policy ls` lists those that are there", Missing: true}
	}
	return p, err
}

// Lookup is Find, but finds removed ones, too.
func (r *Registry) Lookup(ctx context.Context, called string) (Policy, error) {
	called = strings.TrimPrefix(called, "policy:")
	if called == Current {
		history, err := r.store.Promotions(ctx)
		if err != nil {
			return Policy{}, err
		}
		if len(history) == 0 {
			return Policy{}, &Error{Text: "no policy serves", Hint: "`kernelwright policy promote NAME` has one serve; `kernelwright policy ls` lists them", Missing: true}
		}
		return r.find(ctx, history[len(history)-1].Policy)
	}
	version, err := strconv.ParseInt(strings.TrimPrefix(called, "v"), 10, 64)
	if err != nil || version < 1 {
		return Policy{}, &Error{Text: fmt.Sprintf("%q names no policy", called), Hint: "a policy is named v1, v2, and so on, or current; `kernelwright policy ls` lists them", Missing: true}
	}
	return r.find(ctx, version)
}

func (r *Registry) find(ctx context.Context, version int64) (Policy, error) {
	p, err := r.store.Policy(ctx, version)
	if errors.Is(err, store.ErrNotFound) {
		return Policy{}, missing(version)
	}
	if err != nil {
		return Policy{}, err
	}
	return r.made(p)
}

func missing(version int64) *Error {
	return &Error{Text: fmt.Sprintf("there is no policy v%d", version), Hint: "`kernelwright policy ls` lists them", Missing: true, Err: store.ErrNotFound}
}

// Lineage returns the names from a policy to what was there first: each is what the one
// before it was trained from.
func (r *Registry) Lineage(ctx context.Context, p Policy) ([]string, error) {
	names := []string{p.Name()}
	for p.Base != "" && !slices.Contains(names, p.Base) {
		names = append(names, p.Base)
		from, err := r.Lookup(ctx, p.Base)
		var none *Error
		switch {
		case errors.As(err, &none): // it is a model's name
			return names, nil
		case err != nil:
			return nil, err
		}
		p = from
	}
	return names, nil
}

// Remove takes a policy's folder away. What is recorded of it stays. The one that serves
// cannot be removed: *Error.
func (r *Registry) Remove(ctx context.Context, p Policy) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	err = r.store.RemovePolicy(ctx, p.Version)
	var serves *store.ServesError
	if errors.As(err, &serves) {
		return &Error{Text: fmt.Sprintf("policy %s serves, so it cannot be removed", p.Name()), Hint: "promote another one first, or `kernelwright policy rollback`", Err: err}
	}
	if errors.Is(err, store.ErrNotFound) {
		return missing(p.Version)
	}
	if err != nil {
		return err
	}
	return r.tidy(ctx) // which takes the folder: a process that dies here leaves that to the next
}

// tidy takes away what a process left that died, and the folders of removed policies. A
// folder of which nothing is recorded stays: the record may be another one. The caller has
// the lock.
func (r *Registry) tidy(ctx context.Context) error {
	left, err := filepath.Glob(filepath.Join(escaped(r.folder), unfinished+"*"))
	if err != nil {
		return err
	}
	all, err := r.List(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.RemovedMS != 0 {
			left = append(left, p.Folder)
		}
	}
	var failed error
	for _, path := range left {
		failed = errors.Join(failed, os.RemoveAll(path))
	}
	return failed
}
