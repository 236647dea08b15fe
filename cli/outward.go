package cli

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
)

// What --json prints is made of the same values as the record, by these rules:
//   - What is not known is null, or absent where its key is optional (omitempty): an
//     empty text always, and a number or struct that is zero where its field has the
//     tag unknown:"0", or -1 where that says so.
//   - A time is a text in ISO 8601, in UTC: a field with the tag time:"ms" holds Unix
//     milliseconds, one with time:"day" those of a day's beginning; 0 is not known.
//   - JSON within JSON is an object or a list: a field with the tag holds:"json".
//   - A field with the tag keep:"empty" may be empty and known. One with keep:"zero" is
//     there at 0, too, though its key is optional in the record.
//
// The record keeps its own form: digests rest on it.

// member is one key of an object with its value; object keeps their order.
type member struct {
	key   string
	value any
}

type object []member

// set puts a value under a key, in the place of one that is there.
func (o *object) set(key string, value any) {
	if i := slices.IndexFunc(*o, func(m member) bool { return m.key == key }); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{key, value})
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// outward returns what --json prints of a value.
func outward(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	if v.CanInterface() { // not a struct without a name of ours that another one embeds
		switch v.Interface().(type) {
		case json.Marshaler, encoding.TextMarshaler:
			return v.Interface()
		}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return outward(v.Elem())
	case reflect.Struct:
		return outwardStruct(v)
	case reflect.Map:
		return outwardMap(v)
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && (v.IsNil() || v.Type().Elem().Kind() == reflect.Uint8) {
			return v.Interface()
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = outward(v.Index(i))
		}
		return list
	default:
		return v.Interface()
	}
}

// outwardMap writes the keys in their order; an empty text is not known.
func outwardMap(v reflect.Value) any {
	if v.IsNil() {
		return nil
	}
	var o object
	for _, key := range v.MapKeys() {
		value := outward(v.MapIndex(key))
		if value == "" {
			value = nil
		}
		o = append(o, member{fmt.Sprint(key.Interface()), value})
	}
	slices.SortFunc(o, func(a, b member) int { return strings.Compare(a.key, b.key) })
	return append(object{}, o...)
}

func outwardStruct(v reflect.Value) any {
	o := object{}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || !field.IsExported() && !field.Anonymous {
			continue
		}
		if field.Anonymous && name == "" { // its fields are this struct's
			if inner, ok := outward(v.Field(i)).(object); ok {
				for _, m := range inner {
					o.set(m.key, m.value)
				}
			}
			continue
		}
		if name == "" {
			name = field.Name
		}
		value, known := outwardField(field, v.Field(i))
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		switch {
		case known && optional && field.Tag.Get("keep") != "zero" && left(options, v.Field(i)):
		case known:
			o.set(name, value)
		case !optional:
			o.set(name, nil)
		}
	}
	if v.Type() == reflect.TypeFor[kernelwright.Spend]() && v.FieldByName("Unpriced").Int() > 0 && v.FieldByName("USD").Float() == 0 { // no price is known
		o.set("usd", nil)
	}
	return o
}

// left reports whether encoding/json leaves a field's value out.
func left(options string, v reflect.Value) bool {
	if strings.Contains(options, "omitzero") {
		return v.IsZero()
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Array:
		return v.Kind() == reflect.Array && v.Len() == 0
	case reflect.Map, reflect.Slice:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// outwardField returns a field's value, and whether it is known.
func outwardField(field reflect.StructField, v reflect.Value) (value any, known bool) {
	switch tag := field.Tag; {
	case tag.Get("time") != "":
		if v.Int() == 0 {
			return nil, false
		}
		return isoTime(v.Int(), tag.Get("time")), true
	case tag.Get("holds") == "json":
		text := fmt.Sprintf("%s", v.Interface())
		switch {
		case text == "":
			return nil, false
		case strings.ContainsRune("{[", rune(text[0])) && json.Valid([]byte(text)):
			return json.RawMessage(text), true
		}
		return text, true
	case tag.Get("unknown") == "0" && v.IsZero(), tag.Get("unknown") == "-1" && v.Int() == -1:
		return nil, false
	case tag.Get("keep") == "empty":
		return v.Interface(), true
	case v.Kind() == reflect.String && v.Len() == 0:
		return nil, false
	}
	return outward(v), true
}

// isoTime writes Unix milliseconds in ISO 8601.
func isoTime(ms int64, kind string) string {
	at := time.UnixMilli(ms).UTC()
	if kind == "day" {
		return at.Format(time.DateOnly)
	}
	return at.Format("2006-01-02T15:04:05.000Z07:00")
}
