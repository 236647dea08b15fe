package policies

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/kernelwright/kernelwright/store"
)

const (
	unfinished = ".new-"  // begins the name of a folder that is being written
	aside      = "aside-" // of one that was in the way
	lockFile   = ".lock"
	adapter    = "adapter_config.json"
	baseFolder = "base" // of an adapter, within its folder
	// A file of this size that an earlier version has too is not kept twice: adapters
	// have their base in common.
	sharedBytes = 1 << 20
)

// kinds are the files of a model that are read. Weights are safetensors alone: others may
// hold programs.
var kinds = []string{".json", ".safetensors", ".txt", ".jinja", ".model", ".md"}

// Add records the model in a folder, or returns the version that has the same content:
// its folder is written anew where it was removed, or changed by hand, and what was in it
// is put aside. An empty license is
// taken from the model's README.md. The version is there whole or not at all, however this
// process ends. A folder that is no model is an *Error.
func (r *Registry) Add(ctx context.Context, folder, base, license string, o Origin) (Policy, error) {
	if err := check(folder); err != nil {
		return Policy{}, err
	}
	unlock, err := r.lock()
	if err != nil {
		return Policy{}, err
	}
	defer unlock()
	if err := r.tidy(ctx); err != nil {
		return Policy{}, err
	}
	beside, err := os.MkdirTemp(r.folder, unfinished)
	if err != nil {
		return Policy{}, err
	}
	defer os.RemoveAll(beside) //nolint:errcheck // it was renamed; else the next one takes it away
	all, err := r.List(ctx)
	if err != nil {
		return Policy{}, err
	}
	files, err := (&copying{ctx: ctx, known: shared(all)}).model(folder, beside)
	if err != nil {
		return Policy{}, fmt.Errorf("copy the policy in %s: %w", folder, err)
	}
	text, err := json.Marshal(files)
	if err != nil {
		return Policy{}, err
	}
	p := store.Policy{
		Digest: digest(files), Base: base, License: cmp.Or(license, licenseOf(folder)), Pipeline: o.Pipeline, Stage: o.Stage, Files: text,
	}
	for _, f := range files {
		p.Bytes += f.Bytes
	}
	intact := slices.ContainsFunc(all, func(o Policy) bool {
		return o.Digest == p.Digest && o.RemovedMS == 0 && changed(o.Folder, files) == nil
	})
	saved, err := r.store.SavePolicy(ctx, p, func(version int64) error {
		if intact {
			return nil
		}
		return r.place(beside, name(version))
	})
	if err != nil {
		return Policy{}, err
	}
	return r.made(saved)
}

// place renames a folder to that of a version. What is in the way is put aside: whoever
// changed it may want it, or it is of another record.
func (r *Registry) place(beside, version string) error {
	to := filepath.Join(r.folder, version)
	if _, err := os.Lstat(to); err == nil {
		other, err := os.MkdirTemp(r.folder, aside+version+"-")
		if err != nil {
			return err
		}
		if err := os.Rename(to, filepath.Join(other, version)); err != nil {
			return err
		}
	}
	if err := os.Chmod(beside, 0o755); err != nil {
		return err
	}
	if err := os.Rename(beside, to); err != nil {
		return err
	}
	return flush(r.folder)
}

// lock keeps other processes from writing to the folder.
func (r *Registry) lock() (unlock func(), err error) {
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(r.folder, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // which lets go of it
}

// check says why a folder is no model.
func check(folder string) error {
	bad := func(why string) error {
		return &Error{Text: fmt.Sprintf("%s is no model: %s", folder, why), Hint: "name a folder that transformers' save_pretrained wrote, with safetensors and its tokenizer"}
	}
	info, err := os.Stat(folder)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return bad("it is not there")
	case err != nil:
		return err
	case !info.IsDir():
		return bad("it is a file")
	}
	has := func(folder, pattern string) bool {
		found, err := filepath.Glob(filepath.Join(escaped(folder), pattern))
		return err == nil && len(found) > 0
	}
	isAdapter := has(folder, adapter)
	switch {
	case !isAdapter && !has(folder, "config.json"):
		return bad("it has no config.json")
	case !has(folder, "*.safetensors"):
		return bad("it has no weights in safetensors")
	case isAdapter:
		base, err := baseOf(folder)
		if err != nil {
			return err
		}
		if has(base, adapter) {
			return bad(fmt.Sprintf("it is an adapter of an adapter, %s", base))
		}
		if err := check(base); err != nil {
			return err
		}
	case !has(folder, "tokenizer*.json") && !has(folder, "*.model"):
		return bad("it has no tokenizer")
	}
	weights, err := filepath.Glob(filepath.Join(escaped(folder), "*.safetensors"))
	if err != nil {
		return err
	}
	for _, path := range weights {
		if err := safetensors(path); err != nil {
			return bad(fmt.Sprintf("%s is %v", filepath.Base(path), err))
		}
	}
	return nil
}

// escaped is a path that Glob takes as it is.
func escaped(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// maxHeader is what safetensors itself takes of a header, in bytes.
const maxHeader = 100_000_000

// safetensors says what is wrong with a file of weights, as far as its head and its size
// tell: 8 bytes with the length of a header, the header, which is JSON and says where each
// tensor ends, and these.
func safetensors(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return errors.New("cut short")
	}
	n := int64(0)
	for i, b := range head {
		n |= int64(b) << (8 * i)
	}
	if n < 2 || n > maxHeader || n > info.Size()-8 {
		return errors.New("no file of safetensors, or one that was cut short")
	}
	var tensors map[string]struct {
		Offsets [2]int64 `json:"data_offsets"`
	}
	header := json.NewDecoder(io.LimitReader(f, n))
	if err := header.Decode(&tensors); err != nil {
		return errors.New("no file of safetensors")
	}
	end := int64(0)
	for _, t := range tensors {
		end = max(end, t.Offsets[1])
	}
	if 8+n+end != info.Size() {
		return errors.New("cut short")
	}
	return nil
}

// baseOf returns the folder of an adapter's base.
func baseOf(folder string) (string, error) {
	var told struct {
		Base string `json:"base_model_name_or_path"`
	}
	text, err := os.ReadFile(filepath.Join(folder, adapter))
	if err == nil {
		err = json.Unmarshal(text, &told)
	}
	if err != nil || told.Base == "" {
		return "", &Error{Text: fmt.Sprintf("%s names no base model", filepath.Join(folder, adapter)), Hint: "name a folder that PEFT's save_pretrained wrote", Err: err}
	}
	base := told.Base
	if !filepath.IsAbs(base) {
		base = filepath.Join(folder, base) // as a policy has it; else as the working folder has
		if _, err := os.Stat(base); err != nil {
			base = told.Base
		}
	}
	if info, err := os.Stat(base); err != nil || !info.IsDir() {
		return "", &Error{Text: fmt.Sprintf("the base model %s of the adapter in %s is not there", told.Base, folder), Hint: "put its folder's path into base_model_name_or_path of " + adapter}
	}
	return base, nil
}

// copying copies models into folders of policies.
type copying struct {
	ctx   context.Context
	known map[string]string // path by digest, of large files of other versions
}

// shared is what other versions have of large files.
func shared(all []Policy) map[string]string {
	known := map[string]string{}
	for _, p := range all {
		for _, f := range p.files {
			if p.RemovedMS == 0 && f.Bytes >= sharedBytes {
				known[f.SHA256] = filepath.Join(p.Folder, filepath.FromSlash(f.Name))
			}
		}
	}
	return known
}

// model copies a model, with an adapter its base, and returns its files by name. All are
// on the disk then.
func (c *copying) model(from, to string) ([]file, error) {
	files, err := c.folder(from, to, "")
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(files, func(f file) bool { return f.Name == adapter }) {
		base, err := baseOf(from)
		if err != nil {
			return nil, err
		}
		if err := os.Mkdir(filepath.Join(to, baseFolder), 0o755); err != nil {
			return nil, err
		}
		more, err := c.folder(base, filepath.Join(to, baseFolder), baseFolder)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.Name, b.Name) })
	return files, flush(to)
}

// folder copies the files of a folder that belong to a model. Links are followed: the
// cache of Hugging Face's is made of them.
func (c *copying) folder(from, to, below string) ([]file, error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, e := range entries {
		name := e.Name()
		belongs := slices.Contains(kinds, filepath.Ext(name)) || strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "NOTICE")
		if !belongs || strings.HasPrefix(name, ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(from, name))
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		f, err := c.file(filepath.Join(from, name), filepath.Join(to, name))
		if err != nil {
			return nil, err
		}
		f.Name = path.Join(below, name)
		files = append(files, f)
	}
	return files, flush(to)
}

// file copies a file and flushes it, or links one of the same content.
func (c *copying) file(from, to string) (file, error) {
	if err := c.ctx.Err(); err != nil {
		return file{}, err
	}
	var in io.Reader
	if filepath.Base(from) == adapter {
		text, err := rebased(from)
		if err != nil {
			return file{}, err
		}
		in = strings.NewReader(text)
	} else {
		opened, err := os.Open(from)
		if err != nil {
			return file{}, err
		}
		defer opened.Close()
		in = opened
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return file{}, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), in)
	f := file{Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}
	other := c.known[f.SHA256]
	if err == nil && (other == "" || !c.linked(other, to, f)) {
		err = out.Sync()
	}
	return f, errors.Join(err, out.Close())
}

// linked puts another version's file in the place of one that has the same content; false
// where that is not to be, such as across disks, or because that one was changed by hand.
func (c *copying) linked(other, to string, f file) bool {
	if found, err := hashed(other); err != nil || found != (file{Bytes: f.Bytes, SHA256: f.SHA256}) {
		return false
	}
	beside := to + ".link"
	if os.Link(other, beside) != nil {
		return false
	}
	return os.Rename(beside, to) == nil
}

// rebased is an adapter's settings with its base where a policy has it.
func rebased(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(text, &settings); err != nil {
		return "", &Error{Text: fmt.Sprintf("%s is no JSON", path), Hint: "name a folder that PEFT's save_pretrained wrote", Err: err}
	}
	settings["base_model_name_or_path"] = json.RawMessage(`"` + baseFolder + `"`)
	out, err := json.MarshalIndent(settings, "", "  ")
	return string(out) + "\n", err
}

// digest is that of a policy.
func digest(files []file) string {
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%q %d %s\n", f.Name, f.Bytes, f.SHA256)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// licenseOf is what the head of a model's README.md says, as Hugging Face's do; "" where
// it says nothing. Of an adapter that says nothing, its base's counts.
func licenseOf(folder string) string {
	text, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err == nil {
		head, _, _ := strings.Cut(strings.TrimPrefix(string(text), "---\n"), "\n---")
		for line := range strings.Lines(head) {
			if told, ok := strings.CutPrefix(line, "license:"); ok && strings.HasPrefix(string(text), "---\n") {
				return strings.Trim(strings.TrimSpace(told), `"'`)
			}
		}
	}
	if base, err := baseOf(folder); err == nil {
		return licenseOf(base)
	}
	return ""
}

// flush has what a folder lists reach the disk.
func flush(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
