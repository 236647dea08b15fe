package judge

import (
	"bytes"
	"encoding/json"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// form is what an answer has to look like: a JSON object with these keys, in the
// order in which the prompt shows them. A server that decodes by the schema follows
// its order, so what a model is to find comes before what it makes of it.
type form struct {
	name  string
	kinds []string
	parts []string // texts, between the kind and the evidence
}

var forms = map[kernelwright.FeedbackKind]form{
	kernelwright.Correction:   {"correction", []string{"correction"}, []string{"issue", "why", "fix"}},
	kernelwright.Optimisation: {"optimisation", []string{"optimisation", "stop"}, []string{"bottleneck", "method", "plan", "why"}},
}

// keys are those of an answer, in order.
func (f form) keys() []string {
	return append(append([]string{"kind"}, f.parts...), "evidence")
}

// schema is the form as JSON Schema. Every key is required and none other allowed,
// because some providers hold a model only to such a schema; a key that its kind has
// no use for is empty. Evidence is names: the values are known.
func (f form) schema() *llm.Schema {
	type text struct {
		Type string   `json:"type"`
		Enum []string `json:"enum,omitempty"`
	}
	type list struct {
		Type  string `json:"type"`
		Items text   `json:"items"`
	}
	properties := object{{"kind", text{"string", f.kinds}}}
	for _, part := range f.parts {
		properties = append(properties, member{part, text{Type: "string"}})
	}
	properties = append(properties, member{"evidence", list{"array", text{Type: "string"}}})
	b, err := json.Marshal(object{{"type", "object"}, {"properties", properties}, {"required", f.keys()}, {"additionalProperties", false}})
	if err != nil { // strings alone
		panic(err)
	}
	return &llm.Schema{Name: f.name, Schema: b}
}

// object is a JSON object whose members stay in their order.
type object []member

type member struct {
	key   string
	value any
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
