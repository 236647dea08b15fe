package store

import "strings"

// Page bounds a list whose rows have numbers. The zero Page is all of them, the newest
// first.
type Page struct {
	From   int64 // the last number of the page before; 0: from the beginning
	Oldest bool  // the oldest first
	Limit  int   // 0: no limit
}

// query adds to one that ends before its WHERE what the page is of: rows by column, and
// by the conditions, whose arguments are args.
func (p Page) query(query, column string, where []string, args ...any) (string, []any) {
	order, beyond := " DESC", " < ?"
	if p.Oldest {
		order, beyond = "", " > ?"
	}
	if p.From != 0 {
		where, args = append(where, column+beyond), append(args, p.From)
	}
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	if p.Limit <= 0 {
		p.Limit = -1
	}
	return query + ` ORDER BY ` + column + order + ` LIMIT ?`, append(args, p.Limit)
}
