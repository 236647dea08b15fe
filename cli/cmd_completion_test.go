package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each script is accepted by the shell that it is for, and completes there.
// TestScripts says what is in them; here somebody else reads them.
func TestCompletionScriptsAreSound(t *testing.T) {
	for _, tt := range []struct {
		shell string
		check []string // to read the script without running it
		ask   string   // prints what may follow `kernelwright history re`
	}{
		{"bash", []string{"-n"}, `source "$0"; COMP_WORDS=(kernelwright history re); COMP_CWORD=2; _kernelwright; printf '%s\n' "${COMPREPLY[@]}"`},
		// Completion itself needs a terminal in zsh; the function is bash's.
		{"zsh", []string{"-f", "-n"}, `compdef() { : }; autoload() { : }; bashcompinit() { : }; complete() { : }
			source "$0"; compgen() { for w in ${=2}; do [[ $w == $4* ]] && echo $w; done; return 0 }
			setopt ksharrays; COMP_WORDS=(kernelwright history re); COMP_CWORD=2; _kernelwright; printf '%s\n' "${COMPREPLY[@]}"`},
		{"fish", []string{"--no-config", "--no-execute"}, `source $argv[1]; complete -C 'kernelwright history re'`},
	} {
		t.Run(tt.shell, func(t *testing.T) {
			var script bytes.Buffer
			if err := Run(t.Context(), []string{"completion", tt.shell}, nil, &script, &script); err != nil {
				t.Fatal(err)
			}
			if script.Len() == 0 {
				t.Fatal("no script")
			}
			path := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(path, script.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			shell, err := exec.LookPath(tt.shell)
			if err != nil {
				t.Skipf("there is no %s here to read the script", tt.shell)
			}
			run := func(args ...string) string {
				t.Helper()
				c := exec.Command(shell, args...)
				c.Env = append(os.Environ(), "HOME="+t.TempDir())
				out, err := c.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			if said := run(append(tt.check, path)...); said != "" {
				t.Errorf("it says %s", said)
			}
			words := map[string][]string{"bash": {"-c", tt.ask, path}, "zsh": {"-f", "-c", tt.ask, path}, "fish": {"--no-config", "-c", tt.ask, path}}[tt.shell]
			if got := strings.Fields(run(words...)); len(got) == 0 || got[0] != "replay" {
				t.Errorf("it offers %q, want replay", got)
			}
		})
	}
}
