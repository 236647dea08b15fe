-- The words of the search index that begin with a letter or _, by which a search for what
-- begins so finds the words to ask for. FTS5's own list of them is as quick only where none
-- of its words is in many texts. A word stays when the last text with it is pruned.
CREATE TABLE texts_words (word TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE VIRTUAL TABLE temp.indexed_words USING fts5vocab(main, texts_fts, row);
INSERT INTO texts_words SELECT term FROM temp.indexed_words WHERE term NOT GLOB '[0-9]*';
DROP TABLE temp.indexed_words;
