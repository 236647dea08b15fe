package prompts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
)

func load(t testing.TB, folder string) *Skills {
	t.Helper()
	s, err := LoadSkills(folder)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func names(skills []Skill) []string {
	var n []string
	for _, s := range skills {
		n = append(n, s.Name)
	}
	return n
}

func TestSkillsOfTheProgram(t *testing.T) {
	all := load(t, "").List()
	if len(all) < 20 {
		t.Fatalf("there are %d skills", len(all))
	}
	for _, s := range all {
		if lines := strings.Count(s.Text, "\n"); lines < 50 || lines > 180 {
			t.Errorf("%s has %d lines", s.Name, lines)
		}
		if !strings.HasSuffix(s.Summary, ".") || strings.Contains(strings.TrimSuffix(s.Summary, "."), ". ") {
			t.Errorf("%s: its summary is not one sentence: %q", s.Name, s.Summary)
		}
		if !strings.HasPrefix(s.Text, "# ") {
			t.Errorf("%s does not begin with a heading", s.Name)
		}
	}
}

func TestEveryBottleneckHasItsSkill(t *testing.T) {
	s := load(t, "")
	for _, b := range Bottlenecks {
		for _, operators := range [][]string{nil, {"aten.softmax"}, {"aten.unheard_of"}} {
			got := s.Select(Query{Language: kernelwright.CUDA, Operators: operators, Words: []string{string(b)}}, 2)
			if !slices.ContainsFunc(got, func(skill Skill) bool { at := slices.Index(skill.Bottlenecks, b); return at >= 0 && at < 3 }) {
				t.Errorf("%s, %v: %v", b, operators, names(got))
			}
		}
	}
}

// TestSelect has the operators as inspection names them, for the families of
// KernelBench's first level and beyond.
func TestSelect(t *testing.T) {
	s := load(t, "")
	cuda, cpp, triton := kernelwright.CUDA, kernelwright.CPP, kernelwright.Triton
	for _, c := range []struct {
		language  kernelwright.Language
		operators string
		words     string
		isa       string
		want      string // both names in order; with a ? any may follow
	}{
		{cuda, "relu", "", "", "fusion ?"},
		{cuda, "mul pow mul add mul tanh add mul", "", "", "fusion ?"},
		{cuda, "abs add div", "memory_ceiling", "", "fusion memory"},
		{cuda, "hardsigmoid", "uncoalesced", "", "coalescing fusion"},
		{cuda, "softmax", "", "", "softmax reductions"},
		{cuda, "log_softmax", "barriers", "", "softmax shared_memory"},
		{cuda, "softmax", "bank_conflicts", "", "shared_memory ?"},
		{cuda, "native_batch_norm", "", "", "norms ?"},
		{cuda, "native_layer_norm", "extra_passes", "", "norms memory"},
		{cuda, "native_group_norm", "occupancy", "", "occupancy norms"},
		{cuda, "linalg_vector_norm div", "tail", "", "grid_shape ?"},
		{cuda, "pow mean add rsqrt mul", "", "", "fusion norms"},
		{cuda, "sum", "", "", "reductions ?"},
		{cuda, "argmax", "idle_cores", "", "reductions grid_shape"},
		{cuda, "cumsum", "", "", "scans ?"},
		{cuda, "flip cumsum flip", "", "", "scans ?"},
		{cuda, "cumprod", "numerics", "", "numerics ?"},
		{cuda, "max_pool2d_with_indices", "", "", "pooling ?"},
		{cuda, "avg_pool3d", "uncoalesced", "", "pooling coalescing"},
		{cuda, "mm", "", "sm_90", "gemm ?"},
		{cuda, "mm", "compute", "sm_80", "gemm tensor_cores"},
		{cuda, "bmm", "compute", "sm_90", "gemm tensor_cores"},
		{cuda, "convolution", "", "", "convolution ?"},
		{cuda, "convolution relu add", "pytorch_share", "", "fusion convolution"},
		{cuda, "mse_loss", "", "", "reductions ?"},
		{cuda, "log_softmax nll_loss_forward", "", "", "softmax reductions"},
		{cuda, "smooth_l1_loss", "launch", "", "launch reductions"},
		{cuda, "scaled_dot_product_flash_attention", "", "", "attention ?"},
		{cuda, "bmm mul softmax bmm", "", "", "attention ?"},
		{cuda, "bmm mul softmax bmm", "extra_passes", "", "attention ?"},
		{cuda, "relu", "build_error", "", "debugging fusion"},
		{cuda, "softmax", "crashed", "", "debugging softmax"},
		{cuda, "gelu", "compute_ceiling", "", "fusion instructions"},
		{cuda, "unheard_of", "", "", "? ?"},
		{cpp, "softmax", "", "", "cpu softmax"},
		{cpp, "relu", "not_vectorised", "", "cpu fusion"},
		{cpp, "convolution", "", "", "cpu convolution"},
		{cpp, "cumsum", "", "", "cpu scans"},
		{cpp, "native_layer_norm", "accumulation", "", "norms numerics"},
		{cpp, "unheard_of", "", "", "cpu"},
		{triton, "native_layer_norm", "", "", "triton norms"},
		{triton, "mm", "", "", "triton ?"},
		{triton, "scaled_dot_product_efficient_attention", "", "", "triton attention"},
		{triton, "relu", "build_error", "", "triton ?"},
	} {
		q := Query{Language: c.language, Words: []string{c.words}, DTypes: []string{"float32", "int64"}}
		for _, o := range strings.Fields(c.operators) {
			q.Operators = append(q.Operators, "aten."+o)
		}
		if c.isa != "" {
			q.ISA = []string{c.isa}
		}
		got := names(s.Select(q, 0))
		want := strings.Fields(c.want)
		fits := len(got) == len(want)
		for i := 0; fits && i < len(want); i++ {
			fits = want[i] == "?" || want[i] == got[i]
		}
		if !fits {
			t.Errorf("%s, %s, %q, %s: %v, not %s", c.language, c.operators, c.words, c.isa, got, c.want)
		}
	}
}

// TestSelectByStatus: what became of a candidate chooses skills, not what a Judge
// makes of it.
func TestSelectByStatus(t *testing.T) {
	s := load(t, "")
	const misread = "exp of large values overflows to NaN; DRAM bandwidth, occupancy, bank conflicts, a barrier, an illegal access, it does not compile"
	for _, c := range []struct {
		status            kernelwright.Status
		reason            string
		cuda, triton, cpp string
	}{
		{"", "", "softmax reductions", "triton softmax", "cpu softmax"},
		{"build_failed", "compiling: source0.cpp:3:1: error: expected ';'", "debugging softmax", "triton softmax", "debugging_cpp softmax"},
		{"crashed", "its process was ended by SIGSEGV", "debugging softmax", "triton softmax", "debugging_cpp softmax"},
		{"timed_out", "a forward took longer than 30 s", "debugging softmax", "triton softmax", "debugging_cpp softmax"},
		{"wrong", "it is off at an index past the end: out of bounds", "debugging softmax", "triton softmax", "debugging_cpp softmax"},
		{"wrong", "on family near_overflow (inputs: up to 1e+38): 7 of 10 elements are not finite", "softmax numerics", "triton softmax", "softmax numerics"},
		{"rejected", "it calls torch.compile: memory is cached, and a barrier crashed", "softmax reductions", "triton softmax", "cpu softmax"},
		{"cheated", "it kept results in a cache from call to call", "softmax reductions", "triton softmax", "cpu softmax"},
	} {
		for language, want := range map[kernelwright.Language]string{kernelwright.CUDA: c.cuda, kernelwright.Triton: c.triton, kernelwright.CPP: c.cpp} {
			q := Query{Language: language, Operators: []string{"aten.softmax"}, DTypes: []string{"float32"}, Status: c.status, Words: []string{string(c.status), c.reason}}
			for range 2 {
				if got := strings.Join(names(s.Select(q, 0)), " "); got != want {
					t.Errorf("%s, %s: %s, not %s", language, q.Words, got, want)
				}
				if c.status != "" {
					q.Words = append(q.Words, misread)
				}
			}
		}
	}
	// Of a wrong one words tell rounding from a fault; of a correct one what holds it up.
	for _, c := range []struct {
		status kernelwright.Status
		words  string
		want   []Bottleneck
	}{
		{"wrong", "on the reference's own draws: 7 of 10 elements are off", []Bottleneck{Crash, Numerics}},
		{"wrong", "accumulation", []Bottleneck{Numerics, Crash}},
		{"wrong", "wrong_result: tf32", []Bottleneck{Crash, Numerics}},
		{"correct", "it crashed; rounding; not vectorised", []Bottleneck{NotVectorised}},
		{"certified", "tail", []Bottleneck{Tail}},
	} {
		if got := (Query{Status: c.status, Words: []string{c.words}}).asked(); !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %v", c.status, c.words, got)
		}
	}
}

func TestSelectIsForDeviceAndTask(t *testing.T) {
	s := load(t, "")
	for isa, fits := range map[string]bool{"sm_90": true, "sm_90a": true, "sm_80": false, "sm_100": false, "": true} {
		q := Query{Language: kernelwright.CUDA, Operators: []string{"aten.mm"}}
		if isa != "" {
			q.ISA = []string{isa}
		}
		for dtype, ofThat := range map[string]bool{"bfloat16": true, "float32": false, "": true} {
			q.DTypes = nil
			if dtype != "" {
				q.DTypes = []string{"int64", dtype}
			}
			if got := slices.Contains(names(s.Select(q, 2)), "hopper"); got != (fits && ofThat) {
				t.Errorf("%q, %q: %v", isa, dtype, got)
			}
		}
	}
}

// TestSelectAlways: whatever is asked, at most n, no skill twice, the
// language's own, and the same again whatever the order of the operators.
func TestSelectAlways(t *testing.T) {
	s := load(t, "")
	languages := []kernelwright.Language{kernelwright.CUDA, kernelwright.Triton, kernelwright.CPP}
	operators := []string{"aten.relu", "aten.softmax", "aten.mm", "aten.convolution", "aten.cumsum", "aten.sum", "prims.foo", ""}
	words := []string{"tail", "memory_ceiling", "the DRAM's bandwidth", "bank conflicts", "it crashed", "", "nothing of that"}
	rapid.Check(t, func(t *rapid.T) {
		q := Query{
			Language:  rapid.SampledFrom(languages).Draw(t, "language"),
			Operators: rapid.SliceOfN(rapid.SampledFrom(operators), 0, 6).Draw(t, "operators"),
			Words:     rapid.SliceOfN(rapid.SampledFrom(words), 0, 3).Draw(t, "words"),
		}
		n := rapid.IntRange(-1, 30).Draw(t, "n")
		got := s.Select(q, n)
		if most := n; (n > 0 && len(got) > most) || (n <= 0 && len(got) > DefaultSelected) {
			t.Fatalf("%d of %d", len(got), n)
		}
		seen := map[string]bool{}
		for _, skill := range got {
			if seen[skill.Name] || !slices.Contains(skill.Languages, q.Language) {
				t.Fatalf("%v", names(got))
			}
			seen[skill.Name] = true
		}
		turned := q
		turned.Operators = slices.Clone(q.Operators)
		slices.Reverse(turned.Operators)
		if again := s.Select(turned, n); !slices.Equal(names(got), names(again)) {
			t.Fatalf("%v, then %v", names(got), names(again))
		}
	})
}

func TestMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringOfN(rapid.RuneFrom([]rune("ab*")), 0, 6, -1)
		pattern, text := letters.Draw(t, "pattern"), strings.ReplaceAll(letters.Draw(t, "text"), "*", "a")
		want := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".*") + "$").MatchString(text)
		if got := matches(pattern, text); got != want {
			t.Fatalf("matches(%q, %q) = %v", pattern, text, got)
		}
	})
}

func TestFindBottlenecks(t *testing.T) {
	for text, want := range map[string][]Bottleneck{
		"":                nil,
		"nothing of that": nil,
		"roofline_gap":    nil,
		"extra_passes":    {ExtraPasses},
		"memory_ceiling":  {Memory},
		"cache_bound":     {Cache},
		"NOT VECTORISED":  {NotVectorised},
		"not vectorized":  {NotVectorised},
		"Uncoalesced loads: 31 sectors a request": {Uncoalesced},
		"spilled":                         {Registers},
		"local memory is read: 4 KiB":     {Registers},
		"the shared memory has conflicts": {BankConflicts},
		"smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct": {Latency},
		"dram__throughput.avg.pct_of_peak_sustained_elapsed at 93 %":   {Memory},
		"waits at barriers, with few active warps":                     {Barriers, Occupancy},
		"rounding adds up; TF32?":                                      {Numerics},
		"CUDA error: an illegal memory access was encountered":         {Crash},
		"information about infrastructure":                             nil, // "inf" is a word of its own
		"Memory traffic: the task's 8 MiB move at 100 GB/s":            {ExtraPasses},
		"tail effect: 1.1 waves":                                       {Tail},
		"idle cores":                                                   {IdleCores},
	} {
		if got := FindBottlenecks(text); !slices.Equal(got, want) {
			t.Errorf("%q: %v, not %v", text, got, want)
		}
	}
	if got := FindBottlenecks("tail", "memory, tail"); !slices.Equal(got, []Bottleneck{Tail, Memory}) {
		t.Errorf("the order is %v", got)
	}
	for phrase := range phrases {
		if n := len(strings.Fields(phrase)); n > longestPhrase || normal(phrase) != phrase {
			t.Errorf("%q has %d words or is not written as it is looked for", phrase, n)
		}
		if !slices.Equal(FindBottlenecks(phrase), []Bottleneck{phrases[phrase]}) {
			t.Errorf("%q is not found: %v", phrase, FindBottlenecks(phrase))
		}
	}
}

// TestRulesOfTheJudge: what the built-in Judge calls its findings is
// understood, but for those that say nothing in particular.
func TestRulesOfTheJudge(t *testing.T) {
	vague := []string{"rejected", "cheated", "vendor_library", "roofline_gap"}
	named := regexp.MustCompile(`(?m)^\t\{"([a-z_]+)", `)
	for _, file := range []string{"../judge/optimise.go", "../judge/correct.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rules := named.FindAllStringSubmatch(string(source), -1)
		if len(rules) < 5 {
			t.Errorf("%s has %d rules", file, len(rules))
		}
		for _, m := range rules {
			if got := FindBottlenecks(m[1]); (len(got) == 1) == slices.Contains(vague, m[1]) {
				t.Errorf("%s: %v", m[1], got)
			}
		}
	}
}

const smallSkill = `+++
name = "softmax"
title = "Ours"
summary = "How we do it here."
languages = ["cuda"]
operators = ["aten.softmax"]
bottlenecks = ["memory"]
+++
# Ours
So.
`

func put(t *testing.T, folder, name, text string) {
	t.Helper()
	at := filepath.Join(folder, skillsFolder, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFolder(t *testing.T) {
	before := load(t, "")
	folder := t.TempDir()
	if got := load(t, folder).List(); len(got) != len(before.List()) {
		t.Errorf("without skills of one's own there are %d", len(got))
	}
	put(t, folder, "softmax.md", "\ufeff"+strings.ReplaceAll(smallSkill, "\n", "\r\n"))
	put(t, folder, "rotary.md", strings.NewReplacer("softmax", "rotary").Replace(smallSkill))
	put(t, folder, "README.txt", "no skill")
	put(t, folder, ".draft.md", "no skill either")
	s := load(t, folder)
	if got, _ := s.Get("softmax"); got.Title != "Ours" || got.Text != "# Ours\nSo.\n" {
		t.Errorf("not in the other's place: %+v", got)
	}
	if len(s.List()) != len(before.List())+1 {
		t.Errorf("%d skills, %d before", len(s.List()), len(before.List()))
	}
	got := s.Select(Query{Language: kernelwright.CUDA, Operators: []string{"aten.rotary"}, Words: []string{"memory"}}, 1)
	if !slices.Equal(names(got), []string{"rotary"}) {
		t.Errorf("%v", names(got))
	}
	if _, ok := s.Get("rot"); ok {
		t.Error("there is a skill that nobody has written")
	}
	if !slices.IsSorted(names(s.List())) {
		t.Error("not by name")
	}
}

func TestBadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	put(t, filepath.Dir(file), "x.md", smallSkill)
	flat := t.TempDir()
	for _, at := range []string{file, filepath.Join(flat, skillsFolder)} {
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for folder, want := range map[string]string{
		"/nowhere":         "/nowhere: the folder of prompts cannot be read: no such file or directory",
		flat:               filepath.Join(flat, skillsFolder) + ": what should be the folder of skills is a file",
		file:               file + ": what should be the folder of prompts is a file",
		filepath.Dir(file): `x.md: it is named "softmax" inside: a skill has its file's name, "x"`,
	} {
		if _, err := LoadSkills(folder); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", folder, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	change := func(from, to string) string {
		if !strings.Contains(smallSkill, from) {
			t.Fatalf("%q is not in it", from)
		}
		return strings.Replace(smallSkill, from, to, 1)
	}
	for text, want := range map[string]string{
		"":                             `its first line is not "+++"`,
		"# A heading\n":                `its first line is not "+++"`,
		"+++\nname = \"softmax\"\n":    `a second line of "+++", which ends the front matter, is missing`,
		"+++\n+++\n":                   `its front matter lacks "name"`,
		change(`"Ours"`, `Ours`):       "line 3 of its front matter is not TOML: ",
		change(`["cuda"]`, `"cuda"`):   "its front matter: ",
		change(`"memory"`, `"fog"`):    `its bottleneck "fog" is none of memory, cache, `,
		change(`"cuda"`, `"rust"`):     `its language "rust" is none of cpp, cuda, triton`,
		change(`["cuda"]`, `[]`):       `its front matter lacks "languages"`,
		change(`aten.softmax`, `a b`):  `its operator "a b" is not written as "aten.softmax"`,
		change(`"softmax"`, `"Soft"`):  `its name "Soft" is not of small letters, digits and _`,
		change(`"softmax"`, `"other"`): `it is named "other" inside: a skill has its file's name, "softmax"`,
		change("title", "tilte"):       `its front matter has "tilte", which no skill has`,
		change(`"Ours"`, `" "`):        `its front matter lacks "title"`,
		change(`"Ours"`, `"a\nb"`):     `its "title" has more than one line`,
		change("# Ours\nSo.\n", " \n"): "nothing follows its front matter",
		change("languages", "architectures = [\"ampere\"]\nlanguages"):             `its architecture "ampere" is not written as "sm_90a"`,
		change("operators = [\"aten.softmax\"]\nbottlenecks = [\"memory\"]\n", ""): "it has neither operators nor bottlenecks, so it would never be chosen",
		change("languages", "dtypes = [\"BF16\"]\nlanguages"):                      `its dtype "BF16" is not written as "bfloat16"`,
		smallSkill + "## Fog [cpp weather]\n":                                      `its section "Fog" is marked "weather", which is no language, bottleneck, status, architecture or operator`,
		smallSkill + "Ends. [cuda weather]\n":                                      `its line "Ends." is marked "weather", which is no language or architecture`,
		smallSkill + "| a |\n|---|\n| 1 | [sm_90 fog]\n":                           `its line "| 1 |" is marked "fog", which is no language or architecture`,
		smallSkill + "\xff":                             "it is not UTF-8",
		smallSkill + strings.Repeat("x", MaxSkillBytes): "it is larger than 64 KiB",
	} {
		folder := t.TempDir()
		put(t, folder, "softmax.md", text)
		_, err := LoadSkills(folder)
		if begins := filepath.Join(folder, skillsFolder, "softmax.md") + ": " + want; err == nil || !strings.HasPrefix(err.Error(), begins) {
			t.Errorf("%.40q: %v, not %s...", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%.40q: more than a line: %q", text, err)
		}
	}
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, skillsFolder, "softmax.md"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSkills(folder); err == nil || !strings.HasSuffix(err.Error(), "softmax.md: a skill has to be a file") {
		t.Errorf("a folder: %v", err)
	}
}

func FuzzParseSkill(f *testing.F) {
	f.Add([]byte(smallSkill))
	f.Add([]byte("+++\n+++\n"))
	f.Add([]byte("+++\r\nname = 'x'\r\n+++\r\n"))
	entries, err := skillFiles.ReadDir(skillsFolder)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries[:3] {
		b, err := skillFiles.ReadFile(skillsFolder + "/" + e.Name())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSkill(b)
		if err != nil {
			if text := err.Error(); text == "" || strings.Contains(text, "\n") || len(text) > 1000 {
				t.Fatalf("no sentence: %q", text)
			}
			return
		}
		if s.validate() != nil || s.Text == "" || len(s.Text) > MaxSkillBytes {
			t.Fatalf("%+v", s)
		}
	})
}
