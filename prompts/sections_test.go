package prompts

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
)

var headings = regexp.MustCompile(`(?m)^## (.*)$`)

// shownOf is what of skills an excerpt shows: the name of each with the beginnings
// of its sections' headings, and with "+" where it has code.
func shownOf(skills []Skill) string {
	var out []string
	for _, s := range skills {
		said := s.Name + ":"
		for _, m := range headings.FindAllStringSubmatch(s.Text, -1) {
			word, _, _ := strings.Cut(m[1], " ")
			said += " " + strings.TrimRight(word, ".,")
		}
		if strings.Contains(s.Text, "```") {
			said += " +"
		}
		out = append(out, said)
	}
	return strings.Join(out, "; ")
}

func TestExcerpt(t *testing.T) {
	s := load(t, "")
	cuda, cpp, triton := kernelwright.CUDA, kernelwright.CPP, kernelwright.Triton
	for _, c := range []struct {
		language  kernelwright.Language
		operators string
		words     string
		status    kernelwright.Status
		most      int
		want      string
	}{
		{cuda, "softmax", "", "", SkillsToFind, "softmax: Which Online Masks; reductions: Choose Within"},
		{cuda, "softmax", "barriers", "correct", SkillsToMend, "softmax: Which Masks; shared_memory: Barriers"},
		{cuda, "softmax", "memory_ceiling", "correct", SkillsToMend, "softmax: Which; reductions: Within"},
		{cuda, "softmax", "uncoalesced", "correct", SkillsToFind, "coalescing: The Lanes Structures; softmax: Which"},
		{cuda, "softmax", "crashed", "crashed", SkillsToMend, "debugging: It; softmax:"},
		{cuda, "softmax", "timed out", "timed_out", SkillsToMend, "debugging: It; softmax: Which"},
		{cuda, "softmax", "wrong", "wrong", SkillsToMend, "debugging: It; softmax:"},
		{cuda, "mm", "build_error", "build_failed", SkillsToMend, "debugging: It"},
		{cuda, "mm div sum mul", "", "", SkillsToFind, "fusion: What Where; gemm: Vendor How"},
		{cuda, "native_layer_norm", "extra_passes", "correct", SkillsToMend, "norms:; memory: One"},
		{cuda, "argmax", "", "", SkillsToFind, "reductions: Choose Argmax; architectures: Limits Chips"},
		{cuda, "sum", "idle_cores", "correct", SkillsToMend, "reductions: Choose; grid_shape: Splitting"},
		{cuda, "relu", "not_vectorised", "correct", SkillsToMend, "fusion: What; coalescing: 16 +"},
		{cpp, "softmax", "", "", SkillsToFind, "cpu: Slow Vectorising; softmax: On +"},
		{cpp, "softmax", "idle_cores", "correct", SkillsToMend, "cpu: Threads; reductions: On Pitfalls +"},
		{cpp, "tanh mul add", "not_vectorised", "correct", SkillsToMend, "cpu: exp Slow +"},
		{cpp, "tanh mul add", "", "", SkillsToFind, "cpu: exp Slow Vectorising +; fusion: On What"},
		{cpp, "softmax", "", "build_failed", SkillsToMend, "debugging_cpp: It; softmax:"},
		{cpp, "relu", "", "wrong", SkillsToMend, "debugging_cpp: It"},
		{cpp, "softmax", "overflow", "wrong", SkillsToMend, "numerics: What Finding Rules"},
		{triton, "softmax", "", "", SkillsToFind, "triton: What Rows Long Tuning +; softmax: Which Online"},
		{triton, "softmax", "build_error", "build_failed", SkillsToMend, "triton: What It; softmax:"},
	} {
		q := Query{Language: c.language, Words: []string{c.words}, DTypes: []string{"float32"}, ISA: []string{"sm_90"}, Status: c.status}
		for _, o := range strings.Fields(c.operators) {
			q.Operators = append(q.Operators, "aten."+o)
		}
		got := s.Excerpt(q, c.most)
		size := 0
		for _, x := range got {
			size += len("\n# \n\n") + len(x.Title) + len(x.Text)
			if x.Text == "" || strings.Contains(x.Text, "# "+x.Title+"\n") {
				t.Errorf("%v: nothing of %s, or its title twice: %s", q, x.Name, x.Text)
			}
		}
		if said := shownOf(got); said != c.want || size > c.most {
			t.Errorf("%s, %s, %q, %s: %d of %d characters: %s\nwant %s", c.language, c.operators, c.words, c.status, size, c.most, said, c.want)
		}
	}
	// What is shown of debugging is about what happened.
	for status, heading := range map[kernelwright.Status]string{"build_failed": "It does not compile", "crashed": "It crashes", "timed_out": "It hangs", "wrong": "It is wrong"} {
		got := s.Excerpt(Query{Language: cuda, Operators: []string{"aten.softmax"}, Words: []string{string(status)}, Status: status}, SkillsToMend)
		if !strings.Contains(got[0].Text, "## "+heading+"\n") || strings.Count(got[0].Text, "## It ") != 1 {
			t.Errorf("%s: %.80q", status, got[0].Text)
		}
	}
}

// TestExcerptAlways: whatever is asked, it keeps to what was allowed, shows no code in
// another language and no marks, and is made of whole lines of the skills in their order.
func TestExcerptAlways(t *testing.T) {
	s := load(t, "")
	operators := []string{"aten.relu", "aten.softmax", "aten.mm", "aten.convolution", "aten.cumsum", "aten.argmax", "aten.mse_loss", "prims.foo"}
	words := []string{"tail", "memory_ceiling", "bank conflicts", "it crashed", "build_error", "", "nothing of that"}
	fence := regexp.MustCompile("(?m)^```([a-z]+)")
	tags := map[kernelwright.Language]string{kernelwright.CUDA: "cuda", kernelwright.CPP: "cpp", kernelwright.Triton: "python"}
	rapid.Check(t, func(t *rapid.T) {
		q := Query{
			Language:  rapid.SampledFrom(kernelwright.AllLanguages()).Draw(t, "language"),
			Operators: rapid.SliceOfN(rapid.SampledFrom(operators), 0, 4).Draw(t, "operators"),
			Words:     rapid.SliceOfN(rapid.SampledFrom(words), 0, 2).Draw(t, "words"),
			Status:    rapid.SampledFrom(append([]kernelwright.Status{""}, statuses...)).Draw(t, "status"),
			ISA:       rapid.SampledFrom([][]string{nil, {"sm_75"}, {"sm_90a"}}).Draw(t, "isa"),
		}
		most := rapid.IntRange(0, 20000).Draw(t, "most")
		size := 0
		for _, skill := range s.Excerpt(q, most) {
			size += len("\n# \n\n") + len(skill.Title) + len(skill.Text)
			if open := fence.FindAllStringSubmatch(skill.Text, -1); strings.Count(skill.Text+"\n", "\n```\n") != len(open) {
				t.Fatalf("a fence is not closed:\n%s", skill.Text)
			} else if slices.ContainsFunc(open, func(m []string) bool { return m[1] != tags[q.Language] && m[1] != "text" }) {
				t.Fatalf("code in another language:\n%s", skill.Text)
			}
			whole, _ := s.Get(skill.Name)
			rest := whole.Text
			for line := range strings.Lines(skill.Text + "\n") {
				_, after, ok := strings.Cut(rest, line)
				if !ok || headingMarks.MatchString(strings.TrimSuffix(line, "\n")) {
					t.Fatalf("%q is not of %s, or not there", line, skill.Name)
				}
				rest = after
			}
		}
		if size > most {
			t.Fatalf("%d characters, where %d may be", size, most)
		}
	})
}

// A skill of one's own stands whole, but for what it marks as for others, and takes
// nothing from the others.
func TestExcerptOfOnesOwn(t *testing.T) {
	folder := t.TempDir()
	put(t, folder, "house.md", strings.NewReplacer(`"aten.softmax"`, `"*"`, "softmax", "house").Replace(smallSkill)+
		strings.Repeat("We do it so.\n", 1000)+"\nNot so. [triton]\n\n```cpp\nint x;\n```\n## On a CPU [cpp]\nNot here.\n## When it hangs [timed_out]\nNor here.\n## Ends\nAs ever [1]\n")
	q := Query{Language: kernelwright.CUDA, Operators: []string{"aten.softmax"}, Status: kernelwright.Correct}
	got := load(t, folder).Excerpt(q, SkillsToMend)
	want := "So.\n" + strings.Repeat("We do it so.\n", 1000) + "\n```cpp\nint x;\n```\n\n## Ends\nAs ever [1]"
	if !slices.Equal(names(got), []string{"house", "softmax"}) || got[0].Text != want || len(got[1].Text) < 500 {
		t.Errorf("%v: %.300s ... %s", names(got), got[0].Text, got[0].Text[max(0, len(got[0].Text)-300):])
	}
}

// TestMarks: what is marked is shown to those it is for, and marks to nobody.
func TestMarks(t *testing.T) {
	text := `# Ours

All of it. [cuda triton]
In two lines.

It ends so. [cuda triton]

- an item [cpp]
- of two
  lines [sm_90a]
- cites [2] [some of these] y[i]

| a | b |
|---|---|
| 1 | 2 | [cuda]
| 3 | 4 |
| 5 | 6 | [cpp sm_80]

## Code
Before. [cpp]
` + "```cuda\nint x[2];  // [cpp]\n```\nBehind it.\n```python\nx = 2\n```\nBehind that.\n## Last [triton sm_90]\nEnd.\n"
	skill, err := ParseSkill([]byte(strings.NewReplacer(`["cuda"]`, `["cuda", "triton", "cpp"]`, "# Ours\nSo.\n", text).Replace(smallSkill)))
	if err != nil {
		t.Fatal(err)
	}
	table := "\n| a | b |\n|---|---|\n"
	for _, c := range []struct {
		language kernelwright.Language
		isa      string
		want     string
	}{
		{kernelwright.CUDA, "sm_90", "All of it. [cuda triton]\nIn two lines.\n\nIt ends so.\n\n- of two\n  lines\n- cites [2] [some of these] y[i]\n" + table + "| 1 | 2 |\n| 3 | 4 |\n\n## Code\n```cuda\nint x[2];  // [cpp]\n```\nBehind it."},
		{kernelwright.Triton, "sm_80", "All of it. [cuda triton]\nIn two lines.\n\nIt ends so.\n\n- cites [2] [some of these] y[i]\n" + table + "| 3 | 4 |\n\n## Code\n```python\nx = 2\n```\nBehind that."},
		{kernelwright.CPP, "avx2", "All of it. [cuda triton]\nIn two lines.\n\n- an item\n- cites [2] [some of these] y[i]\n" + table + "| 3 | 4 |\n\n## Code\nBefore."},
		{kernelwright.CPP, "", "All of it. [cuda triton]\nIn two lines.\n\n- an item\n- of two\n  lines\n- cites [2] [some of these] y[i]\n" + table + "| 3 | 4 |\n| 5 | 6 |\n\n## Code\nBefore."},
	} {
		var isa []string
		if c.isa != "" {
			isa = []string{c.isa}
		}
		s := &Skills{all: []Skill{skill}}
		got := s.For(c.language, isa)
		if len(got) != 1 || got[0].Text != "# Ours\n\n"+c.want {
			t.Errorf("%s, %s:\n%s\nnot\n%s", c.language, c.isa, got[0].Text, c.want)
		}
		if got := s.Excerpt(Query{Language: c.language, ISA: isa, Operators: []string{"aten.softmax"}}, 10000); len(got) != 1 || got[0].Text != c.want {
			t.Errorf("%s, %s: the excerpt is\n%s", c.language, c.isa, got[0].Text)
		}
	}
	if strings.Count(skill.Text, "[") != strings.Count(text, "[")-7 {
		t.Errorf("the whole text:\n%s", skill.Text)
	}
	if (*Skills)(nil).For(kernelwright.CUDA, nil) != nil {
		t.Error("nobody's skills are some")
	}
}

// foreign is what a language has no use for, in regular expressions.
var foreign = map[kernelwright.Language]*regexp.Regexp{
	kernelwright.CPP: regexp.MustCompile(`__expf|MUFU|__shared__|\b[Ww]arps?\b|-ftz|fast_math|TF32|\.approx|cp\.async|\bSMs?\b|\bsm_\d|__syncthreads|threadIdx|blockIdx|gridDim|float4|__ldg|atomicAdd|shuffle|` +
		`[Ss]hared memory|[Tt]ensor core|\bGPU|CUDA|nvcc|cuBLAS|cuDNN|[Nn]sight|wgmma|Triton|\btl\.|num_warps`),
	kernelwright.Triton: regexp.MustCompile(`__expf|MUFU|__syncthreads|__shfl|threadIdx|blockIdx|blockDim|gridDim|#pragma|\bomp\b|AVX|__ld[cg]|__stcs|__launch_bounds__|__restrict|cudaFunc|float4|-ftz|fast_math|nvcc|mbarrier|mma\.sync|ldmatrix|wmma|C\+\+`),
	kernelwright.CUDA:   regexp.MustCompile(`\bomp\b|OpenMP|AVX|_mm\d|oneDNN|\bMKL\b|g\+\+|\btl\.|[Tt]riton|num_warps|constexpr argument`),
}

// pointing is what speaks of text that may not be there: a prompt has parts of skills.
var pointing = regexp.MustCompile(`\((see )?(below|above)\)|(below|above)[:)]|[Aa]s above|[Ss]ee (above|below|the)|in the prompt|[Ss]kills? \w+|\w+ skill\b|the code here|architecture notes|build\.(vectorised|missed|kernels)`)

var leftMark = regexp.MustCompile(`(?m)^.* \[((cuda|triton|cpp|sm_\w+) ?)+\]$`)

// TestOnlyWhatIsOfUse: neither in prompts nor in whole texts is there a word of
// another language, a mark, or one that points at what may not be there.
func TestOnlyWhatIsOfUse(t *testing.T) {
	s := load(t, "")
	seen := map[string]bool{} // language and line
	check := func(what string, language kernelwright.Language, text string) {
		t.Helper()
		for line := range strings.Lines(text) {
			if seen[string(language)+line] {
				continue
			}
			seen[string(language)+line] = true
			for why, form := range map[string]*regexp.Regexp{"not of this language": foreign[language], "points": pointing, "a mark": leftMark} {
				if found := form.FindString(line); found != "" {
					t.Errorf("%s, %s: %q, %s: %s", what, language, found, why, line)
				}
			}
		}
		prose := strings.Split(text, "```")
		for i := 0; i < len(prose); i += 2 { // code stands between
			if strings.Contains(prose[i], "\n\n\n") || strings.Trim(text, "\n") != text {
				t.Errorf("%s, %s: empty lines:\n%s", what, language, text)
			}
		}
	}
	for _, language := range kernelwright.AllLanguages() {
		isa := []string{"sm_90"}
		if language == kernelwright.CPP {
			isa = []string{"avx2", "avx512f"}
		}
		for _, skill := range s.For(language, nil) {
			check(skill.Name, language, skill.Title+"\n"+skill.Summary)
			check(skill.Name, language, skill.Text)
			if !strings.Contains(skill.Text, "\n\n") || len(skill.Text) < 500 {
				t.Errorf("%s has next to nothing for %s: %s", skill.Name, language, skill.Text)
			}
			only := &Skills{all: []Skill{skill}}
			var operators []string
			for _, o := range skill.Operators {
				operators = append(operators, strings.Split(strings.ReplaceAll(o, "*", "x"), "+")...)
			}
			for _, status := range append([]kernelwright.Status{""}, statuses...) {
				words := skill.Bottlenecks
				if status != "" && !status.OK() {
					words = []Bottleneck{Crash} // it is the status that counts
				}
				for _, b := range words {
					q := Query{Language: language, ISA: isa, Operators: operators, Words: []string{string(b)}, Status: status}
					for _, most := range []int{SkillsToMend, MaxSkillBytes} {
						for _, got := range only.Excerpt(q, most) {
							check(skill.Name+", "+string(status), language, got.Text)
						}
					}
				}
			}
		}
	}
}

// TestWhatHappened: after a failure nothing is shown that is about speed or about
// another failure.
func TestWhatHappened(t *testing.T) {
	s := load(t, "")
	about := map[kernelwright.Status]string{"build_failed": "It does not compile", "crashed": "It crashes", "timed_out": "It hangs", "wrong": "It is wrong"}
	heading := func(language kernelwright.Language, status kernelwright.Status) string {
		if language == kernelwright.Triton && (status == kernelwright.Crashed || status == kernelwright.TimedOut) {
			return "It crashes or does not end"
		}
		return about[status]
	}
	for _, language := range kernelwright.AllLanguages() {
		for status := range about {
			for _, operator := range []string{"softmax", "relu", "mm", "native_layer_norm", "cumsum", "convolution", "sum", "max_pool2d"} {
				q := Query{Language: language, Operators: []string{"aten." + operator}, Words: []string{string(status), "memory bandwidth, and a barrier"}, Status: status}
				var shown []string
				for _, skill := range s.Excerpt(q, MaxSkillBytes) {
					for _, m := range headings.FindAllStringSubmatch(skill.Text, -1) {
						shown = append(shown, m[1])
					}
				}
				for other := range about {
					its := heading(language, other)
					if want := its == heading(language, status); slices.Contains(shown, its) != want {
						t.Errorf("%s, %s, %s: %q is not as it should be in %q", language, operator, status, its, shown)
					}
				}
				for _, speed := range []string{"Vectorising", "Caches", "Threads", "Bank rule", "Bytes in flight (Little's law)", "Tuning"} {
					if slices.Contains(shown, speed) {
						t.Errorf("%s, %s, %s: %q", language, operator, status, shown)
					}
				}
			}
		}
	}
}
