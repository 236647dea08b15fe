package api

import (
	"reflect"
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
