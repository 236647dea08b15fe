// Package outward has what is printed and sent of values: the form of --json and of the
// HTTP API. They are made of the same values as the record, by these rules:
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
package outward

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/ordered"
)

// Of returns the outward form of a value, for encoding/json.
func Of(v any) any { return outward(reflect.ValueOf(v)) }

// outward returns the outward form of a value.
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
	var o ordered.Object
	for _, key := range v.MapKeys() {
		value := outward(v.MapIndex(key))
		if value == "" {
			value = nil
		}
		o = append(o, ordered.Member{Key: fmt.Sprint(key.Interface()), Value: value})
	}
	slices.SortFunc(o, func(a, b ordered.Member) int { return strings.Compare(a.Key, b.Key) })
	return append(ordered.Object{}, o...)
}

func outwardStruct(v reflect.Value) any {
	o := ordered.Object{}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || !field.IsExported() && !field.Anonymous {
			continue
		}
		if field.Anonymous && name == "" { // its fields are this struct's
			if inner, ok := outward(v.Field(i)).(ordered.Object); ok {
				for _, m := range inner {
					o.Set(m.Key, m.Value)
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
			o.Set(name, value)
		case !optional:
			o.Set(name, nil)
		}
	}
	if v.Type() == reflect.TypeFor[kernelwright.Spend]() && v.FieldByName("Unpriced").Int() > 0 && v.FieldByName("USD").Float() == 0 { // no price is known
		o.Set("usd", nil)
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
