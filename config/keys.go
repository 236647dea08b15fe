package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// Keys returns every key, in the order of config.toml: "rounds.max".
func Keys() []string { return keys() }

var keys = sync.OnceValue(func() []string {
	var out []string
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for f := range t.Fields() {
			name := prefix + f.Tag.Get("toml")
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, name+".")
				continue
			}
			out = append(out, name)
		}
	}
	walk(reflect.TypeFor[Config](), "")
	return out
})

// Value returns the value of a key, and whether there is such a key.
func Value(c Config, key string) (any, bool) {
	v, ok := field(reflect.ValueOf(&c).Elem(), key)
	if !ok {
		return nil, false
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
		return `it takes a number with its unit, such as "90s" or "10m"`
	case int, int64:
		return fmt.Sprintf("it takes a whole number, such as %v, the default", v)
	case float64:
		return fmt.Sprintf("it takes a number, such as %v, the default", v)
	case bool:
		return "it takes true or false"
	}
	return ""
}

// Set gives a key the value that a text from the environment or a flag means.
// Lists are separated by commas, or by line feeds where there is one.
func Set(c *Config, key, text string) error {
	v, ok := field(reflect.ValueOf(c).Elem(), key)
	if !ok {
		return fmt.Errorf("unknown key %q", key)
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

func field(v reflect.Value, key string) (reflect.Value, bool) {
	head, rest, nested := strings.Cut(key, ".")
	for f, fv := range v.Fields() {
		if f.Tag.Get("toml") != head {
			continue
		}
		if nested != (f.Type.Kind() == reflect.Struct) {
			return reflect.Value{}, false
		}
		if nested {
			return field(fv, rest)
		}
		return fv, true
	}
	return reflect.Value{}, false
}

// Nearest returns the key that a mistyped one most likely means, or "". A key
// in the wrong section, or with the environment's underscores, is near too.
func Nearest(key string) string {
	best, bestAt := "", 1<<30
	for _, k := range Keys() {
		d := distance(key, k)
		d = min(d, distance(key, strings.ReplaceAll(k, ".", "_")))
		_, last := cutLast(k)
		_, mine := cutLast(key)
		// A right name in a wrong section beats any respelling of another.
		if mine == last {
			d = min(d, 1)
		} else {
			d = min(d, distance(mine, last)+1)
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
	for _, k := range Keys() {
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
			name, _, ok := strings.Cut(strings.TrimLeft(line, "["), "]")
			if ok {
				section = plainKey(name)
				if _, seen := lines[section]; !seen {
					lines[section] = n
				}
			}
			continue
		}
		name, _, ok := strings.Cut(line, "=")
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

func plainKey(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = strings.Trim(strings.TrimSpace(p), `"'`)
	}
	return strings.Join(parts, ".")
}
