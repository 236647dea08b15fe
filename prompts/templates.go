package prompts

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

//go:embed templates/*.tmpl templates/*.py
var embeddedTemplates embed.FS

// templatesFolder is where the templates lie, in the binary and in a user's
// folder.
const templatesFolder = "templates"

// MaxTemplateBytes is what one template may be at most: all of it goes into a
// prompt.
const MaxTemplateBytes = 64 << 10

// Form is how a Coder is to write its candidate: a language, of C++ and CUDA in
// the native form, or load_inline.
type Form string

// FormLoadInline is a second form of CUDA.
const FormLoadInline Form = "load_inline"

// Forms are all of them. Each has a file example_FORM.py.
var Forms = func() (forms []Form) {
	for _, name := range kernelwright.AllLanguages() {
		forms = append(forms, Form(name))
		if name == FormLoadInline.Language() {
			forms = append(forms, FormLoadInline)
		}
	}
	return forms
}()

// Language returns what a candidate of this form is written in.
func (f Form) Language() kernelwright.Language {
	if f == FormLoadInline {
		return kernelwright.CUDA
	}
	return kernelwright.Language(f)
}

// CoderView is what a Coder's templates show. All that others wrote is Data.
type CoderView struct {
	Form             Form
	GPU              bool
	Compact          bool   // in few words: Brief takes the place of Task and Device, and what a context can do without is not shown
	MayCompact       bool   // it may be made so where all of it does not fit
	ShowExample      bool   // where no candidate of its own shows it the form
	ExampleReference string // ours, or the user's
	Example          string // of this form

	Reference Data
	Brief     Data // device and graph, where the prompt is compact
	Task      Data // what inspection found
	Device    Data
	Skills    []Skill
	Lessons   Data // what changes brought in earlier runs on this device; where no Judge has read them

	// Of the last candidate; empty in the first round.
	Candidate Data
	Correct   bool
	Verdict   Data
	Feedback  Data
	Compiler  Data // the end of its output
	Output    Data // the candidate's
	Metrics   Data
	Build     Data
	Score     string // a sentence
	Repeats   bool   // it was an earlier round's, and not measured again
	Unusable  Data   // the answer after it, which held no candidate

	Sample int // several are asked the same: which of them it is, from 0
}

// JudgeView is what a Judge's templates show. All that others wrote is Data.
type JudgeView struct {
	Language            kernelwright.Language
	GPU                 bool
	Compact, MayCompact bool // as in CoderView

	Reference Data
	Brief     Data
	Task      Data
	Device    Data
	Skills    []Skill

	Candidate Data
	Verdict   Data
	Compiler  Data
	Output    Data
	Metrics   Data
	Build     Data
	Earlier   Data // what the rounds before tried and brought
	Lessons   Data // what changes brought in earlier runs on this device
	Finding   Data // the built-in Judge's

	Error Data // what was wrong with the answer, in judge_repair alone
}

// ReactView is what the template of a model that acts with tools shows. Nobody
// else wrote any of it.
type ReactView struct {
	Language      kernelwright.Language
	Compact       bool   // in few words
	Margin        string // percent over torch.compile that it is asked for
	Turns, Rounds int    // at most

	Reference, Model, Loader string // files of its folder
	Skills                   bool   // there are some

	TextTools bool   // it calls tools in its text
	Tools     string // a line for each, with its arguments
}

// ComposerView is what the templates of a model that writes tasks show.
type ComposerView struct {
	Operators           string // their names, with commas
	DType               string
	Low, High, Estimate string // times
	Example             Data   // what the combinatorial composer made of them
}

// CoderPrompt names what a Coder is asked for.
type CoderPrompt string

// What a Coder is asked for.
const (
	CoderSeed         CoderPrompt = "coder_seed"
	CoderCorrection   CoderPrompt = "coder_correction"
	CoderOptimisation CoderPrompt = "coder_optimisation"
	CoderScore        CoderPrompt = "coder_score" // the score is all it sees
	CoderSelf         CoderPrompt = "coder_self"  // it is its own Judge
)

// JudgePrompt names what a Judge is asked for.
type JudgePrompt string

// What a Judge is asked for.
const (
	JudgeCorrection   JudgePrompt = "judge_correction"
	JudgeOptimisation JudgePrompt = "judge_optimisation"
	JudgeRepair       JudgePrompt = "judge_repair"
)

// Templates are the words in which models are asked. They are not changed once
// they are in use, so all goroutines may use them.
type Templates struct {
	// Profile says in how many words models are asked; empty means ProfileAuto.
	Profile Profile

	parsed   *template.Template
	examples map[string]string // by file name
}

// LoadTemplates returns the templates that come with the program, with those
// files of folder/templates in their place that have the same name. Without a
// folder ("") or without templates in it, they are the program's alone. An
// error is one sentence that begins with the path of the file at fault: it does
// not parse, uses a field that there is not, or leaves out what it has to show.
func LoadTemplates(folder string) (*Templates, error) {
	t := &Templates{parsed: template.New(""), examples: map[string]string{}}
	paths := map[string]string{} // template to what is said of it in errors
	if err := t.read(embeddedTemplates, "", paths); err != nil {
		return nil, err
	}
	if folder != "" {
		info, err := os.Stat(folder)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: the folder of prompts cannot be read: %w", folder, withoutPath(err))
		case !info.IsDir():
			return nil, fmt.Errorf("%s: what should be the folder of prompts is a file", folder)
		}
		if err := t.read(os.DirFS(folder), folder, paths); err != nil {
			return nil, err
		}
	}
	return t, t.check(paths)
}

// read takes what lies in one folder; shown is that folder's path in errors. What
// is there already (the program's own) names what may be there.
func (t *Templates) read(from fs.FS, shown string, paths map[string]string) error {
	entries, err := fs.ReadDir(from, templatesFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: the templates cannot be read: %w", filepath.Join(shown, templatesFolder), withoutPath(err))
	}
	own := len(paths) == 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() {
			continue
		}
		at := filepath.Join(shown, templatesFolder, e.Name())
		if _, known := paths[e.Name()]; !known && !own {
			return fmt.Errorf("%s: no prompt has a file of that name", at)
		}
		text, err := readText(from, path.Join(templatesFolder, e.Name()))
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		paths[e.Name()] = at
		name, isTemplate := strings.CutSuffix(e.Name(), ".tmpl")
		if !isTemplate {
			t.examples[e.Name()] = text
			continue
		}
		if _, err := t.parsed.New(name).Parse(text); err != nil {
			return fmt.Errorf("%s: it is no template: %s", at, Line(strings.TrimPrefix(err.Error(), "template: "), maxSentence))
		}
	}
	return nil
}

func readText(from fs.FS, at string) (string, error) {
	info, err := fs.Stat(from, at)
	switch {
	case err != nil:
		return "", fmt.Errorf("it cannot be read: %w", withoutPath(err))
	case !info.Mode().IsRegular():
		return "", errors.New("it has to be a file")
	case info.Size() > MaxTemplateBytes:
		return "", fmt.Errorf("it is larger than %d KiB", MaxTemplateBytes>>10)
	}
	b, err := fs.ReadFile(from, at)
	if err != nil {
		return "", fmt.Errorf("it cannot be read: %w", withoutPath(err))
	}
	if !utf8.Valid(b) {
		return "", errors.New("it is not UTF-8")
	}
	return strings.ReplaceAll(strings.TrimPrefix(string(b), "\ufeff"), "\r\n", "\n"), nil
}

func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// dataRule is in what has to be said of the blocks that Fence makes.
const dataRule = `"data:"`

// shows is what a template has to show: without it a model would be asked about
// something that it does not see.
var shows = map[string][]string{
	"coder_system":            {dataRule},
	string(CoderSeed):         {"Reference"},
	string(CoderCorrection):   {"Reference", "Candidate", "Verdict", "Feedback"},
	string(CoderOptimisation): {"Reference", "Candidate", "Feedback"},
	string(CoderScore):        {"Reference", "Candidate", "Score"},
	string(CoderSelf):         {"Reference", "Candidate", "Verdict", "Metrics"},
	compactCoderSystem:        {dataRule},
	"judge_system":            {dataRule},
	compactJudgeSystem:        {dataRule},
	string(JudgeCorrection):   {"Reference", "Candidate", "Verdict"},
	string(JudgeOptimisation): {"Reference", "Candidate", "Verdict", "Metrics"},
	string(JudgeRepair):       {"Error"},
	reactSystem:               {"Reference", "Model", "Tools"},
	compactReactSystem:        {"Reference", "Model", "Tools"},
	composerSystem:            {dataRule},
	composerTask:              {"Operators", "Example"},
}

// check executes every template, with everything there is and with next to
// nothing.
func (t *Templates) check(paths map[string]string) error {
	mark := func(field string) Data { return Data(sample(field)) }
	coder := CoderView{Form: Form(kernelwright.CUDA), GPU: true, ShowExample: true, ExampleReference: "r\n", Example: "e\n", Reference: mark("Reference"), Task: mark("Task"),
		Device: mark("Device"), Skills: []Skill{{Title: "t", Text: "t"}}, Lessons: mark("Lessons"), Candidate: mark("Candidate"), Correct: true, Verdict: mark("Verdict"),
		Feedback: mark("Feedback"), Compiler: mark("Compiler"), Output: mark("Output"), Metrics: mark("Metrics"), Build: mark("Build"), Score: sample("Score"), Repeats: true, Unusable: mark("Unusable"), Sample: 1}
	judge := JudgeView{Language: kernelwright.CUDA, GPU: true, Reference: mark("Reference"), Task: mark("Task"), Device: mark("Device"),
		Skills: []Skill{{Title: "t", Text: "t"}}, Candidate: mark("Candidate"), Verdict: mark("Verdict"), Compiler: mark("Compiler"), Output: mark("Output"),
		Metrics: mark("Metrics"), Build: mark("Build"), Earlier: mark("Earlier"), Lessons: mark("Lessons"), Finding: mark("Finding"), Error: mark("Error")}
	react := ReactView{Language: kernelwright.CUDA, Margin: "5", Turns: 2, Rounds: 2, Reference: sample("Reference"), Model: sample("Model"),
		Loader: sample("Loader"), Skills: true, TextTools: true, Tools: sample("Tools")}
	composer := ComposerView{Operators: sample("Operators"), Example: mark("Example")}
	for name, fields := range shows {
		var views []any
		switch {
		case name == composerSystem, name == composerTask:
			views = []any{composer, composer}
		case strings.HasPrefix(name, "judge"), name == compactJudgeSystem:
			views = []any{judge, judge.shown(true), JudgeView{}, JudgeView{Compact: true}}
		case name == reactSystem, name == compactReactSystem:
			views = []any{react}
			for _, name := range kernelwright.AllLanguages() {
				views = append(views, ReactView{Language: name})
			}
		default:
			views = []any{coder, coder.shown(true), CoderView{}, CoderView{Compact: true}}
			for _, f := range Forms {
				other := coder
				other.Form = f
				views = append(views, other)
			}
		}
		for i, view := range views {
			text, err := t.execute(name, view)
			if err != nil {
				var at template.ExecError
				if errors.As(err, &at) {
					name = at.Name
				}
				_, why, _ := strings.Cut(err.Error(), ": executing ")
				return fmt.Errorf("%s: it cannot be filled in: %s", paths[name+".tmpl"], Line(why, maxSentence))
			}
			for _, f := range fields {
				if (i == 0 || i == 1 && !strings.HasSuffix(name, reactSystem)) && !strings.Contains(text, sample(f)) {
					return fmt.Errorf("%s: it leaves out %s", paths[name+".tmpl"], wanted(f))
				}
			}
		}
	}
	return nil
}

// reactSystem is the template that React fills in; the others are those of compact
// prompts.
const (
	reactSystem        = "react_system"
	compactReactSystem = "compact_react_system"
	compactCoderSystem = "compact_coder_system"
	compactJudgeSystem = "compact_judge_system"
	composerSystem     = "composer_system"
	composerTask       = "composer_task"
)

// sample stands for what a field holds.
func sample(field string) string {
	if field == dataRule {
		return field
	}
	return "the sample of " + field
}

func wanted(field string) string {
	if field == dataRule {
		return "what blocks are whose first line begins with " + dataRule
	}
	return "{{." + field + "}}"
}

func (t *Templates) execute(name string, view any) (string, error) {
	var b strings.Builder
	if err := t.parsed.ExecuteTemplate(&b, name, view); err != nil {
		return "", err
	}
	return strings.TrimSpace(b.String()), nil
}

// Coder returns the two messages in which a Coder is asked. What the view
// leaves to the templates (the examples) is put in. The first message is the
// same for all tasks of a form, with the example and without, so that a server
// can keep it.
func (t *Templates) Coder(what CoderPrompt, v CoderView) (system, user string, err error) {
	v.ExampleReference, v.Example = t.examples["example_reference.py"], t.examples["example_"+string(v.Form)+".py"]
	if v.Example == "" {
		return "", "", fmt.Errorf("there is no example in the form %q", v.Form)
	}
	name := "coder_system"
	if v.Compact {
		name, v = compactCoderSystem, v.compact()
	}
	if system, err = t.execute(name, v); err != nil {
		return "", "", err
	}
	user, err = t.execute(string(what), v)
	return system, user, err
}

// Judge returns the two messages in which a Judge is asked.
func (t *Templates) Judge(what JudgePrompt, v JudgeView) (system, user string, err error) {
	name := "judge_system"
	if v.Compact {
		name, v = compactJudgeSystem, v.compact()
	}
	if system, err = t.execute(name, v); err != nil {
		return "", "", err
	}
	user, err = t.execute(string(what), v)
	return system, user, err
}

// React returns what a model that acts with tools is told first.
func (t *Templates) React(v ReactView) (system string, err error) {
	if v.Compact {
		return t.execute(compactReactSystem, v)
	}
	return t.execute(reactSystem, v)
}

// Composer returns the two messages in which a model is asked for a task. The first
// is always the same.
func (t *Templates) Composer(v ComposerView) (system, user string, err error) {
	if system, err = t.execute(composerSystem, v); err != nil {
		return "", "", err
	}
	user, err = t.execute(composerTask, v)
	return system, user, err
}
