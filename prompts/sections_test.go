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
		{cuda, "softmax", "", "", SkillsToFind, "softmax: Which Online; reductions: Choose Within"},
		{cuda, "softmax", "barriers", "correct", SkillsToMend, "softmax: Which; shared_memory: Barriers Pitfalls"},
		{cuda, "softmax", "memory_ceiling", "correct", SkillsToMend, "softmax: Which; reductions: Choose"},
		{cuda, "softmax", "uncoalesced", "correct", SkillsToFind, "coalescing: The threadIdx.x Structures; softmax: Which"},
		{cuda, "softmax", "crashed", "crashed", SkillsToMend, "debugging: It"},
		{cuda, "softmax", "timed out", "timed_out", SkillsToMend, "debugging: It; softmax: Which"},
		{cuda, "softmax", "wrong", "wrong", SkillsToMend, "debugging: It"},
		{cuda, "mm", "build_error", "build_failed", SkillsToMend, "debugging: It"},
		{cuda, "mm div sum mul", "", "", SkillsToFind, "fusion: What Where; gemm: Vendor"},
		{cuda, "native_layer_norm", "extra_passes", "correct", SkillsToMend, "norms:; memory: One"},
		{cuda, "argmax", "", "", SkillsToFind, "reductions: Choose Within Argmax; architectures: Limits Choosing"},
		{cuda, "sum", "idle_cores", "correct", SkillsToMend, "reductions: Choose; grid_shape: Splitting"},
		{cuda, "relu", "not_vectorised", "correct", SkillsToMend, "fusion: What; coalescing: 16 +"},
		{cpp, "softmax", "", "", SkillsToFind, "cpu: Vectorising Caches; softmax: Online Masks"},
		{cpp, "softmax", "idle_cores", "correct", SkillsToMend, "cpu: Threads; reductions: On Pitfalls"},
		{cpp, "tanh mul add", "not_vectorised", "correct", SkillsToMend, "cpu: Vectorising"},
		{triton, "softmax", "", "", SkillsToFind, "triton: What Rows Long +; softmax: Which"},
		{triton, "softmax", "build_error", "build_failed", SkillsToMend, "triton: Errors; softmax: Which"},
	} {
		q := Query{Language: c.language, Words: []string{c.words}, DTypes: []string{"float32"}, ISA: []string{"sm_90"}, Status: c.status}
		for _, o := range strings.Fields(c.operators) {
			q.Operators = append(q.Operators, "aten."+o)
		}
		got := s.Excerpt(q, c.most)
		size := 0
		for _, x := range got {
			size += len("# \n\n") + len(x.Title) + len(x.Text)
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
			Language:  rapid.SampledFrom(allLanguages).Draw(t, "language"),
			Operators: rapid.SliceOfN(rapid.SampledFrom(operators), 0, 4).Draw(t, "operators"),
			Words:     rapid.SliceOfN(rapid.SampledFrom(words), 0, 2).Draw(t, "words"),
			Status:    rapid.SampledFrom(append([]kernelwright.Status{""}, statuses...)).Draw(t, "status"),
			ISA:       rapid.SampledFrom([][]string{nil, {"sm_75"}, {"sm_90a"}}).Draw(t, "isa"),
		}
		most := rapid.IntRange(0, 20000).Draw(t, "most")
		size := 0
		for _, skill := range s.Excerpt(q, most) {
			size += len("# \n\n") + len(skill.Title) + len(skill.Text)
			if open := fence.FindAllStringSubmatch(skill.Text, -1); strings.Count(skill.Text, "\n```\n") != len(open) {
				t.Fatalf("a fence is not closed:\n%s", skill.Text)
			} else if slices.ContainsFunc(open, func(m []string) bool { return m[1] != tags[q.Language] && m[1] != "text" }) {
				t.Fatalf("code in another language:\n%s", skill.Text)
			}
			whole, _ := s.Get(skill.Name)
			rest := whole.Text
			for line := range strings.Lines(skill.Text) {
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

// A skill of one's own stands whole, and takes nothing from the others.
func TestExcerptOfOnesOwn(t *testing.T) {
	folder := t.TempDir()
	put(t, folder, "house.md", strings.NewReplacer(`"aten.softmax"`, `"*"`, "softmax", "house").Replace(smallSkill)+strings.Repeat("We do it so.\n", 1000)+"## On a CPU [cpp]\nNot here.\n")
	got := load(t, folder).Excerpt(Query{Language: kernelwright.CUDA, Operators: []string{"aten.softmax"}}, SkillsToMend)
	if !slices.Equal(names(got), []string{"house", "softmax"}) || len(got[0].Text) < 13000 || !strings.Contains(got[0].Text, "\n## On a CPU\nNot here.\n") || len(got[1].Text) < 500 {
		t.Errorf("%v: %.300s", names(got), got[0].Text)
	}
}
