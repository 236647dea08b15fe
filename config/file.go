package config

import (
	"encoding"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// Errors is everything that is wrong with the settings: the file's in its
// order, then the environment's and the flags'. There is one at least.
type Errors []*Error

// Error is the first one's sentence, and how many there are.
func (e Errors) Error() string {
	switch n := len(e) - 1; n {
	case 0:
		return e[0].Error()
	default:
		return fmt.Sprintf("%v (and %d more: `kernelwright config check` lists them)", e[0], n)
	}
}

// Unwrap returns them.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// Where in the order of errors each source begins.
const (
	ofFile = iota << 20
	ofEnvironment
	ofFlags
	ofDefaults
)

// errorList collects errors: of one key the first.
type errorList struct {
	all Errors
	// keys are those that something was said of.
	keys map[string]bool
}

func (l *errorList) add(at int, key, where, text, hint string) {
	for said := range l.keys {
		if said == key || strings.HasPrefix(said, key+".") { // a table that lacks what was wrong in it
			return
		}
	}
	if l.keys == nil {
		l.keys = map[string]bool{}
	}
	l.keys[key] = true
	if secret.MatchString(where + text + hint) {
		text, hint = "something looks like a key of a provider", secretHint
		if secret.MatchString(where) {
			where = ""
		}
	}
	l.all = append(l.all, &Error{Where: shown(where), Text: shown(text), Hint: hint, at: at})
}

// err is nil where there are none.
func (l *errorList) err() error {
	if len(l.all) == 0 {
		return nil
	}
	slices.SortStableFunc(l.all, func(a, b *Error) int { return a.at - b.at })
	return l.all
}

// file is a settings file that was read.
type file struct {
	path  string
	lines map[string]int
	order map[string]int // of keys, from 1 on
}

// place is where a key stands in the file, for people and in the order of errors.
func (f *file) place(key string) (at int, where string) {
	at, where = ofFile+f.order[key], f.path
	if n := f.lines[key]; n > 0 {
		where = fmt.Sprintf("%s:%d", f.path, n)
	}
	return at, where
}

// readFile lays a file over c. Whatever of it is right is laid, so that all that
// is wrong can be told at once.
func readFile(c *Config, origins Origins, errs *errorList, path string) {
	whole := func(text, hint string) { errs.add(ofFile, path, path, text, hint) }
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxFile {
		whole("too large for a settings file", "see `kernelwright config show --default` for what one may hold")
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		whole("cannot read it: "+cause(err), "check the path given with --config or "+EnvFile)
		return
	}
	var raw map[string]any
	md, err := toml.Decode(string(text), &raw)
	if err != nil {
		e := decodeError(path, err)
		errs.add(ofFile, path, e.Where, e.Text, e.Hint)
		return
	}
	f := &file{path: path, lines: keyLines(string(text)), order: map[string]int{}}
	for i, k := range md.Keys() {
		if _, seen := f.order[k.String()]; !seen {
			f.order[k.String()] = i + 1
		}
	}
	f.lay(reflect.ValueOf(c).Elem(), raw, "", errs)
	for _, k := range KeysOf(*c) {
		if !md.IsDefined(split(k)...) {
			continue
		}
		at, where := f.place(k)
		origins[k] = Origin{Kind: "file", Where: where, at: at}
	}
}

// lay sets the value at a key from what the file has there.
func (f *file) lay(v reflect.Value, raw any, key string, errs *errorList) {
	wrong := func(text, hint string) {
		at, where := f.place(key)
		errs.add(at, key, where, key+" "+text, hint)
	}
	kind := func() { wrong("is "+kindOf(raw), takesKind(key, v.Type())) }
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, isText := raw.(string)
		if !isText {
			kind()
		} else if err := u.UnmarshalText([]byte(text)); err != nil {
			at, where := f.place(key)
			errs.add(at, key, where, key+": "+err.Error(), takesKind(key, v.Type()))
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Map:
		table, ok := raw.(map[string]any)
		if !ok {
			wrong("is "+kindOf(raw)+", and should be a table", tableHint(key))
			return
		}
		f.layTable(v, table, key, errs)
	case reflect.Pointer:
		to := reflect.New(v.Type().Elem())
		before := len(errs.all)
		if f.lay(to.Elem(), raw, key, errs); len(errs.all) == before {
			v.Set(to)
		}
	case reflect.String:
		if text, ok := raw.(string); ok {
			v.SetString(text)
		} else {
			kind()
		}
	case reflect.Int, reflect.Int64:
		if n, ok := raw.(int64); ok {
			v.SetInt(n)
		} else {
			kind()
		}
	case reflect.Float64:
		switch n := raw.(type) {
		case float64:
			v.SetFloat(n)
		case int64:
			v.SetFloat(float64(n))
		default:
			kind()
		}
	case reflect.Bool:
		if b, ok := raw.(bool); ok {
			v.SetBool(b)
		} else {
			kind()
		}
	case reflect.Slice:
		list, ok := raw.([]any)
		texts := make([]string, 0, len(list))
		for _, one := range list {
			text, isText := one.(string)
			ok = ok && isText
			texts = append(texts, text)
		}
		if !ok {
			kind()
			return
		}
		v.Set(reflect.ValueOf(texts))
	default:
		panic("config: a setting of kind " + v.Kind().String())
	}
}

func (f *file) layTable(v reflect.Value, table map[string]any, key string, errs *errorList) {
	names := make([]string, 0, len(table))
	for name := range table {
		names = append(names, name)
	}
	full := func(name string) string {
		if key == "" {
			return toml.Key{name}.String()
		}
		return key + "." + toml.Key{name}.String()
	}
	slices.SortFunc(names, func(a, b string) int { return f.order[full(a)] - f.order[full(b)] })
	for _, name := range names {
		if v.Kind() == reflect.Map {
			one := reflect.New(v.Type().Elem()).Elem()
			f.lay(one, table[name], full(name), errs)
			if v.IsNil() {
				v.Set(reflect.MakeMap(v.Type()))
			}
			v.SetMapIndex(reflect.ValueOf(name), one)
			continue
		}
		found := false
		for field, fv := range v.Fields() {
			if found = field.Tag.Get("toml") == name; found {
				f.lay(fv, table[name], full(name), errs)
				break
			}
		}
		if !found {
			unknown := f.firstOf(full(name), table[name])
			at, where := f.place(unknown)
			errs.add(at, unknown, where, "unknown key "+quoted(unknown), unknownHint(unknown))
		}
	}
}

// firstOf is the first key in an unknown table: it says more than the table.
func (f *file) firstOf(key string, raw any) string {
	for {
		table, ok := raw.(map[string]any)
		if !ok || len(table) == 0 {
			return key
		}
		first, at := "", 0
		for name := range table {
			if k := key + "." + (toml.Key{name}).String(); first == "" || f.order[k] < at {
				first, at = k, f.order[k]
			}
		}
		raw, key = table[split(first)[len(split(first))-1]], first
	}
}

// kindOf says in words what a value in a file is.
func kindOf(raw any) string {
	switch raw.(type) {
	case string:
		return "a text"
	case int64:
		return "a whole number"
	case float64:
		return "a number"
	case bool:
		return "true or false"
	case []any, []map[string]any:
		return "a list"
	case map[string]any:
		return "a table"
	case time.Time:
		return "a date"
	}
	return "something else"
}

// takesKind says what a key takes, by what it is kept as.
func takesKind(key string, t reflect.Type) string {
	if hint := takes(key); hint != "" {
		return hint
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[Duration]():
		return durationHint
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return "it takes a whole number"
	case t.Kind() == reflect.Float64:
		return "it takes a number"
	case t.Kind() == reflect.Bool:
		return "it takes true or false"
	case t.Kind() == reflect.Slice:
		return `it takes a list of texts: ["a", "b"]`
	}
	return `it takes a text in quotes: "a"`
}

func tableHint(key string) string {
	if table, keys := nearestTable(key); table != "" {
		return fmt.Sprintf("%s is a table, with the keys %s", table, strings.Join(keys, ", "))
	}
	return "see `kernelwright config show --default` for every key"
}

// decodeError is of a text that is no TOML.
func decodeError(path string, err error) *Error {
	var parse toml.ParseError
	if !errors.As(err, &parse) {
		return &Error{Where: path, Text: strings.TrimPrefix(err.Error(), "toml: "), Hint: "see `kernelwright config show --default` for every key and the kind of its value"}
	}
	text := parse.Message
	if text == "" {
		text = strings.TrimPrefix(err.Error(), "toml: ")
		if _, rest, ok := strings.Cut(text, "): "); ok {
			text = rest
		}
	}
	if parse.LastKey != "" {
		text = parse.LastKey + ": " + text
	}
	hint := "see `kernelwright config show --default` for every key and the kind of its value"
	if strings.Contains(text, "':'") {
		hint = `a name with a colon stands in quotes: [llm.models."openai:gpt-5"]`
	}
	return &Error{Where: fmt.Sprintf("%s:%d", path, max(parse.Position.Line, 1)), Text: text, Hint: hint}
}

// unknownHint says which key may have been meant.
func unknownHint(key string) string {
	if _, name := cutLast(key); strings.HasPrefix(key, "llm.") && slices.Contains(secrets, name) {
		return secretHint
	}
	if table, _ := nearestTable(key); table != "" {
		return tableHint(key)
	}
	if near := Nearest(key); near != "" {
		return fmt.Sprintf("did you mean %s?", quoted(near))
	}
	if section, _ := cutLast(key); section != "" {
		if table, keys := nearestTable(section); table != "" {
			return fmt.Sprintf("%s has the keys %s", table, strings.Join(keys, ", "))
		}
	}
	return "see `kernelwright config show --default` for every key"
}
