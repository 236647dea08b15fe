package report

import (
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// What stands in a candidate is text, also where it is highlighted, and comes out as it
// went in.
func TestHighlightedCodeIsTheSameText(t *testing.T) {
	for _, source := range []string{
		"", "\n", "x", "import torch\n\nlib = native(source=r\"\"\"\n#include <cmath>\nextern \"C\" void f(float* x) { /* \" */ }\n\"\"\")\n",
		"<script>alert(1)</script>\n\"><img src=x onerror=alert(1)>\n'''</pre><i class=\"x\">\n", "\x00\x1b[2J\u202e\xff\r\n\ttab",
		strings.Repeat("\"\"\"", 999) + strings.Repeat("((((", 999), strings.Repeat("# long\n", 20000),
		"\"\"\"\n#include <x>\n", "f'\n#include", "rb'''\n__global__ R\"(" + strings.Repeat("R\"(/*", 5000), strings.Repeat("'\\", 9999) + "\\",
	} {
		var lines []string
		for _, l := range Highlight(source) {
			lines = append(lines, string(l))
		}
		markup := strings.Join(lines, "\n")
		for _, class := range []string{"hc", "hk", "hs", "hf", "ht", "hn", "hp"} {
			markup = strings.ReplaceAll(markup, `<i class="`+class+`">`, "")
		}
		markup = strings.ReplaceAll(markup, "</i>", "")
		if strings.ContainsAny(markup, "<>\"") {
			t.Errorf("%.60q: markup is left: %.200q", source, markup)
		}
		text := strings.NewReplacer("&lt;", "<", "&gt;", ">", "&#34;", `"`, "&#39;", "'", "&amp;", "&").Replace(markup)
		if want := strings.TrimSuffix(cut(Clean(source)), "\n"); text != want {
			t.Errorf("%.60q became %.200q", source, text)
		}
	}
}

// Each kind of token has its class, in Python and in the C++ of its strings.
func TestHighlightedTokens(t *testing.T) {
	for source, want := range map[string]string{
		"import torch":                             `[hk import] torch`,
		"class M(nn.Module):":                      `[hk class] [hf M](nn.Module):`,
		"  @torch.no_grad()":                       `[hf   @torch.no_grad]()`,
		"def f(x):  # why":                         `[hk def] [hf f](x):  [hc # why]`,
		"x = len(y) + 1e-6 - .5 @ a":               `x = [ht len](y) + [hn 1e-6] - [hn .5] @ a`,
		`s = f"{x}" + 'it\'s' # "`:                 `s = [hs f"{x}"] + [hs 'it\'s'] [hc # "]`,
		`s = "open`:                                `s = [hs "open]`,
		"größe = lambda: None":                     `größe = [hk lambda]: [hk None]`,
		"r'''\n__global__ void f() {}'''":          "[hs r''']\n[hk __global__] [ht void] [hf f]() {}[hs ''']",
		"r'''\n#include <a> // b\n\"c\" 0x1Fu'''":  "[hs r''']\n[hp #include <a> // b]\n[hs \"c\"] [hn 0x1Fu][hs ''']",
		"'''\n__global__\n/* a\nb */ return g(1);": "[hs ''']\n[hk __global__]\n[hc /* a]\n[hc b */] [hk return] g([hn 1]);",
		"'''\nplain void\n'''":                     "[hs ''']\n[hs plain void]\n[hs ''']",
	} {
		var lines []string
		for _, l := range Highlight(source) {
			lines = append(lines, string(l))
		}
		got := regexp.MustCompile(`<i class="(h.)">(.*?)</i>`).ReplaceAllString(strings.Join(lines, "\n"), "[$1 $2]")
		if got = html.UnescapeString(got); got != want {
			t.Errorf("%s\n got %s\nwant %s", source, got, want)
		}
	}
}

// The page says by which steps the best kernel came to be, and what moved at each.
func TestThePageSaysWhyItIsFaster(t *testing.T) {
	d := finished()
	parent := 0
	d.Rounds[2].Parent = &parent
	d.Rounds[2].Verdict.Metrics = map[string]float64{"achieved_gbs": 19.8, "memory_share": 0.9}
	d.Rounds[1].Feedback = &kernelwright.Feedback{Kind: kernelwright.Correction, Issue: "a row is skipped", Fix: "start at 0"}
	html, _ := pages(t, d)
	for _, want := range []string{
		"Why it is faster", "It takes 1.40 ms where compile takes 3.00 ms.", `<a href="#round-0">round 0</a> <span>first candidate</span>`, `<a href="#round-2">round 2</a> <span>optimisation</span>`,
		"<b>Asked:</b> Memory traffic: fuse two passes.", "<b>Done:</b> Two passes, online.", `memory_share</b> 61 % → 90 %`, "1.57×",
		"Which round went on from which", `aria-label="1 wrong, round 1: wrong"`, "What moved since round 0", "Changed since round 0",
	} {
		if !strings.Contains(strings.ToLower(html), strings.ToLower(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(html, `<a href="#round-1">round 1</a> <span>`) {
		t.Error("a round that the best one did not come from is among its steps")
	}
	d.Rounds[2].Parent = nil
	if html, _ := pages(t, d); strings.Contains(html, "Which round went on from which") || !strings.Contains(html, "answers a correction") {
		t.Error("a chain is no tree, and a diamond answers a correction")
	}
}

// The roofline has the kernel below the roof, at the task's own intensity.
func TestTheRooflineHoldsTheTimes(t *testing.T) {
	d := finished()
	v := *d.Rounds[2].Certificate
	if _, ok := newRoofline(v, d.Device); ok {
		t.Error("it was drawn of a task without operations")
	}
	v.Floor.Operations = 10_000_000
	for _, bound := range []string{"memory", "cache", "compute"} {
		v.Floor.Bound = bound
		c, ok := newRoofline(v, d.Device)
		if !ok || len(c.Points) != 4 || c.Points[0].Class != "floor" || c.Points[1].Class != "kernel" {
			t.Fatalf("%s: %+v", bound, c)
		}
		for i, p := range c.Points {
			if p.X != c.Points[0].X || i > 0 && p.Y <= c.Points[i-1].Y || p.Y < c.Top || p.Y > c.Bottom {
				t.Errorf("%s: %+v", bound, c.Points)
			}
		}
	}
}
