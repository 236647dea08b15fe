package config

import (
	"slices"
	"strings"
)

// EnvName returns the variable that sets a key.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// others are variables of our names that set no key: the file's, and what the
// tests and the harness read.
var others = []string{EnvFile, EnvPrefix + "ALLOCATOR", EnvPrefix + "GOLDEN", TrainTokenEnv, APITokenEnv, APIReadTokenEnv, EnvPrefix + "SOAK", EnvPrefix + "SOAK_KILLS", EnvPrefix + "SOAK_TASKS", EnvPrefix + "STORE_TEST_WRITER"}

// TrainTokenEnv holds the token that clients of `train serve` give.
const TrainTokenEnv = EnvPrefix + "TRAIN_TOKEN"

// APITokenEnv holds the token that clients of the daemon's HTTP API give, and
// APIReadTokenEnv one that may only read.
const (
	APITokenEnv     = EnvPrefix + "API_TOKEN"
	APIReadTokenEnv = EnvPrefix + "API_READ_TOKEN"
)

const testPrefix = EnvPrefix + "TEST_"

// readEnv takes every variable that names a key. Any other that begins as ours
// do is an error, unless it is empty or the settings name it as a provider's.
func readEnv(c *Config, origins Origins, errs *errorList, env []string) {
	set := make(map[string]string, len(env))
	var order []string
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			if _, seen := set[name]; !seen {
				order = append(order, name)
			}
			set[name] = value
		}
	}
	slices.Sort(order)
	known := map[string]bool{}
	for _, name := range others {
		known[name] = true
	}
	for _, o := range c.LLM.Providers {
		known[o.KeyEnv] = true
	}
	for _, o := range c.LLM.Models {
		known[o.KeyEnv] = true
	}
	for _, k := range Keys() {
		name := EnvName(k)
		known[name] = true
		value, ok := set[name]
		if !ok {
			continue
		}
		at := ofEnvironment + slices.Index(order, name)
		if err := Set(c, k, value); err != nil {
			errs.add(at, k, name, err.Error(), takes(k))
			continue
		}
		origins[k] = Origin{Kind: "environment", Where: name, at: at}
	}
	for i, name := range order {
		if known[name] || set[name] == "" || strings.HasPrefix(name, testPrefix) {
			continue
		}
		hint := "unset it, or see `kernelwright config show --default` for every key: a variable is its key in capitals, with _ for each dot"
		if near := Nearest(strings.ToLower(strings.TrimPrefix(name, EnvPrefix))); near != "" {
			hint = "did you mean " + EnvName(near) + "?"
		}
		errs.add(ofEnvironment+i, name, name, "unknown variable: it sets nothing", hint)
	}
}
