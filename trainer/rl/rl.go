// Package rl holds the Python that trains policies, and finds or makes the
// environment that it runs in. docs/trainer-rl.md says what its programs do.
package rl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright/internal/wholefile"
)

// The Python package, without its tests.
//
//go:embed *.py constants.toml requirements.txt
var files embed.FS

// pins is the name of the file with what is installed.
const pins = "requirements.txt"

// packageHash is over the embedded files.
var packageHash = sync.OnceValue(func() string {
	sum := sha256.New()
	for _, name := range names() {
		text := content(name)
		fmt.Fprintf(sum, "%s %d\n", name, len(text))
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
})

func names() []string {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		panic(err) // it is embedded
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func content(name string) []byte {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return text
}

// unpack writes the package below a data folder and returns what belongs on
// PYTHONPATH. Files are put in place by rename: processes that start together agree.
func unpack(dataDir string) (string, error) {
	root := filepath.Join(dataDir, "rl", packageHash())
	folder := filepath.Join(root, "rl")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	for _, name := range names() {
		if err := wholefile.Write(filepath.Join(folder, name), content(name)); err != nil {
			return "", err
		}
	}
	return root, nil
}

// Python runs the package's programs.
type Python struct {
	Interpreter string
	Path        []string // of PYTHONPATH
}

// passed is what the programs inherit of the environment: how to find programs,
// libraries and devices, nothing that could be a secret.
var passed = []string{
	"PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "LANG", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
	"NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
}

// Env is the environment of a program, with more on top of it. home is where
// libraries may keep what they like.
func (p Python) Env(home string, more ...string) []string {
	env := []string{
		"HOME=" + home, "PYTHONPATH=" + strings.Join(p.Path, string(os.PathListSeparator)), "PYTHONUNBUFFERED=1", "PYTHONHASHSEED=0",
		"OMP_WAIT_POLICY=passive", // beside others a thread that spins waits for one that does not run
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_VERBOSITY=error", "TOKENIZERS_PARALLELISM=false",
	}
	for _, name := range passed {
		if v, set := os.LookupEnv(name); set {
			env = append(env, name+"="+v)
		}
	}
	return append(env, more...)
}

// Options say where the environment of the programs is found or made.
type Options struct {
	DataDir     string
	Interpreter string // a Python that has PyTorch
	// Python is one that has all that the programs need; empty: what they need beside
	// PyTorch is installed in the data folder, once.
	Python   string
	Progress func(stage, note string) // may be nil
}

// Open unpacks the programs, and finds or makes their environment. Errors are
// *hwfeedback.SetupError, or the context's.
func Open(ctx context.Context, o Options) (Python, error) {
	if o.Progress == nil {
		o.Progress = func(string, string) {}
	}
	root, err := unpack(o.DataDir)
	if err != nil {
		return Python{}, unwritten(o.DataDir, err)
	}
	if o.Python != "" {
		return configured(ctx, o.Python, root)
	}
	packages, err := installed(ctx, o)
	return Python{Interpreter: o.Interpreter, Path: []string{root, packages}}, err
}

// lastLine returns the last line of what a program printed, or what else there is
// to say.
func lastLine(text string, err error) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return cmp.Or(strings.TrimSpace(lines[len(lines)-1]), err.Error())
}
