package forge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// Bounds of what a tool takes and says.
const (
	maxArgumentBytes = 2 * maxFileBytes // escaped, as JSON
	maxResultBytes   = 16 << 10
	maxPatternBytes  = 200
	maxPatternSteps  = 1000 // of its program: each is tried at each byte
	maxFence         = 64
	maxMatches       = 100
)

// compileMargin is by how much CUDA Agent's model has to beat torch.compile.
const compileMargin = 0.05

// result is what a tool says: all of it, and in one line for when it is old.
type result struct {
	text, note string
	verdict    bool // it is a verdict, which is shown whole
}

// said is a result of one sentence.
func said(format string, args ...any) result {
	text := fmt.Sprintf(format, args...)
	return result{text: text, note: text}
}

// tool is something that the model may do.
type tool struct {
	name, about string
	params      []param
	do          func(ctx context.Context, args arguments) (result, error)
}

// param is an argument of a tool.
type param struct {
	name, about string // about is empty where the name says it
	number      bool   // else text
	optional    bool
	most        int // bytes, or the largest number
}

// arguments are those of a call, checked.
type arguments struct {
	text   map[string]string
	number map[string]int
}

func (a *actor) allTools() []tool {
	file := param{name: "path", most: 4 * maxPathBytes}
	tools := []tool{
		{"read", "Show a file, or some of its lines.", []param{file,
			{name: "first", about: "first line, from 1", number: true, optional: true, most: 1 << 30},
			{name: "lines", about: "how many", number: true, optional: true, most: 1 << 30}}, a.read},
		{"write", "Write a whole file.", []param{file, {name: "content", most: maxFileBytes}}, a.write},
		{"edit", "Replace a passage of a file.", []param{file,
			{name: "old", about: "as it stands there, once", most: maxFileBytes}, {name: "new", most: maxFileBytes}}, a.edit},
		{"list", "List the files.", nil, a.list},
		{"search", "Find lines of the files.", []param{{name: "pattern", about: "regular expression (RE2)", most: maxPatternBytes}}, a.search},
		{"compile", "Build the candidate without running it: no round.", nil, a.compileTool},
		{"verify", "Build, check and time the candidate: one round.", nil, a.verifyTool},
		{"profile", "Say where the candidate's time goes; one round if it was not verified as it is.", nil, a.profileTool},
	}
	if len(a.skills()) > 0 {
		tools = append(tools, tool{"skill", "Look up what experts know of a subject.", []param{
			{name: "name", about: "without it the subjects are listed", optional: true, most: maxPathBytes}}, a.skill})
	}
	return append(tools, tool{"finish", "End the work: the fastest verified candidate counts.", []param{
		{name: "reason", about: "why nothing more is to be gained", most: 4 << 10}}, a.finish})
}

// coreTools are those that a model is told of in a compact prompt. It may call the
// others all the same.
var coreTools = []string{"read", "write", "edit", "compile", "verify", "profile", "finish"}

// told are the tools that a model is told of.
func (a *actor) told(compact bool) []tool {
	if !compact {
		return a.tools
	}
	var core []tool
	for _, t := range a.tools {
		if slices.Contains(coreTools, t.name) {
			core = append(core, t)
		}
	}
	return core
}

// toolNames lists the tools that the model is told of.
func (a *actor) toolNames() string {
	told := a.told(a.compact)
	names := make([]string, len(told))
	for i, t := range told {
		names[i] = t.name
	}
	return strings.Join(names, ", ")
}

// leastResult is how much of what a tool says is shown in any case.
const leastResult = 1 << 10

// mostResult is how many bytes of what a tool says are shown: a third of what a prompt
// may have where the model's context is known.
func (a *actor) mostResult() int {
	if a.window.Context == 0 {
		return maxResultBytes
	}
	room, _ := a.window.Room(leastReply)
	return max(min(room/3, maxResultBytes), leastResult)
}

// mostLog is how many bytes of what a compiler or a candidate printed are shown in a
// verdict.
func (a *actor) mostLog() int {
	if a.window.Context == 0 {
		return maxLogBytes
	}
	return min(a.mostResult()/4, maxLogBytes)
}

// declared returns the tools as a model is given them: schemas without what every
// model knows, whose arguments keep their order, in which servers have them written.
// In brief they are without arguments that may be left out, and without what each is,
// which its name says.
func declared(tools []tool, brief bool) []llm.Tool {
	out := make([]llm.Tool, len(tools))
	for i, t := range tools {
		var properties, required []string
		for _, p := range t.params {
			if brief && p.optional {
				continue
			}
			about := ""
			if p.about != "" && !brief {
				about = `,"description":` + quoted(p.about)
			}
			properties = append(properties, fmt.Sprintf(`%s:{"type":"%s"%s}`, quoted(p.name), p.kind(), about))
			if !p.optional {
				required = append(required, quoted(p.name))
			}
		}
		schema := `{"type":"object","properties":{` + strings.Join(properties, ",") + "}"
		if len(required) > 0 {
			schema += `,"required":[` + strings.Join(required, ",") + "]"
		}
		out[i] = llm.Tool{Name: t.name, Description: t.about, Parameters: json.RawMessage(schema + "}")}
	}
	return out
}

func (p param) kind() string {
	if p.number {
		return "integer"
	}
	return "string"
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(b)
}

// listed returns the tools as a model reads them that calls them in its text: a line
// each, such as "skill(name?): Look up what experts know of a subject.". In brief it is
// without what declared leaves out.
func listed(tools []tool, brief bool) string {
	var b strings.Builder
	for _, t := range tools {
		var names, notes []string
		for _, p := range t.params {
			if brief && p.optional {
				continue
			}
			name := p.name
			if p.number {
				name += ": integer"
			}
			if p.optional {
				name += "?"
			}
			names = append(names, name)
			if p.about != "" && !brief {
				notes = append(notes, p.name+": "+p.about)
			}
		}
		fmt.Fprintf(&b, "%s(%s): %s", t.name, strings.Join(names, ", "), t.about)
		if len(notes) > 0 {
			fmt.Fprintf(&b, " (%s)", strings.Join(notes, "; "))
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// do does what a call wants. A bad call is answered by a sentence; the error is
// an *ended, or infrastructure.
func (a *actor) do(ctx context.Context, call llm.ToolCall) (result, error) {
	if err := a.halted(ctx); err != nil {
		return result{}, err
	}
	if call.Name == badCall && a.words {
		return said("%s; the tools are %s", call.Arguments, a.toolNames()), nil
	}
	at := slices.IndexFunc(a.tools, func(t tool) bool { return t.name == call.Name })
	if at < 0 {
		return said("there is no tool %q: there are %s", bounded(call.Name, 100), a.toolNames()), nil
	}
	t := a.tools[at]
	args, err := t.arguments(call.Arguments)
	if err != nil {
		return said("%s: %v; the tools are %s", t.name, err, a.toolNames()), nil
	}
	r, err := t.do(ctx, args)
	most := maxResultBytes
	if !r.verdict {
		most = a.mostResult()
	}
	r.text = cutOff(r.text, most)
	r.note = t.name + ": " + oneLine(r.note, 300)
	return r, err
}

// cutOff bounds what a tool says. A fence that it cuts open is closed: what comes
// after it is no foreign text.
func cutOff(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = bounded(text, most)
	if at := strings.LastIndexByte(text, '\n') + 1; strings.HasPrefix(text[at:], "```") { // half a fence, it may be
		text = text[:at]
	}
	fence, at, n := "", 0, 0
	for line := range strings.Lines(text) {
		switch mark := strings.TrimSuffix(line, "\n"); {
		case fence != "" && mark == fence:
			fence = ""
		case fence == "" && strings.HasPrefix(mark, "```") && strings.HasSuffix(mark, fenceKind):
			fence, at = strings.TrimSuffix(mark, fenceKind), n
		}
		n += len(line)
	}
	switch {
	case len(fence) > maxFence:
		text = text[:at]
	case fence != "":
		text = strings.TrimSuffix(text, "\n") + "\n" + fence
	}
	return strings.TrimSuffix(text, "\n") + "\n(cut off here)"
}

// arguments checks what a model wrote. The error is one sentence, for the model.
func (t tool) arguments(text string) (arguments, error) {
	args := arguments{map[string]string{}, map[string]int{}}
	if len(text) > maxArgumentBytes {
		return args, fmt.Errorf("the arguments have %d bytes: %d at most", len(text), maxArgumentBytes)
	}
	var given map[string]json.RawMessage
	if strings.TrimSpace(text) != "" {
		dec := json.NewDecoder(strings.NewReader(text))
		if err := dec.Decode(&given); err != nil {
			return args, fmt.Errorf("the arguments are no JSON object: %s", oneLine(err.Error(), 200))
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return args, errors.New("there is text after the JSON object of the arguments")
		}
	}
	for _, p := range t.params {
		raw, ok := given[p.name]
		delete(given, p.name)
		if !ok || p.optional && bytes.Equal(raw, []byte("null")) {
			if !p.optional {
				return args, fmt.Errorf("the argument %q is missing: it takes %s", p.name, t.takes())
			}
			continue
		}
		if err := p.check(raw, args); err != nil {
			return args, err
		}
	}
	if len(given) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(given))) // what is said must not depend on chance
		if len(t.params) == 0 {
			return args, fmt.Errorf("it takes no arguments, and %q was given", bounded(name, 100))
		}
		return args, fmt.Errorf("there is no argument %q: it takes %s", bounded(name, 100), t.takes())
	}
	return args, nil
}

// takes lists a tool's arguments.
func (t tool) takes() string {
	names := make([]string, len(t.params))
	for i, p := range t.params {
		names[i] = p.name
		if p.optional {
			names[i] += " (may be left out)"
		}
	}
	return strings.Join(names, ", ")
}

func (p param) check(raw json.RawMessage, into arguments) error {
	if p.number {
		var n int
		if err := json.Unmarshal(raw, &n); err != nil || n < 1 || n > p.most {
			return fmt.Errorf("the argument %q must be a whole number from 1 to %d", p.name, p.most)
		}
		into.number[p.name] = n
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil || bytes.Equal(raw, []byte("null")) {
		return fmt.Errorf("the argument %q must be a text", p.name)
	}
	if len(s) > p.most {
		return fmt.Errorf("the argument %q has %d bytes: %d at most", p.name, len(s), p.most)
	}
	into.text[p.name] = s
	return nil
}

func (a *actor) read(_ context.Context, args arguments) (result, error) {
	p, text, complaint := a.folder.read(args.text["path"])
	if complaint != "" {
		return said("%s", complaint), nil
	}
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	first, count := max(args.number["first"], 1), args.number["lines"]
	if first > max(len(lines), 1) {
		return said("%s has %d lines", p, len(lines)), nil
	}
	last := len(lines)
	if count > 0 {
		last = min(last, first-1+count)
	}
	shown := strings.Join(lines[first-1:last], "")
	// What does not fit is left to another call, by whole lines.
	for len(shown) > a.mostResult()-200 && last > first {
		last--
		shown = shown[:len(shown)-len(lines[last])]
	}
	head := fmt.Sprintf("%s, lines %d to %d of %d", p, first, last, len(lines))
	return result{text: head + "\n" + fenced(shown), note: head}, nil
}

func (a *actor) write(_ context.Context, args arguments) (result, error) {
	content := args.text["content"]
	p, complaint := a.folder.write(args.text["path"], content)
	if complaint != "" {
		return said("%s", complaint), nil
	}
	return said("%s is written, %d bytes", p, len(content)), nil
}

func (a *actor) edit(_ context.Context, args arguments) (result, error) {
	p, text, complaint := a.folder.read(args.text["path"])
	if complaint != "" {
		return said("%s", complaint), nil
	}
	from := args.text["old"]
	switch n := strings.Count(text, from); {
	case from == "":
		return said(`the argument "old" is empty: give the passage that is to be replaced, or use write`), nil
	case n == 0:
		return said(`%s does not have the passage in "old": read it again, line ends and spaces count`, p), nil
	case n > 1:
		return said(`%s has the passage in "old" %d times: give more of what is round it`, p, n), nil
	}
	if p, complaint = a.folder.write(p, strings.Replace(text, from, args.text["new"], 1)); complaint != "" {
		return said("%s", complaint), nil
	}
	before, _, _ := strings.Cut(text, from)
	return said("%s is changed, in line %d", p, 1+strings.Count(before, "\n")), nil
}

func (a *actor) list(context.Context, arguments) (result, error) {
	var b strings.Builder
	for _, name := range a.folder.names() {
		note := ""
		if a.folder.fixed[name] {
			note = ", protected"
		}
		fmt.Fprintf(&b, "%s, %d bytes%s\n", name, len(a.folder.files[name]), note)
	}
	return result{text: b.String(), note: strings.Join(a.folder.names(), ", ")}, nil
}

func (a *actor) search(_ context.Context, args arguments) (result, error) {
	pattern, err := regexp.Compile(args.text["pattern"])
	if err != nil {
		return said("the pattern is no regular expression: %s", oneLine(err.Error(), 200)), nil
	}
	if steps := patternSteps(args.text["pattern"]); steps > maxPatternSteps {
		return said("the pattern has %d steps, its repetitions written out: %d at most", steps, maxPatternSteps), nil
	}
	var b strings.Builder
	found := 0
	for _, name := range a.folder.names() {
		n := 0
		for line := range strings.Lines(a.folder.files[name]) {
			n++
			if !pattern.MatchString(strings.TrimRight(line, "\n")) {
				continue
			}
			if found++; found <= maxMatches {
				fmt.Fprintf(&b, "%s:%d: %s\n", name, n, bounded(strings.TrimRight(line, "\n"), 200))
			}
		}
	}
	head := fmt.Sprintf("%s match", plural(found, "line"))
	if found > maxMatches {
		head += fmt.Sprintf(", of which the first %d", maxMatches)
	}
	if found == 0 {
		return said("no line matches"), nil
	}
	return result{text: head + "\n" + fenced(b.String()), note: head}, nil
}

// patternSteps is how long the program of a regular expression is. Repetitions of
// repetitions are few bytes and many steps.
func patternSteps(pattern string) int {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return len(program.Inst)
}

func (a *actor) compileTool(ctx context.Context, _ arguments) (result, error) {
	c, complaint := a.candidate()
	if complaint != "" {
		return said("%s", complaint), nil
	}
	text, known, err := a.build(ctx, c)
	if err != nil {
		return result{}, err
	}
	if !known {
		r, err := a.verifyTool(ctx, arguments{})
		r.text = "Nothing is built here without being measured, so this was a verify.\n" + r.text
		return r, err
	}
	head, _, _ := strings.Cut(text, "\n")
	return result{text: text, note: head}, nil
}

func (a *actor) verifyTool(ctx context.Context, _ arguments) (result, error) {
	round, complaint, err := a.verify(ctx, true)
	if err != nil {
		return result{}, err
	}
	if complaint != "" {
		return said("%s", complaint), nil
	}
	return result{a.verdictText(*round), roundLine(*round), true}, nil
}

func (a *actor) profileTool(ctx context.Context, _ arguments) (result, error) {
	c, complaint := a.candidate()
	if complaint != "" {
		return said("%s", complaint), nil
	}
	round := a.duplicate(c, len(a.rounds))
	if round == nil {
		var err error
		if round, _, err = a.verify(ctx, true); err != nil {
			return result{}, err
		}
	}
	return result{text: a.profileText(*round), note: roundLine(*round)}, nil
}

// skills are those for what candidates are written in here, with what of each is for it.
func (a *actor) skills() []prompts.Skill { return a.Skills.For(a.language(), a.Device.Specs.ISA) }

func (a *actor) skill(_ context.Context, args arguments) (result, error) {
	name, skills := args.text["name"], a.skills()
	at := slices.IndexFunc(skills, func(s prompts.Skill) bool { return s.Name == name })
	if at >= 0 {
		return result{text: bounded(skills[at].Text, maxResultBytes), note: name}, nil
	}
	var b strings.Builder
	if name != "" {
		fmt.Fprintf(&b, "There is no skill %q. ", bounded(name, 100))
	}
	b.WriteString("The skills are:\n")
	for _, s := range skills {
		fmt.Fprintf(&b, "%s: %s\n", s.Name, s.Summary)
	}
	return result{text: b.String(), note: "the list of skills"}, nil
}

func (a *actor) finish(_ context.Context, args arguments) (result, error) {
	left := a.settings.React.Turns - a.turns - 1
	if b := best(a.rounds); (a.refused == 0 || a.refused == a.turns+1) && left > 0 && (b == nil || !overCompile(b.Verdict)) {
		a.refused = a.turns + 1 // a second call in the same answer was made before this was read
		why := "no candidate was correct yet"
		if b != nil {
			why = fmt.Sprintf("the best, round %d, is not %.0f %% faster than %s beyond the noise of measuring", b.Index, 100*compileMargin, rival(b.Verdict))
		}
		return said("not yet: %s, and %s are left; go on, or call finish again if nothing more can be gained", why, plural(left, "answer")), nil
	}
	return result{}, &ended{kernelwright.StopDeclined, strings.TrimSpace(args.text["reason"])}
}

// overCompile says whether a candidate is faster than torch.compile by the
// margin. Where that was not measured, the fastest baseline takes its place.
func overCompile(v kernelwright.Verdict) bool {
	if s, ok := v.Speedups["compile"]; ok {
		return s.Wins(compileMargin)
	}
	return v.Speedup.Wins(compileMargin)
}

// rival names what overCompile holds a candidate against.
func rival(v kernelwright.Verdict) string {
	if _, ok := v.Speedups["compile"]; ok || v.Speedup == nil {
		return "torch.compile"
	}
	return v.Speedup.Against
}

// oneLine makes foreign text fit for a sentence.
func oneLine(s string, most int) string {
	s = strings.Join(strings.Fields(bounded(s, 4*most+utf8.UTFMax)), " ")
	if len(s) > most {
		s = bounded(s, most) + "…"
	}
	return s
}

// fenceKind follows the fence that foreign text begins with.
const fenceKind = "text"

// fenced returns foreign text between fences that do not occur in it.
func fenced(s string) string {
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return fence + fenceKind + "\n" + s + fence
}
