// Package ordered has JSON objects whose members stay in their order.
package ordered

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Member is one key of an object with its value.
type Member struct {
	Key   string
	Value any
}

// Object is a JSON object.
type Object []Member

// Set puts a value under a key, in the place of one that is there.
func (o *Object) Set(key string, value any) {
	if i := slices.IndexFunc(*o, func(m Member) bool { return m.Key == key }); i >= 0 {
		(*o)[i].Value = value
		return
	}
	*o = append(*o, Member{key, value})
}

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.Value)
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
