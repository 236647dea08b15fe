package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/BurntSushi/toml"
)

// Keys returns every key whose name is known, in the order of config.toml:
// "rounds.max". Those of tables that people name are KeysOf's.
func Keys() []string { return slices.DeleteFunc(slices.Clone(allKeys()), free) }

// anyName stands for a name that people choose in a key, as it does in what
// people read.
const anyName = "NAME"

// free reports whether a key has a name in it that people choose.
func free(key string) bool { return strings.Contains(key, "."+anyName+".") }

var allKeys = sync.OnceValue(func() []string {
	var out []string
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for f := range t.Fields() {
			name := prefix + f.Tag.Get("toml")
			switch f.Type.Kind() {
			case reflect.Struct:
				walk(f.Type, name+".")
			case reflect.Map:
				walk(f.Type.Elem(), name+"."+anyName+".")
			default:
				out = append(out, name)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
	return out
})

// KeysOf returns the keys that have a value in c: all of Keys, and what is set
// in the tables that people name: `llm.models."openai:gpt-5".max_tokens`.
func KeysOf(c Config) []string {
	var out []string
	last := ""
	for _, k := range allKeys() {
		table, _, ok := strings.Cut(k, "."+anyName+".")
		if !ok {
			out = append(out, k)
			continue
		}
		if table == last {
			continue // with the first of its keys
		}
		last = table
		tables, _ := field(reflect.ValueOf(&c).Elem(), split(table))
		for _, chosen := range names(tables) {
			for _, k := range allKeys() {
				of, name, ok := strings.Cut(k, "."+anyName+".")
				if !ok || of != table {
					continue
				}
				key := inTable(table, chosen, name)
				// A price of 0 is a price; another 0 is nothing.
				if v, ok := field(reflect.ValueOf(&c).Elem(), split(key)); ok && (!v.IsZero() || table == prices && v.Kind() != reflect.Pointer) {
					out = append(out, key)
				}
			}
		}
	}
	return out
}

// names returns the names that people chose in a table, sorted.
func names(tables reflect.Value) []string {
	var out []string
	for _, k := range tables.MapKeys() {
		out = append(out, k.String())
	}
	slices.Sort(out)
	return out
}

// inTable is the key of a value in a table that people named.
func inTable(table, chosen, name string) string {
	return table + "." + toml.Key{chosen}.String() + "." + name
}

// Value returns the value of a key, and whether there is such a key.
func Value(c Config, key string) (any, bool) {
	v, ok := field(reflect.ValueOf(&c).Elem(), split(key))
	if !ok {
		return nil, false
	}
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return v.Interface(), true
}

// Literal writes a value as TOML does.
func Literal(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case Duration:
		return quote(v.String())
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// quote writes a basic string of TOML, whose escapes are not Go's.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08X`, r)
		default:
			fmt.Fprintf(&b, `\u%04X`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// takes says in words what a key's value is written like, for who wrote it
// otherwise.
func takes(key string) string {
	v, _ := Value(Default(), key)
	switch v.(type) {
	case Duration:
		return durationHint
	case int, int64:
		return fmt.Sprintf("it takes a whole number, such as %v, the default", v)
	case float64:
		return fmt.Sprintf("it takes a number, such as %v, the default", v)
	case bool:
		return "it takes true or false"
	}
	return ""
}

const durationHint = `it takes a number with its unit, such as "90s" or "10m"`

// Set gives a key the value that a text from the environment or a flag means.
// Lists are separated by commas, or by line feeds where there is one.
func Set(c *Config, key, text string) error {
	v, ok := field(reflect.ValueOf(c).Elem(), split(key))
	if !ok || !v.CanSet() {
		return fmt.Errorf("unknown key %s", quoted(key))
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		v.SetFloat(f)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		v.SetBool(b)
	case reflect.Slice:
		list, sep := []string{}, ","
		if strings.Contains(text, "\n") {
			sep = "\n"
		}
		for part := range strings.SplitSeq(text, sep) {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		v.Set(reflect.ValueOf(list))
	default:
		return fmt.Errorf("cannot set a %s", v.Kind())
	}
	return nil
}

// field returns what is at a key. What people named can be read and not set: it
// is a copy.
func field(v reflect.Value, key []string) (reflect.Value, bool) {
	if len(key) == 0 {
		return v, v.Kind() != reflect.Struct
	}
	switch v.Kind() {
	case reflect.Struct:
		for f, fv := range v.Fields() {
			if f.Tag.Get("toml") == key[0] {
				return field(fv, key[1:])
			}
		}
	case reflect.Map:
		if one := v.MapIndex(reflect.ValueOf(key[0])); one.IsValid() {
			return field(one, key[1:])
		}
	}
	return reflect.Value{}, false
}

// split returns the parts of a key, without the quotes that some stand in.
func split(key string) []string {
	var parts []string
	for {
		key = strings.TrimLeft(key, " \t")
		var part string
		if q := strings.IndexAny(key, `"'`); q == 0 {
			end := strings.IndexByte(key[1:], key[0])
			if end < 0 {
				return append(parts, key)
			}
			part, key = key[1:end+1], key[end+2:]
			rest := strings.IndexByte(key, '.')
			if rest < 0 {
				return append(parts, part)
			}
			parts, key = append(parts, part), key[rest+1:]
			continue
		}
		part, rest, more := strings.Cut(key, ".")
		parts = append(parts, strings.TrimSpace(part))
		if !more {
			return parts
		}
		key = rest
	}
}

// quoted is a key as sentences have it.
func quoted(key string) string {
	if strings.Contains(key, `"`) {
		return "`" + key + "`"
	}
	return fmt.Sprintf("%q", key)
}

// filled returns every key, with the name from another key where that has one.
func filled(key string) []string {
	parts := split(key)
	out := slices.Clone(allKeys())
	for i, k := range out {
		table, name, ok := strings.Cut(k, "."+anyName+".")
		if n := len(split(table)); ok && len(parts) > n {
			out[i] = inTable(table, parts[n], name)
		}
	}
	return out
}

// Nearest returns the key that a mistyped one most likely means, or "". A key
// in the wrong section, or with the environment's underscores, is near too.
func Nearest(key string) string {
	best, bestAt := "", 1<<30
	for _, k := range filled(key) {
		d := distance(key, k)
		d = min(d, distance(key, strings.ReplaceAll(k, ".", "_")))
		table, last := cutLast(k)
		mineIn, mine := cutLast(key)
		if table == mineIn && d > max(1, len(mine)/2) {
			continue // what they have in common is the table
		}
		// A right name in a wrong section beats any respelling of another.
		if mine == last {
			d = min(d, 1)
		} else if slips := distance(mine, last); slips <= len(mine)/3 { // a short name is near to everything
			d = min(d, slips+1)
		}
		if d < bestAt {
			best, bestAt = k, d
		}
	}
	// Past half its letters a guess is noise.
	if bestAt > max(2, len(key)/2) {
		return ""
	}
	return best
}

// nearestTable returns the table whose name a key has, or nearly, and its keys.
func nearestTable(key string) (table string, keys []string) {
	for _, k := range allKeys() {
		section, _ := cutLast(k)
		if section != "" && distance(key, section) <= 1 {
			table, keys = section, append(keys, k)
		}
	}
	return table, keys
}

func cutLast(key string) (section, name string) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", key
	}
	return key[:i], key[i+1:]
}

// Distance is how many letters of one word have to be changed, added, left out or
// swapped to get another.
func Distance(a, b string) int { return distance(a, b) }

// distance is Damerau's, with neighbouring letters swapped counting once: the
// commonest typing error.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 256 || len(y) > 256 {
		return 1 << 20
	}
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}

// keyLines finds the line of each key in a TOML text that has been parsed
// already. The parser does not tell; headers and plain keys cover what people
// write, and a key it misses is reported without a line.
func keyLines(text string) map[string]int {
	lines := make(map[string]int)
	section, n := "", 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			name, ok := cutOutside(strings.TrimLeft(line, "["), ']')
			if ok {
				section = plainKey(name)
				if _, seen := lines[section]; !seen {
					lines[section] = n
				}
			}
			continue
		}
		name, ok := cutOutside(line, '=')
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		key := plainKey(name)
		if section != "" {
			key = section + "." + key
		}
		if _, seen := lines[key]; !seen {
			lines[key] = n
		}
	}
	return lines
}

// cutOutside is what stands before a character that does not stand in quotes.
func cutOutside(s string, at byte) (before string, found bool) {
	var in byte
	for i := range len(s) {
		switch c := s[i]; {
		case in != 0 && c == in:
			in = 0
		case in == 0 && (c == '"' || c == '\''):
			in = c
		case in == 0 && c == at:
			return s[:i], true
		}
	}
	return s, false
}

func plainKey(name string) string { return toml.Key(split(name)).String() }
