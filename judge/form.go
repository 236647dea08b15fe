package judge

import (
	"encoding/json"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/ordered"
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
	var properties, schema ordered.Object
	properties.Set("kind", text{"string", f.kinds})
	for _, part := range f.parts {
		properties.Set(part, text{Type: "string"})
	}
	properties.Set("evidence", list{"array", text{Type: "string"}})
	schema.Set("type", "object")
	schema.Set("properties", properties)
	schema.Set("required", f.keys())
	schema.Set("additionalProperties", false)
	b, err := json.Marshal(schema)
	if err != nil { // strings alone
		panic(err)
	}
	return &llm.Schema{Name: f.name, Schema: b}
}
