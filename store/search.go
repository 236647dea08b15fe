package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// Hit is a place in the history that matched.
type Hit struct {
	Kind    string              // "task", "run", "candidate", "verdict", "certificate", "feedback" or "message"
	Task    string              // fingerprint; empty where a run's reference was never read
	RunID   int64               // 0 for a task
	Round   int                 // -1 for a task and a run
	Status  kernelwright.Status // of the round's verdict; empty where there is none
	Refused kernelwright.Status // of the verdict that did not certify it; else empty
	Excerpt string              // a line or so around the first match; may be foreign text
}

// Query says what Find looks for. Empty fields do not narrow.
type Query struct {
	Words string // a word that ends in * matches what begins so
	// Statuses keeps what belongs to rounds whose verdict, or the verdict that did
	// not certify them, is one of these.
	Statuses []kernelwright.Status
	Limit    int // 0 means DefaultLimit
}

// maxHitsPerText keeps a text that a thousand rounds share from filling the
// whole answer.
const maxHitsPerText = 5

// TaskNames returns the names of the tasks of runs, by run.
func (s *Store) TaskNames(ctx context.Context, runs []int64) (map[int64]string, error) {
	list, err := json.Marshal(append([]int64{}, runs...))
	if err != nil {
		return nil, err
	}
	rows, err := s.read.QueryContext(ctx, `SELECT runs.id, task_name FROM json_each(?) CROSS JOIN runs ON runs.id = value`, string(list))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names := map[int64]string{}
	for rows.Next() {
		var run int64
		var name string
		if err := rows.Scan(&run, &name); err != nil {
			return nil, err
		}
		names[run] = name
	}
	return names, rows.Err()
}

// Search is Find of words alone.
func (s *Store) Search(ctx context.Context, query string, limit int) ([]Hit, error) {
	return s.Find(ctx, Query{Words: query, Limit: limit})
}

// Find returns the places that match, the newest first: texts that hold every word,
// and runs whose reason does, which come first and are half of the answer at most.
// Without words it returns the rounds with these statuses, with their reasons. Nothing
// but a * at a word's end is special.
func (s *Store) Find(ctx context.Context, q Query) ([]Hit, error) {
	if q.Limit <= 0 {
		q.Limit = DefaultLimit
	}
	match, err := s.ftsMatch(ctx, q.Words)
	switch {
	case err != nil:
		return nil, err
	case match == "" && len(q.Statuses) == 0:
		return nil, nil
	case match == "":
		return s.standingSo(ctx, q)
	}
	var hits []Hit
	if len(q.Statuses) == 0 {
		if hits, err = s.runsSaying(ctx, q.Words, (q.Limit+1)/2); err != nil {
			return nil, err
		}
	}
	// By age and not by relevance: ranking would read every match of a common word.
	for last := int64(math.MaxInt64); len(hits) < q.Limit; {
		rows, err := s.read.QueryContext(ctx, `SELECT rowid FROM texts_fts WHERE texts_fts MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?`, match, last, q.Limit)
		if err != nil {
			return nil, err
		}
		ids, err := scanAll(rows, func(r *sql.Rows) (id int64, err error) { return id, r.Scan(&id) })
		if err != nil {
			return nil, err
		}
		places, err := aside(ids, func(id int64) ([]Hit, error) { return s.placesIn(ctx, id, q) })
		if err != nil {
			return nil, err
		}
		for i, id := range ids {
			for _, h := range places[i] {
				said := slices.ContainsFunc(hits, func(before Hit) bool { return before.Kind == "run" && before.RunID == h.RunID })
				if h.Kind != "run" || !said { // its reason says what its traceback does
					hits = append(hits, h)
				}
			}
			last = id
		}
		if len(ids) < q.Limit {
			break
		}
	}
	return hits[:min(len(hits), q.Limit)], nil
}

// placesIn returns where a text stands that matched, with an excerpt.
func (s *Store) placesIn(ctx context.Context, id int64, q Query) ([]Hit, error) {
	found, err := s.places(ctx, id, q.Statuses)
	if err != nil || len(found) == 0 { // what referred to it was replaced
		return nil, err
	}
	text, err := s.text(ctx, s.read, id)
	if err != nil {
		return nil, err
	}
	around := excerpt(text, q.Words)
	for i := range found {
		found[i].Excerpt = around
	}
	return found, nil
}

// roundOf joins a round of a query's places with what its verdicts say.
const roundOf = ` LEFT JOIN verdicts v ON v.id = r.verdict LEFT JOIN certificates ce ON ce.run = r.run AND ce.idx = r.idx LEFT JOIN verdicts c ON c.id = ce.verdict`

// Statuses of a round, over roundOf, as Hit has them.
const statusesOf = `CASE WHEN c.status = 'certified' THEN c.status ELSE v.status END, CASE WHEN c.status <> 'certified' THEN c.status ELSE '' END`

func (s *Store) places(ctx context.Context, text int64, statuses []kernelwright.Status) ([]Hit, error) {
	most := maxHitsPerText
	if len(statuses) > 0 { // what is of other rounds does not count
		most = 1000
	}
	rows, err := s.read.QueryContext(ctx, `WITH places(kind, task, run, idx) AS (
		SELECT * FROM (SELECT 'task', fingerprint, 0, -1 FROM tasks WHERE source = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'run', task, id, -1 FROM runs WHERE detail = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'candidate', task, run, idx FROM rounds WHERE candidate = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'verdict', r.task, r.run, r.idx FROM verdicts v JOIN rounds r ON r.verdict = v.id WHERE v.text = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'certificate', r.task, r.run, r.idx FROM verdicts v JOIN certificates ce ON ce.verdict = v.id
			JOIN rounds r ON r.run = ce.run AND r.idx = ce.idx WHERE v.text = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'feedback', r.task, f.run, f.idx FROM feedback f JOIN rounds r ON r.run = f.run AND r.idx = f.idx WHERE f.text = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'message', runs.task, c.run, c.round FROM calls c JOIN runs ON runs.id = c.run
			WHERE c.text = ?1 OR c.reasoning = ?1 OR c.reply = ?1 LIMIT ?2)
		UNION ALL SELECT * FROM (SELECT 'message', runs.task, t.run, t.round FROM turns t JOIN runs ON runs.id = t.run WHERE t.text = ?1 LIMIT ?2))
		SELECT kind, places.task, places.run, places.idx, `+statusesOf+` FROM places LEFT JOIN rounds r ON r.run = places.run AND r.idx = places.idx`+roundOf,
		text, most)
	if err != nil {
		return nil, err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (h Hit, err error) {
		var status, refused sql.NullString
		err = r.Scan(&h.Kind, &h.Task, &h.RunID, &h.Round, &status, &refused)
		h.Status, h.Refused = kernelwright.Status(status.String), kernelwright.Status(refused.String)
		return h, err
	})
	var hits []Hit
	each := map[string]int{}
	for _, h := range found {
		wanted := len(statuses) == 0 || slices.Contains(statuses, h.Status) || slices.Contains(statuses, h.Refused)
		// A reply is said again by the call that goes on from it.
		if wanted && !slices.Contains(hits, h) && each[h.Kind] < maxHitsPerText {
			hits = append(hits, h)
			each[h.Kind]++
		}
	}
	return hits, err
}

// standingSo returns the rounds with these statuses, with the reasons of their verdicts.
func (s *Store) standingSo(ctx context.Context, q Query) ([]Hit, error) {
	var args []any
	for _, status := range q.Statuses {
		args = append(args, string(status))
	}
	in := `IN (?` + strings.Repeat(", ?", len(args)-1) + `)`
	args = append(args, args...)
	rows, err := s.read.QueryContext(ctx, `SELECT 'verdict', r.task, r.run, r.idx, `+statusesOf+`,
		CASE WHEN c.status IS NULL THEN v.reason ELSE c.reason END FROM rounds r`+roundOf+`
		WHERE v.status `+in+` AND (c.status IS NULL OR c.status <> 'certified') OR c.status `+in+` ORDER BY r.run DESC, r.idx DESC LIMIT ?`, append(args, q.Limit)...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (h Hit, err error) {
		var refused sql.NullString
		err = r.Scan(&h.Kind, &h.Task, &h.RunID, &h.Round, &h.Status, &refused, &h.Excerpt)
		h.Refused = kernelwright.Status(refused.String)
		h.Excerpt = excerpt(h.Excerpt, "")
		return h, err
	})
}

// runsSaying returns the runs in whose name, reason and hint every word occurs.
func (s *Store) runsSaying(ctx context.Context, words string, limit int) ([]Hit, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, task, task_name, reason, hint FROM runs INDEXED BY runs_said WHERE reason <> '' ORDER BY id DESC`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var hits []Hit
	for len(hits) < limit && rows.Next() {
		h := Hit{Kind: "run", Round: -1}
		var name, reason, hint string
		if err := rows.Scan(&h.RunID, &h.Task, &name, &reason, &hint); err != nil {
			return nil, err
		}
		if said := strings.Join([]string{name, reason, hint}, "\n"); holdsWords(said, words) {
			h.Excerpt = excerpt(reason+"\n"+hint, words)
			hits = append(hits, h)
		}
	}
	return hits, rows.Err()
}

// holdsWords reports whether a text holds every word of a query, as the search index
// would have it.
func holdsWords(text, query string) bool {
	held := " " + strings.Join(wordsOf(text), " ") + " "
	for _, word := range strings.Fields(query) {
		stem, prefix := strings.CutSuffix(word, "*")
		phrase := strings.Join(wordsOf(stem), " ")
		if !prefix {
			phrase += " "
		}
		if !strings.Contains(held, " "+phrase) {
			return false
		}
	}
	return true
}

// ftsMatch quotes each word, so that what people type is never FTS5 syntax.
func (s *Store) ftsMatch(ctx context.Context, query string) (string, error) {
	var words, either []string
	said := false
	for _, word := range strings.Fields(strings.ReplaceAll(strings.ToValidUTF8(query, " "), "\x00", " ")) {
		stem, prefix := strings.CutSuffix(word, "*")
		if stem == "" {
			continue
		}
		quoted := quotedWord(stem)
		if prefix {
			begins, err := s.wordsWith(ctx, stem)
			if err != nil {
				return "", err
			}
			if len(begins) > 0 {
				either = append(either, "("+strings.Join(begins, " OR ")+")")
				continue
			}
			quoted += "*"
		}
		words, said = append(words, quoted), said || len(wordsOf(stem)) > 0
	}
	// Side by side, what has no letter counts for nothing; beside AND it would match nothing.
	if len(either) == 0 {
		return strings.Join(words, " "), nil
	}
	if said {
		either = append(either, strings.Join(words, " "))
	}
	return strings.Join(either, " AND "), nil
}

func quotedWord(word string) string { return `"` + strings.ReplaceAll(word, `"`, `""`) + `"` }

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
