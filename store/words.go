package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// maxBegins is how many words a beginning is replaced by.
const maxBegins = 32

// wordsWith returns the words of the index that begin so, quoted; none where they are many,
// or where the beginning is no plain word. FTS5 finds the newest text with one of several
// words at once, but reads all texts that have a word with a beginning before the first.
func (s *Store) wordsWith(ctx context.Context, begins string) ([]string, error) {
	begins = strings.ToLower(begins)
	if !hasList(begins) || strings.ContainsFunc(begins, func(r rune) bool { return r > unicode.MaxASCII || !inWord(r) }) {
		return nil, nil
	}
	found, err := scanNames(s.read.QueryContext(ctx, `SELECT word FROM texts_words
		WHERE EXISTS (SELECT 1 FROM texts_words WHERE word = '') AND word >= ?1 AND word < ?1 || char(0x10ffff) LIMIT ?2`, begins, maxBegins+1))
	if len(found) > maxBegins {
		return nil, err
	}
	for i, word := range found {
		found[i] = quotedWord(word)
	}
	return found, err
}

// hasList reports whether texts_words has such words: numbers are many, and rarely looked
// for by how they begin.
func hasList(word string) bool { return word != "" && (word[0] < '0' || word[0] > '9') }

// WordsQuery notes the words of a text that the search index was told, from the JSON of
// NewWords: for what records in bulk.
const WordsQuery = `INSERT OR IGNORE INTO texts_words SELECT value FROM json_each(?)`

// NewWords returns as a JSON array the words of a text, each once, that texts_words has when
// it has the text's.
func NewWords(text string) string {
	found := wordsOf(text)
	slices.Sort(found)
	found = slices.DeleteFunc(slices.Compact(found), func(word string) bool { return !hasList(word) })
	b, _ := json.Marshal(found) // strings alone: cannot fail
	return string(b)
}

// listWords fills texts_words from the search index, unless it is whole. An index that is
// damaged has no list, and is searched without.
func listWords(ctx context.Context, db *sql.DB) error {
	var whole bool
	err := db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM texts_words WHERE word = '')`).Scan(&whole)
	if err != nil || whole {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	_, err = tx.ExecContext(ctx, `CREATE VIRTUAL TABLE temp.indexed_words USING fts5vocab(main, texts_fts, row);
		DELETE FROM texts_words;
		INSERT INTO texts_words SELECT term FROM temp.indexed_words WHERE term NOT GLOB '[0-9]*' UNION SELECT '';
		DROP TABLE temp.indexed_words`)
	var damaged *DamagedError
	if errors.As(err, &damaged) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the words of the search index: %w", err)
	}
	return tx.Commit()
}

// wordsOf returns the words of a text as texts_fts has them.
func wordsOf(text string) []string {
	return strings.FieldsFunc(strings.Map(fold, text), func(r rune) bool { return !inWord(r) })
}

// fold returns a letter as the index has it, without the accent of a Latin one: -1 for an
// accent that stands by itself. sqlite.org/fts5.html, section 4.3.1, remove_diacritics=1.
func fold(r rune) rune {
	switch {
	case r <= unicode.MaxASCII:
		return unicode.ToLower(r)
	case r >= 0x300 && r <= 0x331:
		return -1
	}
	small := unicode.ToLower(r)
	parts := []rune(norm.NFD.String(string(small)))
	if len(parts) == 2 && parts[0] <= unicode.MaxASCII && unicode.Is(unicode.Mn, parts[1]) {
		return parts[0]
	}
	return small
}

// inWord reports whether a letter is part of a word, likewise.
func inWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.Is(unicode.Co, r)
}
