package cli

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/outward"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

// gatePage is what is said of a gate.
type gatePage struct {
	ID        int64           `json:"id"`
	Candidate string          `json:"candidate"`
	Opponent  string          `json:"opponent"`
	Decision  string          `json:"decision"` // empty: it goes on
	Evidence  json.RawMessage `json:"evidence"`
	page      string          // the same for people
}

// gatesOf returns the gates in which a policy was the candidate, the oldest first.
func gatesOf(ctx context.Context, s *store.Store, p policies.Policy) ([]gatePage, error) {
	found, err := s.GatesOf(ctx, kernelwright.PolicyPrefix+p.Name())
	if err != nil {
		return nil, err
	}
	pages := []gatePage{}
	for _, g := range found {
		page, err := pageOf(ctx, s, g)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
	}
	slices.SortFunc(pages, func(a, b gatePage) int { return int(a.ID - b.ID) })
	return pages, nil
}

// pageOf is what is said of one gate.
func pageOf(ctx context.Context, s *store.Store, g store.Gate) (gatePage, error) {
	r, err := gate.Read(ctx, s, g.Name)
	if err != nil {
		return gatePage{}, err
	}
	var text strings.Builder
	if err := gate.Page(&text, r); err != nil {
		return gatePage{}, err
	}
	evidence, err := json.Marshal(outward.Of(r))
	return gatePage{g.ID, g.Candidate, g.Opponent, g.Decision, evidence, text.String()}, err
}
