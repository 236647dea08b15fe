-- The words of the search index that begin with a letter or _: by them a search for what
-- begins so finds the words to ask for. FTS5's own list of them is as quick only where none
-- of its words is in many texts. words.go fills it; the word '' says that it is whole.
CREATE TABLE texts_words (word TEXT PRIMARY KEY) WITHOUT ROWID;
