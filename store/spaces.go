package store

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/kernelwright/kernelwright"
)

const kindSpace = "space" // of the cache: by run

// SetSpace keeps how large the schedule space of a run was.
func (s *Store) SetSpace(ctx context.Context, run int64, space kernelwright.Space) error {
	text, err := json.Marshal(space)
	if err != nil {
		return err
	}
	return s.Put(ctx, kindSpace, strconv.FormatInt(run, 10), text)
}

// Space returns what SetSpace kept, nil where that is nothing.
func (s *Store) Space(ctx context.Context, run int64) (*kernelwright.Space, error) {
	text, ok, err := s.Get(ctx, kindSpace, strconv.FormatInt(run, 10))
	if err != nil || !ok {
		return nil, err
	}
	var space kernelwright.Space
	if err := json.Unmarshal(text, &space); err != nil {
		return nil, &DamagedError{Path: s.path, Err: err}
	}
	return &space, nil
}
