package api

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kernelwright/kernelwright"
)

// outwardSchemas has the schemas say what package outward makes of the types: times are
// texts, what is not known is null, and JSON that a text holds is a value.
func outwardSchemas(all huma.Registry) {
	for name, schema := range all.Map() {
		if t := all.TypeFromRef("#/components/schemas/" + name); t != nil && t.Kind() == reflect.Struct {
			outwardFields(t, schema)
		}
	}
}

func outwardFields(t reflect.Type, schema *huma.Schema) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && name == "" {
			if field.Type.Kind() == reflect.Struct {
				outwardFields(field.Type, schema)
			}
			continue
		}
		if name == "" {
			name = field.Name
		}
		if p := schema.Properties[name]; p != nil {
			schema.Properties[name] = outwardSchema(field, p)
			if t == reflect.TypeFor[kernelwright.Spend]() && name == "usd" { // null where no price is known
				p.Nullable = true
			}
		}
	}
}

func outwardSchema(field reflect.StructField, p *huma.Schema) *huma.Schema {
	kind := field.Type.Kind()
	switch tag := field.Tag; {
	case tag.Get("time") == "day":
		return &huma.Schema{Type: huma.TypeString, Format: "date", Nullable: true, Description: p.Description}
	case tag.Get("time") != "":
		return &huma.Schema{Type: huma.TypeString, Format: "date-time", Nullable: true, Description: p.Description}
	case tag.Get("holds") == "json" || kind == reflect.Interface || p.Type == "" && p.Ref == "":
		return &huma.Schema{Description: p.Description}
	case tag.Get("nullable") == "false":
		return p
	case p.Ref != "":
		if kind == reflect.Pointer || tag.Get("unknown") != "" {
			return &huma.Schema{AnyOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}}
		}
	case kind == reflect.String || kind == reflect.Pointer || kind == reflect.Map || kind == reflect.Slice || tag.Get("unknown") != "":
		p.Nullable = true
	}
	return p
}

// completeResponses has each operation say the statuses that the server answers before a
// handler does, and none that it never gives. Operations have the first word of their path
// as a tag.
func completeResponses(d *huma.OpenAPI) {
	header := func(name string) map[string]*huma.Param {
		return map[string]*huma.Param{name: {Schema: &huma.Schema{Type: huma.TypeString}}}
	}
	for path, item := range d.Paths {
		tag, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "/api/v1"), "/"), "/")
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put} {
			if op == nil {
				continue
			}
			op.Tags = []string{tag}
			problem := op.Responses["400"].Content
			for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge} {
				if status != http.StatusRequestEntityTooLarge || op.RequestBody != nil {
					op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status), Content: problem}
				}
			}
			delete(op.Responses, "422") // it is a 400 here
			delete(op.Responses, "500")
			op.Responses["503"].Headers = header("Retry-After")
			if op == item.Get && path != eventsPath {
				op.Responses["200"].Headers = header("ETag")
				op.Responses["304"] = &huma.Response{Description: "The client has it, by its If-None-Match."}
			}
		}
	}
}
