package daydata

import "regexp"

// privateKey is what keys look like that no provider of models gives, and what is
// written down as one.
var privateKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(AKIA|ASIA)[0-9A-Z]{16}\b|(?i:(password|passwd|secret|api_?key|access_?token|auth_?token)["']?\s*[:=]\s*["'][^"'\s]{6,}["'])`)

// The parts of patterns: what may stand before a path, and a name in one.
const (
	before = "(^|\\\\[nrt]|[\\s\"'`(=:,<\\[{|@;>])"
	name   = "[^\\s\"'`()<>:,;|\\[\\]{}/*]+"
	quoted = `/[\pL_.][^"'\n]*/`
)

// Where a file lies: by a path of two names or more, in quotes with blanks in it, or
// below a home folder.
var paths = []*regexp.Regexp{
	regexp.MustCompile(`(["'])(?:file://)?` + quoted + `([^"'/\n]+)/?(["'])`),
	regexp.MustCompile("(?m)" + before + `(?:file://)?/[\pL_.]` + "[^\\s\"'`()<>:,;|\\[\\]{}/*]*" + "(?:/" + name + ")*/(" + name + ")/?()"),
	regexp.MustCompile("(?m)" + before + `~[\w.-]*(?:/` + name + `)*/(` + name + `)/?()`),
}

// withoutPaths returns a text in which files have their names alone.
func withoutPaths(text string) string {
	for _, p := range paths {
		text = p.ReplaceAllString(text, "${1}${2}${3}")
	}
	return text
}
