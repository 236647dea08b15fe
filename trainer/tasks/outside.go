package tasks

import (
	"context"

	"github.com/kernelwright/kernelwright/store"
)

// Outside holds references that come from elsewhere, such as people's own, against
// what nothing may be trained on: protected files, and tasks that are held out in
// any set.
type Outside struct{ like *comparer }

// NewOutside starts nothing before it is asked. The interpreter is any Python that
// is supported.
func NewOutside(ctx context.Context, r Record, dataDir, interpreter string, protected []Protected) (*Outside, error) {
	folder, err := unpack(dataDir)
	if err != nil {
		return nil, err
	}
	j, err := newComparer(ctx, r, interpreter, folder, protected, store.TaskSet{})
	if err != nil {
		return nil, err
	}
	return &Outside{j}, nil
}

// Like reports whether a reference is over DefaultSimilarity alike to one of them, and
// whether it could be compared: one that cannot be read may be like anything.
func (o *Outside) Like(ctx context.Context, source string) (like, compared bool, err error) {
	l, err := o.like.likeTagged(ctx, source, map[string]bool{tagProtected: true, tagHeld: true}, DefaultSimilarity)
	return l.Similarity > DefaultSimilarity, l.Reason == "", err
}

// Close ends its process.
func (o *Outside) Close() { o.like.Close() }
