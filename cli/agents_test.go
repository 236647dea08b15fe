package cli

import (
	"reflect"
	"testing"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/llm"
)

// Every setting of a model reaches it.
func TestSettingsOfAModelReachIt(t *testing.T) {
	set := reflect.New(reflect.TypeFor[config.Options]()).Elem()
	known := map[string]bool{}
	for i := range set.NumField() {
		f := set.Field(i)
		known[set.Type().Field(i).Tag.Get("toml")] = true
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		default:
			f.SetInt(7)
		}
	}
	got := reflect.ValueOf(modelOptions(set.Interface().(config.Options)))
	for i := range got.NumField() {
		name := got.Type().Field(i).Tag.Get("toml")
		switch {
		case name == "" || name == "-": // services, which no file holds
		case !known[name]:
			t.Errorf("%s of %v is no setting", name, reflect.TypeFor[llm.Options]())
		case got.Field(i).IsZero():
			t.Errorf("%s is lost on its way", name)
		}
		delete(known, name)
	}
	for name := range known {
		t.Errorf("the setting %s reaches no model", name)
	}
}
