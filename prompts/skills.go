// Package prompts holds the texts that language models are given. They are
// embedded in the binary, and a folder of the user's can put others in their
// place.
package prompts

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/kernelwright/kernelwright"
)

//go:embed skills/*.md
var skillFiles embed.FS

// skillsFolder is where the skills lie, in the binary and in a user's folder.
const skillsFolder = "skills"

// What a file of skills may be at most: all of it may go into a prompt.
const (
	MaxSkillBytes = 64 << 10
	MaxSkillFiles = 500
)

// Skill is what an expert knows of one subject, written for who writes a
// kernel or judges one.
type Skill struct {
	Name    string `toml:"name"` // that of its file, without ".md"
	Title   string `toml:"title"`
	Summary string `toml:"summary"` // one sentence
	// Languages that its advice and its code are for.
	Languages []kernelwright.Language `toml:"languages"`
	// Operators it is about, as kernelwright.Task has them, those it is mainly
	// about first. A * stands for any characters, a + joins what the task must
	// have together ("aten.bmm+aten.softmax"). "*" alone is for any task. With
	// none the skill is chosen for its bottlenecks alone.
	Operators []string `toml:"operators"`
	// Bottlenecks it helps with, the one it is mainly about first.
	Bottlenecks []Bottleneck `toml:"bottlenecks"`
	// Architectures its code is for ("sm_90a"), and dtypes of a task's tensors
	// ("bfloat16"); none is all.
	Architectures []string `toml:"architectures"`
	DTypes        []string `toml:"dtypes"`

	Text string `toml:"-"` // Markdown, what follows the front matter, without the marks of its sections
	Own  bool   `toml:"-"` // the user's: a prompt has it whole

	sections []section
}

// Skills is a set of skills. It is not changed once it was loaded, so all
// goroutines may use it.
type Skills struct{ all []Skill } // by name

// LoadSkills returns the skills that come with the program, and those of
// folder/skills, which stand in the place of the program's where they have the
// same name. Without a folder ("") or without skills in it, they are the program's
// alone. An error is one sentence that begins with the path of the file at fault.
func LoadSkills(folder string) (*Skills, error) {
	byName := map[string]Skill{}
	if err := readSkills(skillFiles, "", byName); err != nil {
		return nil, err
	}
	if folder != "" {
		if info, err := os.Stat(folder); err != nil {
			return nil, fmt.Errorf("%s: the folder of prompts cannot be read: %w", folder, plain(err))
		} else if !info.IsDir() {
			return nil, fmt.Errorf("%s: what should be the folder of prompts is a file", folder)
		}
		if err := readSkills(os.DirFS(folder), folder, byName); err != nil {
			return nil, err
		}
	}
	s := &Skills{}
	for _, skill := range byName {
		s.all = append(s.all, skill)
	}
	slices.SortFunc(s.all, func(a, b Skill) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// readSkills adds what lies in one folder; shown is that folder's path in errors.
func readSkills(from fs.FS, shown string, into map[string]Skill) error {
	info, err := fs.Stat(from, skillsFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s: what should be the folder of skills is a file", filepath.Join(shown, skillsFolder))
	}
	entries, err := fs.ReadDir(from, skillsFolder)
	if err != nil {
		return fmt.Errorf("%s: the skills cannot be read: %w", filepath.Join(shown, skillsFolder), plain(err))
	}
	read := 0
	for _, e := range entries {
		file, isSkill := strings.CutSuffix(e.Name(), ".md")
		if !isSkill || strings.HasPrefix(file, ".") {
			continue
		}
		if read++; read > MaxSkillFiles {
			return fmt.Errorf("%s: there are over %d skills", filepath.Join(shown, skillsFolder), MaxSkillFiles)
		}
		at := path.Join(skillsFolder, e.Name())
		skill, err := readSkill(from, at, file)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(shown, filepath.FromSlash(at)), err)
		}
		skill.Own = shown != ""
		into[skill.Name] = skill
	}
	return nil
}

var errTooLarge = fmt.Errorf("it is larger than %d KiB", MaxSkillBytes>>10)

func readSkill(from fs.FS, at, file string) (Skill, error) {
	info, err := fs.Stat(from, at)
	if err != nil {
		return Skill{}, fmt.Errorf("the skill cannot be read: %w", plain(err))
	}
	if !info.Mode().IsRegular() {
		return Skill{}, errors.New("a skill has to be a file")
	}
	if info.Size() > MaxSkillBytes {
		return Skill{}, errTooLarge
	}
	b, err := fs.ReadFile(from, at)
	if err != nil {
		return Skill{}, fmt.Errorf("the skill cannot be read: %w", plain(err))
	}
	skill, err := ParseSkill(b)
	if err != nil {
		return Skill{}, err
	}
	if skill.Name != file {
		return Skill{}, fmt.Errorf("it is named %q inside: a skill has its file's name, %q", skill.Name, file)
	}
	return skill, nil
}

// plain takes the path out of an error: the sentence has it already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

var (
	nameForm         = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
	operatorForm     = regexp.MustCompile(`^[A-Za-z0-9_.*:+]{1,100}$`)
	architectureForm = regexp.MustCompile(`^sm_[0-9]{2,3}[af]?$`)
	dtypeForm        = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)
)

// ParseSkill reads a skill: TOML between two lines of "+++", then Markdown.
// Errors are one sentence and say what to mend.
func ParseSkill(b []byte) (Skill, error) {
	if len(b) > MaxSkillBytes {
		return Skill{}, errTooLarge
	}
	if !utf8.Valid(b) {
		return Skill{}, errors.New("it is not UTF-8")
	}
	text := strings.ReplaceAll(strings.TrimPrefix(string(b), "\ufeff"), "\r\n", "\n")
	rest, ok := strings.CutPrefix(text, "+++\n")
	if !ok {
		return Skill{}, errors.New(`its first line is not "+++", which begins the front matter`)
	}
	front, body, ok := strings.Cut("\n"+rest, "\n+++\n")
	if !ok {
		return Skill{}, errors.New(`a second line of "+++", which ends the front matter, is missing`)
	}
	var s Skill
	md, err := toml.Decode(front, &s)
	if err != nil {
		var bad toml.ParseError
		if errors.As(err, &bad) { // its lines are counted from that of the first "+++", as the file's are
			return Skill{}, fmt.Errorf("line %d of its front matter is not TOML: %s", bad.Position.Line, oneLine(bad.Message))
		}
		return Skill{}, fmt.Errorf("its front matter: %s", oneLine(strings.TrimPrefix(err.Error(), "toml: ")))
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return Skill{}, fmt.Errorf("its front matter has %q, which no skill has", oneLine(unknown[0].String()))
	}
	if s.sections, s.Text, err = readSections(strings.TrimSpace(body) + "\n"); err != nil {
		return Skill{}, err
	}
	return s, s.validate()
}

func (s Skill) validate() error {
	for _, part := range []struct{ key, value string }{{"name", s.Name}, {"title", s.Title}, {"summary", s.Summary}} {
		if strings.TrimSpace(part.value) == "" {
			return fmt.Errorf("its front matter lacks %q", part.key)
		}
		if strings.ContainsAny(part.value, "\n\r") {
			return fmt.Errorf("its %q has more than one line", part.key)
		}
	}
	if !nameForm.MatchString(s.Name) {
		return fmt.Errorf("its name %q is not of small letters, digits and _", oneLine(s.Name))
	}
	if len(s.Languages) == 0 {
		return errors.New(`its front matter lacks "languages"`)
	}
	for _, l := range s.Languages {
		if !l.Known() {
			return fmt.Errorf("its language %q is none of %s", oneLine(string(l)), strings.Join(kernelwright.LanguageNames(kernelwright.AllLanguages()), ", "))
		}
	}
	for _, o := range s.Operators {
		if !operatorForm.MatchString(o) {
			return fmt.Errorf(`its operator %q is not written as "aten.softmax" or "aten.*softmax"`, oneLine(o))
		}
	}
	for _, b := range s.Bottlenecks {
		if !slices.Contains(Bottlenecks, b) {
			return fmt.Errorf("its bottleneck %q is none of %s", oneLine(string(b)), listed(Bottlenecks))
		}
	}
	for _, a := range s.Architectures {
		if !architectureForm.MatchString(a) {
			return fmt.Errorf(`its architecture %q is not written as "sm_90a"`, oneLine(a))
		}
	}
	for _, d := range s.DTypes {
		if !dtypeForm.MatchString(d) {
			return fmt.Errorf(`its dtype %q is not written as "bfloat16"`, oneLine(d))
		}
	}
	if len(s.Operators) == 0 && len(s.Bottlenecks) == 0 {
		return errors.New("it has neither operators nor bottlenecks, so it would never be chosen")
	}
	if strings.TrimSpace(s.Text) == "" {
		return errors.New("nothing follows its front matter")
	}
	return nil
}

// List returns all skills by name. The slice is the caller's.
func (s *Skills) List() []Skill { return slices.Clone(s.all) }

// Get returns the skill of that name; false where there is none.
func (s *Skills) Get(name string) (Skill, bool) {
	i, ok := slices.BinarySearchFunc(s.all, name, func(a Skill, name string) int { return strings.Compare(a.Name, name) })
	if !ok {
		return Skill{}, false
	}
	return s.all[i], true
}

func listed[T ~string](words []T) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(w))
	}
	return b.String()
}

// oneLine makes foreign text fit for a sentence.
func oneLine(s string) string {
	const most = 120
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}
