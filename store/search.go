package store

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"unicode/utf8"
)

// Hit is a place in the history whose text matched.
type Hit struct {
	Kind    string // "task", "candidate", "verdict", "feedback" or "message"
	Task    string // fingerprint
	RunID   int64  // 0 for a task
	Round   int
	Excerpt string // a line or so around the first match; may be foreign text
}

// maxHitsPerText keeps a text that a thousand rounds share from filling the
// whole answer.
const maxHitsPerText = 5

// Search finds the texts that hold every word of the query, the newest first.
// A word ending in * matches the words that begin so; nothing else in a query
// is special. A limit of 0 means DefaultLimit.
func (s *Store) Search(ctx context.Context, query string, limit int) ([]Hit, error) {
	match := ftsQuery(query)
	if match == "" {
		return nil, nil
	}
	if limit <= 0 {
		limit = DefaultLimit
	}
	// By age and not by relevance: ranking would read every match of a common word.
	rows, err := s.read.QueryContext(ctx, `SELECT rowid FROM texts_fts WHERE texts_fts MATCH ? ORDER BY rowid DESC LIMIT ?`, match, limit)
	if err != nil {
		return nil, err
	}
	ids, err := scanAll(rows, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil {
		return nil, err
	}
	var hits []Hit
	for _, id := range ids {
		found, err := s.places(ctx, id)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			continue // what referred to it was replaced
		}
		text, err := s.text(ctx, s.read, id)
		if err != nil {
			return nil, err
		}
		around := excerpt(text, query)
		for _, h := range found {
			h.Excerpt = around
			hits = append(hits, h)
		}
		if len(hits) >= limit {
			return hits[:limit], nil
		}
	}
	return hits, nil
}

func (s *Store) places(ctx context.Context, text int64) ([]Hit, error) {
	rows, err := s.read.QueryContext(ctx, `
		SELECT * FROM (SELECT 'task', fingerprint, 0, 0 FROM tasks WHERE source = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'candidate', task, run, idx FROM rounds WHERE candidate = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'verdict', r.task, r.run, r.idx FROM verdicts v JOIN rounds r ON r.verdict = v.id WHERE v.text = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'feedback', r.task, f.run, f.idx FROM feedback f JOIN rounds r ON r.run = f.run AND r.idx = f.idx WHERE f.text = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'message', runs.task, c.run, c.round FROM calls c JOIN runs ON runs.id = c.run
			WHERE c.text = ?1 OR c.reasoning = ?1 OR c.reply = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'message', runs.task, t.run, t.round FROM turns t JOIN runs ON runs.id = t.run WHERE t.text = ?1 LIMIT ?2)`,
		text, maxHitsPerText)
	if err != nil {
		return nil, err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (h Hit, err error) { return h, r.Scan(&h.Kind, &h.Task, &h.RunID, &h.Round) })
	var hits []Hit
	for _, h := range found {
		if !slices.Contains(hits, h) { // a reply is said again by the call that goes on from it
			hits = append(hits, h)
		}
	}
	return hits, err
}

// ftsQuery quotes each word, so that what people type is never FTS5 syntax.
func ftsQuery(query string) string {
	var words []string
	for _, word := range strings.Fields(strings.ReplaceAll(strings.ToValidUTF8(query, " "), "\x00", " ")) {
		stem, prefix := strings.CutSuffix(word, "*")
		if stem == "" {
			continue
		}
		quoted := `"` + strings.ReplaceAll(stem, `"`, `""`) + `"`
		if prefix {
			quoted += "*"
		}
		words = append(words, quoted)
	}
	return strings.Join(words, " ")
}

// maxExcerpt is about one line of a terminal.
const maxExcerpt = 120

// excerpt returns the line in which the first word of the query stands.
func excerpt(text, query string) string {
	low := strings.ToLower(text)
	at := -1
	for _, word := range strings.Fields(strings.ToLower(query)) {
		if at = strings.Index(low, strings.TrimSuffix(word, "*")); at >= 0 {
			break
		}
	}
	if at < 0 || at >= len(text) { // lowering may change the length of foreign letters
		at = 0
	}
	start := strings.LastIndexByte(text[:at], '\n') + 1
	if at-start > maxExcerpt/2 {
		start = at - maxExcerpt/2
	}
	line, _, _ := strings.Cut(text[start:], "\n")
	if len(line) > maxExcerpt {
		line = line[:maxExcerpt]
	}
	for len(line) > 0 && !utf8.RuneStart(line[0]) {
		line = line[1:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(line, ""))
}
