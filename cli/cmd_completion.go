package cli

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"One of bash, zsh and fish."`
}

// Run prints a script made from the same grammar that parses the arguments, so
// the two cannot drift apart.
func (c completionCmd) Run(a *app) error {
	var words []completionNode
	walkNodes(a.kong.Model.Node, nil, &words)
	script := bashCompletion(words)
	switch c.Shell {
	case "zsh":
		script = "#compdef kernelwright\nautoload -U +X bashcompinit && bashcompinit\n" + script
	case "fish":
		script = fishCompletion(words)
	}
	if a.json {
		return a.printJSON(map[string]string{"shell": c.Shell, "script": script})
	}
	return a.printf("%s", script)
}

// completionNode is one verb with what may follow it.
type completionNode struct {
	path  []string // without the program's name
	help  string
	verbs []*kong.Node
	flags []*kong.Flag
	args  []string // words that a positional takes
}

func walkNodes(n *kong.Node, path []string, out *[]completionNode) {
	it := completionNode{path: path, help: n.Help}
	for _, group := range n.AllFlags(true) {
		it.flags = append(it.flags, group...)
	}
	for _, p := range n.Positional {
		if p.Enum != "" {
			it.args = append(it.args, p.EnumSlice()...)
		}
	}
	for _, child := range n.Children {
		if !child.Hidden {
			it.verbs = append(it.verbs, child)
		}
	}
	*out = append(*out, it)
	for _, child := range it.verbs {
		walkNodes(child, append(append([]string{}, path...), child.Name), out)
	}
}

func (n completionNode) words() []string {
	var out []string
	for _, v := range n.verbs {
		out = append(out, v.Name)
	}
	out = append(out, n.args...)
	for _, f := range n.flags {
		out = append(out, "--"+f.Name)
	}
	return out
}

func bashCompletion(nodes []completionNode) string {
	var b strings.Builder
	b.WriteString(`_kernelwright() {
  local cur="${COMP_WORDS[COMP_CWORD]}" verb="" i w
  for ((i = 1; i < COMP_CWORD; i++)); do
    w="${COMP_WORDS[i]}"
    case "$verb $w" in
`)
	for _, n := range nodes {
		if len(n.path) == 0 {
			continue
		}
		parent := strings.Join(n.path[:len(n.path)-1], " ")
		fmt.Fprintf(&b, "      %q) verb=%q ;;\n", parent+" "+n.path[len(n.path)-1], strings.Join(n.path, " "))
	}
	b.WriteString("    esac\n  done\n  local words=\"\"\n  case \"$verb\" in\n")
	for _, n := range nodes {
		fmt.Fprintf(&b, "    %q) words=%q ;;\n", strings.Join(n.path, " "), strings.Join(n.words(), " "))
	}
	b.WriteString(`  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ "$cur" != -* ]]; then
    COMPREPLY+=($(compgen -f -- "$cur"))
  fi
}
complete -o filenames -F _kernelwright kernelwright
`)
	return b.String()
}

func fishCompletion(nodes []completionNode) string {
	var b strings.Builder
	for _, n := range nodes {
		condition := "__fish_use_subcommand"
		if len(n.path) > 0 {
			condition = "__fish_seen_subcommand_from " + n.path[len(n.path)-1]
			for _, p := range n.path[:len(n.path)-1] {
				condition += "; and __fish_seen_subcommand_from " + p
			}
		}
		for _, v := range n.verbs {
			fmt.Fprintf(&b, "complete -c kernelwright -n %s -a %s -d %s\n", fishQuote(condition), v.Name, fishQuote(v.Help))
		}
		for _, w := range n.args {
			fmt.Fprintf(&b, "complete -c kernelwright -n %s -a %s\n", fishQuote(condition), w)
		}
		for _, f := range n.flags {
			value := " -r"
			if f.IsBool() {
				value = ""
			}
			fmt.Fprintf(&b, "complete -c kernelwright -n %s -l %s%s -d %s\n", fishQuote(condition), f.Name, value, fishQuote(f.Help))
		}
	}
	return b.String()
}

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
