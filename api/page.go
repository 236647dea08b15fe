package api

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/kernelwright/kernelwright/store"
)

// Paged are the parameters of every list.
type Paged struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"At most so many."`
	Cursor string `query:"cursor" maxLength:"1000" doc:"The next of the page before."`
}

// Ordered are the parameters of lists that have both orders.
type Ordered struct {
	Paged
	Sort string `query:"sort" enum:"newest,oldest" default:"newest" doc:"What comes first."`
}

// list is a page of a list.
type list[T any] struct {
	Items []T    `json:"items" nullable:"false"`
	Next  string `json:"next" doc:"The cursor of the next page; null: this is the last."`
}

// page is the answer of a page whose items were asked for with one more than the limit.
// at returns where an item stands, for the cursor.
func page[T, C any](p Paged, items []T, at func(T) C, err error) (*answer[list[T]], error) {
	if err != nil {
		return nil, err
	}
	l := list[T]{Items: items}
	if l.Items == nil {
		l.Items = []T{}
	}
	if len(items) > p.Limit {
		l.Items = items[:p.Limit]
		l.Next = cursor(at(items[p.Limit-1]))
	}
	return &answer[list[T]]{l}, nil
}

// slice is the page of a list that is there whole. Of a list that grows at its
// beginning, items may come twice.
func slice[T any](p Paged, items []T) (*answer[list[T]], error) {
	var from int
	if err := p.from(&from); err != nil {
		return nil, err
	}
	from = min(max(from, 0), len(items))
	end := min(from+p.Limit+1, len(items))
	return page(p, items[from:end], func(T) int { return from + p.Limit }, nil)
}

// cursor writes where an item stands.
func cursor(at any) string {
	b, err := json.Marshal(at)
	if err != nil { // numbers and texts: cannot fail
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// from reads the cursor, where there is one.
func (p Paged) from(into any) error {
	if p.Cursor == "" {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		return bad("query.cursor: it is no cursor of this list", "take the next of the page before, or leave it out")
	}
	return nil
}

// numbered is the page of a list whose rows have numbers, of one more than the limit.
func (o Ordered) numbered() (store.Page, error) {
	p := store.Page{Oldest: o.Sort == "oldest", Limit: o.Limit + 1}
	err := o.from(&p.From)
	if err == nil && p.From < 0 {
		err = bad("query.cursor: it is no cursor of this list", "take the next of the page before, or leave it out")
	}
	return p, err
}

// place is where a round stands.
type place struct {
	Run   int64 `json:"run"`
	Round int   `json:"round"`
}

// has reports whether the headers name a tag.
func has(headers []string, tag string) bool {
	for _, header := range headers {
		for one := range strings.SplitSeq(header, ",") {
			if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
				return true
			}
		}
	}
	return false
}
