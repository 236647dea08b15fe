package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright/store"
)

// Protected is a file that no task may be like.
type Protected struct{ Name, Source string }

// Tags of what a task is compared with, and what being like it is counted as.
const (
	tagProtected = "protected"
	tagOwn       = "own"
	tagHeld      = "held"     // held out in another set
	tagTrained   = "trained"  // trained on in another set
	tagOwnHeld   = "own held" // held out in this set
)

var likeReasons = map[string]string{
	tagProtected: "is like a protected file",
	tagOwn:       "is like a task that was kept",
	tagOwnHeld:   "is like a task that was kept",
	tagHeld:      "is like a held-out task of another set",
	tagTrained:   "is like a training task of another set",
}

func ownTag(split store.Split) string {
	if split.HeldOut() {
		return tagOwnHeld
	}
	return tagOwn
}

// comparer says what a task is like.
type comparer struct {
	*service
	known []knownFile // for a process that is started again
}

type knownFile struct{ tag, name, source string }

// newComparer knows the protected files, and the tasks of all sets.
func newComparer(ctx context.Context, r Record, interpreter, folder string, protected []Protected, of store.TaskSet) (*comparer, error) {
	c := &comparer{service: &service{interpreter: interpreter, folder: folder}}
	for _, p := range protected {
		c.known = append(c.known, knownFile{tagProtected, p.Name, p.Source})
	}
	sets, err := r.TaskSets(ctx)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		draws, err := r.TaskDraws(ctx, set.ID, true)
		if err != nil {
			return nil, err
		}
		for _, d := range draws {
			tag := ownTag(d.Split)
			if set.ID != of.ID {
				tag = map[bool]string{true: tagHeld, false: tagTrained}[d.Split.HeldOut()]
			}
			c.known = append(c.known, knownFile{tag, fmt.Sprintf("%s/%d", set.Name, d.Index), d.Source})
		}
	}
	c.prepare = func(ctx context.Context, s *service) error {
		for _, k := range c.known {
			if err := k.tell(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}
	return c, nil
}

// tell has a process know a file. It is an error where a protected one cannot be read. A
// task that an older version kept, and this one cannot read, is like nothing from now on.
func (k knownFile) tell(ctx context.Context, s *service) error {
	var answer struct {
		Reason string `json:"reason"`
	}
	err := s.exchange(ctx, map[string]any{"op": "protect", "tag": k.tag, "name": k.name, "source": k.source}, &answer, nil)
	if err == nil && answer.Reason != "" && k.tag == tagProtected {
		err = fmt.Errorf("%s: %s", k.name, answer.Reason)
	}
	return err
}

// add has later tasks be compared with one more.
func (c *comparer) add(ctx context.Context, tag, name, source string) error {
	k := knownFile{tag, name, source}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = append(c.known, k)
	if c.process == nil {
		return nil // a fresh one is told all
	}
	return k.tell(ctx, c.service)
}

// likeness is what a file is like.
type likeness struct {
	Similarity float64  `json:"similarity"`
	Tag        string   `json:"tag"`
	To         string   `json:"to"`
	Kinds      []string `json:"kinds"`
	Reason     string   `json:"reason"` // why it cannot be read
}

// slowToRead is what alike.py says of a file whose calls and loops come to too much.
const slowToRead = "following the file takes too long"

// like compares a file. Of the training tasks of other sets a training task may be
// a copy.
func (c *comparer) like(ctx context.Context, source string, split store.Split, limit float64) (likeness, error) {
	among := map[string]bool{tagProtected: true, tagOwn: true, tagOwnHeld: true, tagHeld: true, tagTrained: split.HeldOut()}
	return c.likeTagged(ctx, source, among, limit)
}

// likeTagged compares a file with those of some tags.
func (c *comparer) likeTagged(ctx context.Context, source string, among map[string]bool, limit float64) (likeness, error) {
	without := []string{}
	for tag := range likeReasons {
		if !among[tag] {
			without = append(without, tag)
		}
	}
	var l likeness
	err := c.ask(ctx, map[string]any{"op": "near", "source": source, "limit": limit, "without": without}, &l, nil)
	switch {
	case errors.Is(err, errServiceSilent):
		return likeness{Reason: slowToRead}, nil
	case errors.Is(err, errServiceDied):
		return likeness{Reason: "ends the process that reads it"}, nil
	}
	return l, err
}

// near returns why a task is left out for what it is like, or "".
func (c *comparer) near(ctx context.Context, t *Task, source string, split store.Split, limit float64) (string, error) {
	l, err := c.like(ctx, source, split, limit)
	if err != nil {
		return "", err
	}
	switch l.Reason {
	case "":
	case slowToRead:
		return "its text takes too long to read", nil
	default:
		return "its text cannot be read", nil
	}
	if len(t.Kinds) == 0 {
		t.Kinds = l.Kinds
	}
	t.Similarity = l.Similarity
	if l.Similarity > limit {
		return likeReasons[l.Tag], nil
	}
	return "", nil
}
