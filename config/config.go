// Package config reads the settings: strictly, with an origin for each key,
// and with errors that say what, where, and what to do next.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/BurntSushi/toml"

	"github.com/kernelwright/kernelwright"
)

// EnvPrefix starts every environment variable that sets a key:
// KERNELWRIGHT_ROUNDS_MAX sets rounds.max.
const EnvPrefix = "KERNELWRIGHT_"

// EnvFile names the variable that names the file.
const EnvFile = EnvPrefix + "CONFIG"

// maxFile bounds what is read as a settings file; the default is 4 KiB.
const maxFile = 1 << 20

// Config is every setting. config.toml says what each is for.
type Config struct {
	DataDir string `toml:"data_dir" json:"data_dir"`
	Device  string `toml:"device" json:"device"`
	Threads int    `toml:"threads" json:"threads"`
	Python  string `toml:"python" json:"python"`
	Sandbox string `toml:"sandbox" json:"sandbox"`

	Watch      Watch      `toml:"watch" json:"watch"`
	Rounds     Rounds     `toml:"rounds" json:"rounds"`
	Beam       Beam       `toml:"beam" json:"beam"`
	React      React      `toml:"react" json:"react"`
	Coder      Coder      `toml:"coder" json:"coder"`
	Judge      Judge      `toml:"judge" json:"judge"`
	Prompts    Prompts    `toml:"prompts" json:"prompts"`
	LLM        LLM        `toml:"llm" json:"llm"`
	Budget     Budget     `toml:"budget" json:"budget"`
	Evaluation Evaluation `toml:"evaluation" json:"evaluation"`
	Training   Training   `toml:"training" json:"training"`
	Daemon     Daemon     `toml:"daemon" json:"daemon"`
	HTTP       HTTP       `toml:"http" json:"http"`
	Retention  Retention  `toml:"retention" json:"retention"`
	Log        Log        `toml:"log" json:"log"`
}

// Watch says which files the daemon takes.
type Watch struct {
	Folders    []string `toml:"folders" json:"folders"`
	Patterns   []string `toml:"patterns" json:"patterns"`
	Recursive  bool     `toml:"recursive" json:"recursive"`
	DebounceMS int      `toml:"debounce_ms" json:"debounce_ms"`
	PollMS     int      `toml:"poll_ms" json:"poll_ms"`
	OutputDir  string   `toml:"output_dir" json:"output_dir"`
}

// Retention says which texts of old rounds the daemon drops once a day.
type Retention struct {
	Days       int `toml:"days" json:"days"` // 0: none
	LeastBytes int `toml:"least_bytes" json:"least_bytes"`
}

// Rounds bounds a run.
type Rounds struct {
	Strategy string   `toml:"strategy" json:"strategy"`
	Max      int      `toml:"max" json:"max"`
	WallTime Duration `toml:"wall_time" json:"wall_time"`
	Headroom float64  `toml:"headroom" json:"headroom"`
	Patience int      `toml:"patience" json:"patience"`
	Judge    string   `toml:"judge" json:"judge"`
	Metrics  string   `toml:"metrics" json:"metrics"`
	Language string   `toml:"language" json:"language"`
	Seed     int64    `toml:"seed" json:"seed"`
}

// Beam is of the strategy of that name.
type Beam struct {
	Width   int `toml:"width" json:"width"`
	Samples int `toml:"samples" json:"samples"`
}

// React is of the strategy of that name.
type React struct {
	Turns         int  `toml:"turns" json:"turns"`
	ContextTokens int  `toml:"context_tokens" json:"context_tokens"`
	TextTools     bool `toml:"text_tools" json:"text_tools"`
}

// Coder names who writes candidates.
type Coder struct {
	Name string `toml:"name" json:"name"`
	Form string `toml:"form" json:"form"`
}

// Judge names who reads verdicts.
type Judge struct {
	Name    string `toml:"name" json:"name"`
	Lessons bool   `toml:"lessons" json:"lessons"`
}

// Prompts says in which words models are asked.
type Prompts struct {
	Folder  string `toml:"folder" json:"folder"`
	Profile string `toml:"profile" json:"profile"`
}

// LLM says how language models are reached. Its tables have names that people
// choose: of providers, and of models as "provider:model".
type LLM struct {
	MaxTokens int                `toml:"max_tokens" json:"max_tokens"`
	Timeout   Duration           `toml:"timeout" json:"timeout"`
	Attempts  int                `toml:"attempts" json:"attempts"`
	Providers map[string]Options `toml:"providers" json:"providers"`
	Models    map[string]Options `toml:"models" json:"models"`
	Prices    map[string]Price   `toml:"prices" json:"prices"`
}

// Options is of one provider or one model. What is not set is left to what
// stands below: the provider, then the defaults of LLM, then the program's.
type Options struct {
	BaseURL           string   `toml:"base_url" json:"base_url,omitzero"`
	KeyEnv            string   `toml:"key_env" json:"key_env,omitzero"`
	AllowPlainHTTP    *bool    `toml:"allow_plain_http" json:"allow_plain_http,omitzero"`
	MaxTokens         int      `toml:"max_tokens" json:"max_tokens,omitzero"`
	ContextLength     int      `toml:"context_length" json:"context_length,omitzero"`
	Temperature       *float64 `toml:"temperature" json:"temperature,omitzero"`
	TopP              *float64 `toml:"top_p" json:"top_p,omitzero"`
	Sampling          *bool    `toml:"sampling" json:"sampling,omitzero"`
	ReasoningEffort   string   `toml:"reasoning_effort" json:"reasoning_effort,omitzero"`
	Stream            *bool    `toml:"stream" json:"stream,omitzero"`
	NativeTools       *bool    `toml:"native_tools" json:"native_tools,omitzero"`
	JSONSchema        *bool    `toml:"json_schema" json:"json_schema,omitzero"`
	PromptCache       *bool    `toml:"prompt_cache" json:"prompt_cache,omitzero"`
	TokenIDs          *bool    `toml:"token_ids" json:"token_ids,omitzero"`
	TrainOn           *bool    `toml:"train_on" json:"train_on,omitzero"`
	Timeout           Duration `toml:"timeout" json:"timeout,omitzero"`
	MaxReplyBytes     int64    `toml:"max_reply_bytes" json:"max_reply_bytes,omitzero"`
	Attempts          int      `toml:"attempts" json:"attempts,omitzero"`
	Concurrency       int      `toml:"concurrency" json:"concurrency,omitzero"`
	RequestsPerMinute int      `toml:"requests_per_minute" json:"requests_per_minute,omitzero"`
	TokensPerMinute   int      `toml:"tokens_per_minute" json:"tokens_per_minute,omitzero"`
}

// Price is what a model's tokens cost, in USD for a million.
type Price struct {
	In         float64  `toml:"in" json:"in"`
	CachedIn   *float64 `toml:"cached_in" json:"cached_in,omitzero"`
	CacheWrite *float64 `toml:"cache_write" json:"cache_write,omitzero"`
	Out        float64  `toml:"out" json:"out"`
	AsOf       string   `toml:"as_of" json:"as_of"`
}

// Budget is what language models may use.
type Budget struct {
	Run    Allowance            `toml:"run" json:"run"`
	Day    Allowance            `toml:"day" json:"day"`
	Models map[string]Allowance `toml:"models" json:"models"`
}

// Allowance is how much may be used; 0 is no limit.
type Allowance struct {
	USD      float64  `toml:"usd" json:"usd"`
	Tokens   int64    `toml:"tokens" json:"tokens"`
	Calls    int64    `toml:"calls" json:"calls"`
	WallTime Duration `toml:"wall_time" json:"wall_time"`
}

// Evaluation says what candidates are held against, and what one answer of the
// hardware may take.
type Evaluation struct {
	Timeout        Duration `toml:"timeout" json:"timeout"`
	InspectTimeout Duration `toml:"inspect_timeout" json:"inspect_timeout"`
	CertifyTime    Duration `toml:"certify_time" json:"certify_time"`
	Baselines      []string `toml:"baselines" json:"baselines"`
	Precision      string   `toml:"precision" json:"precision"`
	StrictInputs   bool     `toml:"strict_inputs" json:"strict_inputs"`
	CustomCode     string   `toml:"custom_code" json:"custom_code"`
	Profile        bool     `toml:"profile" json:"profile"`
	AtOnce         int      `toml:"at_once" json:"at_once"`
	KeepWarm       Duration `toml:"keep_warm" json:"keep_warm"`
}

// Training is how a policy is trained.
type Training struct {
	Protected []string `toml:"protected" json:"protected"`
	Composer  string   `toml:"composer" json:"composer"`
	EagerMin  Duration `toml:"eager_min" json:"eager_min"`
	EagerMax  Duration `toml:"eager_max" json:"eager_max"`

	Python         string `toml:"python" json:"python"`
	Processes      int    `toml:"processes" json:"processes"`
	Base           string `toml:"base" json:"base"`
	LoraRank       int    `toml:"lora_rank" json:"lora_rank"`
	Tasks          int    `toml:"tasks" json:"tasks"`
	Pairs          int    `toml:"pairs" json:"pairs"`
	WarmupSteps    int    `toml:"warmup_steps" json:"warmup_steps"`
	AgenticSteps   int    `toml:"agentic_steps" json:"agentic_steps"`
	TasksPerStep   int    `toml:"tasks_per_step" json:"tasks_per_step"`
	SamplesPerTask int    `toml:"samples_per_task" json:"samples_per_task"`
	Rounds         int    `toml:"rounds" json:"rounds"`
	AnswerTokens   int    `toml:"answer_tokens" json:"answer_tokens"`

	Schedule Schedule `toml:"schedule" json:"schedule"`
}

// Schedule says when the daemon trains by itself, and what a night may use.
type Schedule struct {
	Cron     string  `toml:"cron" json:"cron"`
	TimeZone string  `toml:"time_zone" json:"time_zone"`
	Hours    float64 `toml:"hours" json:"hours"`
	GPUHours float64 `toml:"gpu_hours" json:"gpu_hours"`
}

// Daemon is what only the daemon needs.
type Daemon struct {
	Grace          Duration `toml:"grace" json:"grace"`
	Attempts       int      `toml:"attempts" json:"attempts"`
	ReportMarkdown bool     `toml:"report_markdown" json:"report_markdown"`
	ReportHTML     bool     `toml:"report_html" json:"report_html"`
}

// HTTP is the daemon's HTTP API.
type HTTP struct {
	Listen   string `toml:"listen" json:"listen"`
	TLSCert  string `toml:"tls_cert" json:"tls_cert"`
	TLSKey   string `toml:"tls_key" json:"tls_key"`
	Insecure bool   `toml:"insecure" json:"insecure"`
	Episodes bool   `toml:"episodes" json:"episodes"`
}

// Log is what is said on standard error.
type Log struct {
	Level  string `toml:"level" json:"level"`
	Format string `toml:"format" json:"format"`
}

// Duration is a time.Duration written as Go writes it: "10m".
type Duration time.Duration

// Std returns it as the standard library's.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes it without the zero parts that Go leaves on: "10m".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a length of time such as %q or %q", text, "90s", "10m")
	}
	*d = Duration(v)
	return nil
}

// Error is something wrong with the settings: a sentence, and what to do.
type Error struct {
	Where string // a file and a line, a variable, or a flag; may be empty
	Text  string
	Hint  string

	at int // its place among others
}

func (e *Error) Error() string {
	if e.Where == "" {
		return e.Text
	}
	return e.Where + ": " + e.Text
}

// Origin says where a value came from.
type Origin struct {
	Kind  string `json:"kind"`            // "default", "file", "environment" or "flag"
	Where string `json:"where,omitempty"` // the file and line, the variable, or the flag

	at int // its place in the order of errors
}

// String is the origin as people read it.
func (o Origin) String() string {
	if o.Where == "" {
		return o.Kind
	}
	return o.Where
}

// Origins is the origin of each key.
type Origins map[string]Origin

// Default returns config.toml as it was built in.
func Default() Config {
	var c Config
	if md, err := toml.Decode(kernelwright.DefaultConfig, &c); err != nil {
		panic("config.toml: " + err.Error())
	} else if extra := md.Undecoded(); len(extra) > 0 {
		panic("config.toml: no field for " + extra[0].String())
	}
	return c
}

// Load returns the default with the file at path laid over it. An empty path
// is no file. The result is checked.
func Load(path string) (Config, Origins, error) {
	return Read(Source{File: path})
}

// Source is where settings are read from, weakest first.
type Source struct {
	File  string            // a file that must exist; empty: none
	Env   []string          // as os.Environ gives it
	Flags map[string]string // key to the text given; the flag's name is in FlagNames
	// FlagNames says how the flag of a key is written, for messages and
	// origins: "rounds.max" to "--rounds".
	FlagNames map[string]string
}

// Read lays file, environment and flags over the defaults and checks the
// result. What is wrong is told as Errors.
func Read(s Source) (Config, Origins, error) {
	c := Default()
	origins := make(Origins)
	for _, k := range KeysOf(c) {
		origins[k] = Origin{Kind: "default"}
	}
	errs := &errorList{}
	if s.File != "" {
		readFile(&c, origins, errs, s.File)
	}
	readEnv(&c, origins, errs, s.Env)
	for i, k := range Keys() {
		text, ok := s.Flags[k]
		if !ok {
			continue
		}
		where := s.FlagNames[k]
		if err := Set(&c, k, text); err != nil {
			errs.add(ofFlags+i, k, where, err.Error(), takes(k))
			continue
		}
		origins[k] = Origin{Kind: "flag", Where: where, at: ofFlags + i}
	}
	c.LLM.Providers, c.LLM.Models, c.Budget.Models = orNone(c.LLM.Providers), orNone(c.LLM.Models), orNone(c.Budget.Models)
	check(c, origins, errs)
	if err := errs.err(); err != nil {
		return Config{}, nil, err
	}
	return c, origins, nil
}

// orNone is nil for a table that was named and left empty.
func orNone[V any](m map[string]V) map[string]V {
	if len(m) == 0 {
		return nil
	}
	return m
}

// FindFile returns the settings file in force: the one asked for, the one that
// the environment names, or the user's own where it exists. A file in the
// working folder is not read: it could name a program to run.
func FindFile(asked string, getenv func(string) string) string {
	if asked != "" {
		return asked
	}
	if named := getenv(EnvFile); named != "" {
		return named
	}
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := getenv("HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	path := filepath.Join(dir, "kernelwright", "config.toml")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

// DataFolder returns the data folder of c as an absolute path.
func DataFolder(c Config, getenv func(string) string) (string, error) {
	dir := c.DataDir
	if dir == "" {
		base := getenv("XDG_DATA_HOME")
		if base == "" {
			home := getenv("HOME")
			if home == "" {
				return "", &Error{Text: "no data folder: HOME is not set", Hint: "give one with --data-dir"}
			}
			base = filepath.Join(home, ".local", "share")
		}
		dir = filepath.Join(base, "kernelwright")
	}
	dir = expandHome(dir, getenv)
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", &Error{Text: fmt.Sprintf("data folder %q: %v", dir, err), Hint: "give an absolute path with --data-dir"}
	}
	return abs, nil
}

func expandHome(path string, getenv func(string) string) string {
	home := getenv("HOME")
	if home == "" {
		return path
	}
	if path == "~" {
		return home
	}
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(home, rest)
	}
	return path
}

// shown makes a sentence of words that repeat what a file or a variable holds.
func shown(text string) string {
	const most = 300 // characters
	var b strings.Builder
	n := 0
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		if unicode.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "<U+%04X>", r)
		}
	}
	return b.String()
}

// cause strips the operation and the path that os wraps an error in: the
// message that shows it names the path already.
func cause(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
