package hwfeedback

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// schemaType is what referee.schema.json says of a value.
type schemaType struct {
	Ref        string                `json:"$ref"`
	Type       string                `json:"type"`
	Items      *schemaType           `json:"items"`
	Properties map[string]schemaType `json:"properties"`
	Values     *schemaType           `json:"additionalProperties"`
}

// onlyOurs are keys of messages that Python neither sends nor reads.
var onlyOurs = map[string]string{
	"Answer.verdict.cached":    "whether this side had it",
	"Answer.verdict.explained": "made of two verdicts here",
}

// onlyTheirs are keys that Python reads and this side does not send.
var onlyTheirs = map[string]string{
	"Answer.parsed[].called": "for who builds it",
	"Answer.parsed[].lazy":   "for who builds it",
	"Request.cold":           "for tests",
	"Request.limits":         "for tests",
	"Request.require_custom": "for tests",
}

// The structs of requests to the referee, and of what it answers, have the keys,
// and the types, of referee.schema.json, which a test of the harness holds to its dataclasses.
func TestMessagesAreThoseOfTheSchema(t *testing.T) {
	content, err := os.ReadFile("harness/kwharness/base/referee.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs map[string]schemaType `json:"$defs"`
	}
	if err := json.Unmarshal(content, &schema); err != nil {
		t.Fatal(err)
	}
	c := messageCheck{defs: schema.Defs, met: map[string]bool{}}
	for name, typ := range map[string]reflect.Type{
		"Request":    reflect.TypeFor[evaluateBody](),
		"Answer":     reflect.TypeFor[evaluateReply](),
		"Parse":      reflect.TypeFor[parseBody](),
		"Inspect":    reflect.TypeFor[inspectBody](),
		"Build":      reflect.TypeFor[buildBody](),
		"BuildAhead": reflect.TypeFor[buildAheadBody](),
		"Export":     reflect.TypeFor[exportBody](),
		"BuiltFor":   reflect.TypeFor[Build](),
		"Check":      reflect.TypeFor[Check](),
		"Refusal":    reflect.TypeFor[remoteError](),
	} {
		c.object(name, schema.Defs[name], typ)
	}
	for _, wrong := range c.wrong {
		t.Error(wrong)
	}
	for _, one := range []map[string]string{onlyOurs, onlyTheirs} {
		for key := range one {
			if !c.met[key] {
				t.Errorf("%s is said to be on one side only, and is not", key)
			}
		}
	}
}

type messageCheck struct {
	defs  map[string]schemaType
	met   map[string]bool // keys that are on one side only
	wrong []string
}

func (c *messageCheck) errorf(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (c *messageCheck) object(where string, want schemaType, typ reflect.Type) {
	fields := map[string]reflect.Type{}
	keysOf(typ, fields)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := where + "." + key
		if p, ok := want.Properties[key]; ok {
			c.value(at, p, fields[key])
		} else if _, ok := onlyOurs[at]; !ok {
			c.errorf("%s is not in the schema", at)
		} else {
			c.met[at] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want.Properties)) {
		at := where + "." + key
		if _, ok := fields[key]; ok {
			continue
		}
		if _, ok := onlyTheirs[at]; !ok {
			c.errorf("%s has no field in %v", at, typ)
		} else {
			c.met[at] = true
		}
	}
}

func (c *messageCheck) value(at string, want schemaType, typ reflect.Type) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ == reflect.TypeFor[json.RawMessage]() {
		return // kept here as it came
	}
	if name, ok := strings.CutPrefix(want.Ref, "#/$defs/"); ok {
		if typ.Kind() != reflect.Struct {
			c.errorf("%s is %v, and an object in the schema", at, typ)
			return
		}
		c.object(at, c.defs[name], typ)
		return
	}
	if got := jsonType(typ.Kind()); got != want.Type {
		c.errorf("%s is %s, and in the schema %s", at, got, want.Type)
		return
	}
	switch {
	case want.Type == "array":
		c.value(at+"[]", *want.Items, typ.Elem())
	case want.Type == "object" && want.Values != nil:
		c.value(at+"{}", *want.Values, typ.Elem())
	}
}

// keysOf adds a struct's keys in JSON, those of embedded structs among them.
func keysOf(typ reflect.Type, into map[string]reflect.Type) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			keysOf(f.Type, into)
		case name != "" && name != "-":
			into[name] = f.Type
		}
	}
}

func jsonType(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Map:
		return "object"
	default:
		return k.String()
	}
}
