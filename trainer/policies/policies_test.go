package policies

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright/store"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(t, os.WriteFile(path, []byte(text), 0o644))
}

// weights is a file of safetensors.
func weights(t testing.TB, content string) string {
	t.Helper()
	header := string(must(json.Marshal(map[string]any{
		"__metadata__": map[string]string{"format": "pt"},
		"w":            map[string]any{"dtype": "U8", "shape": []int{len(content)}, "data_offsets": []int{0, len(content)}},
	}))(t))
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + content
}

// model writes a folder like a model's.
func model(t testing.TB, content string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "a [model]")
	write(t, filepath.Join(folder, "config.json"), `{"architectures": ["LlamaForCausalLM"]}`)
	write(t, filepath.Join(folder, "tokenizer.json"), `{}`)
	write(t, filepath.Join(folder, "tokenizer_config.json"), `{}`)
	write(t, filepath.Join(folder, "README.md"), "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n")
	write(t, filepath.Join(folder, "model.safetensors"), weights(t, content))
	return folder
}

func adapterOf(t testing.TB, base, content string) string {
	t.Helper()
	folder := t.TempDir()
	settings := must(json.Marshal(map[string]any{"r": 8, "base_model_name_or_path": base, "peft_type": "LORA"}))(t)
	write(t, filepath.Join(folder, adapter), string(settings))
	write(t, filepath.Join(folder, "adapter_model.safetensors"), weights(t, content))
	return folder
}

func registry(t testing.TB) *Registry {
	t.Helper()
	data := t.TempDir()
	s := must(store.Open(filepath.Join(data, store.FileName)))(t)
	t.Cleanup(func() { ok(t, s.Close()) })
	return Open(s, data)
}

func add(t testing.TB, r *Registry, folder string) Policy {
	t.Helper()
	return must(r.Add(t.Context(), folder, "base", "", Origin{}))(t)
}

func names(t testing.TB, folder string) (all []string) {
	t.Helper()
	for _, e := range must(os.ReadDir(folder))(t) {
		all = append(all, e.Name())
	}
	return all
}

func TestAdd(t *testing.T) {
	r := registry(t)
	from := model(t, "one")
	for _, name := range []string{"model.bin", "custom.py", ".secret.json", "optimizer.pt"} {
		write(t, filepath.Join(from, name), "no weights")
	}
	write(t, filepath.Join(from, "runs", "config.json"), "{}")
	ok(t, os.Rename(filepath.Join(from, "model.safetensors"), filepath.Join(from, "blob")))
	ok(t, os.Symlink("blob", filepath.Join(from, "model.safetensors"))) // as in Hugging Face's cache
	p := must(r.Add(t.Context(), from, "smollm2", "", Origin{7, "agentic"}))(t)
	if p.Name() != "v1" || p.License != "apache-2.0" || p.Base != "smollm2" || p.Origin != (Origin{7, "agentic"}) || p.Bytes == 0 || p.CreatedMS == 0 {
		t.Errorf("%+v", p)
	}
	want := []string{"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
	if got := names(t, p.Folder); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if info := must(os.Lstat(filepath.Join(p.Folder, "model.safetensors")))(t); !info.Mode().IsRegular() || info.Mode().Perm() != 0o444 {
		t.Error(info.Mode())
	}
	if again := add(t, r, model(t, "one")); again.Version != 1 || again.Base != "smollm2" {
		t.Errorf("the same content: %+v", again)
	}
	if other := add(t, r, model(t, "two")); other.Version != 2 || other.Digest == p.Digest {
		t.Errorf("%+v", other)
	}
	if got := names(t, r.folder); !slices.Equal(got, []string{lockFile, "v1", "v2"}) {
		t.Errorf("%q", got)
	}
	ok(t, r.Check(t.Context(), p))
	to := filepath.Join(t.TempDir(), "out")
	ok(t, r.Export(t.Context(), p, to))
	if back := add(t, r, to); back.Version != 1 {
		t.Errorf("what was exported is another content: %+v", back)
	}
	refused := new(Error)
	if err := r.Export(t.Context(), p, to); !errors.As(err, &refused) {
		t.Errorf("written over: %v", err)
	}
}

// An adapter has its base with it, which several keep once.
func TestAdapters(t *testing.T) {
	r := registry(t)
	base := model(t, strings.Repeat("w", sharedBytes))
	one, two := add(t, r, adapterOf(t, base, "1")), add(t, r, adapterOf(t, base, "2"))
	if one.Version == two.Version || one.License != "apache-2.0" {
		t.Errorf("%+v, %+v", one, two)
	}
	inBase := func(p Policy) os.FileInfo {
		return must(os.Stat(filepath.Join(p.Folder, "base", "model.safetensors")))(t)
	}
	if !os.SameFile(inBase(one), inBase(two)) {
		t.Error("the base is kept twice")
	}
	// What was changed by hand is no source for another version.
	path := filepath.Join(one.Folder, "base", "model.safetensors")
	ok(t, os.Chmod(path, 0o644))
	write(t, path, weights(t, strings.Repeat("x", sharedBytes)))
	three := add(t, r, adapterOf(t, base, "3"))
	ok(t, r.Check(t.Context(), three))
	to := filepath.Join(t.TempDir(), "out")
	ok(t, r.Export(t.Context(), three, to))
	if again := add(t, r, to); again.Version != three.Version {
		t.Errorf("%+v", again)
	}
	ok(t, r.Remove(t.Context(), two))
	ok(t, r.Check(t.Context(), three))
}

func TestAddRefuses(t *testing.T) {
	r := registry(t)
	without := func(name string) string {
		folder := model(t, "x")
		ok(t, os.Remove(filepath.Join(folder, name)))
		return folder
	}
	cut, page := model(t, "x"), model(t, "x")
	path := filepath.Join(cut, "model.safetensors")
	whole := must(os.ReadFile(path))(t)
	write(t, path, string(whole[:len(whole)-1]))
	write(t, filepath.Join(page, "model.safetensors"), "version https://git-lfs.github.com/spec/v1\noid sha256:ab\n")
	tokenless := without("tokenizer.json")
	ok(t, os.Remove(filepath.Join(tokenless, "tokenizer_config.json")))
	baseless := adapterOf(t, "", "x")
	for _, c := range []struct{ folder, want string }{
		{filepath.Join(t.TempDir(), "none"), "is not there"},
		{filepath.Join(cut, "config.json"), "it is a file"},
		{without("config.json"), "it has no config.json"},
		{without("model.safetensors"), "no weights in safetensors"},
		{tokenless, "it has no tokenizer"},
		{cut, "model.safetensors is cut short"},
		{page, "no file of safetensors"},
		{baseless, "names no base model"},
		{adapterOf(t, "/none/at/all", "x"), "the base model /none/at/all of the adapter in "},
		{adapterOf(t, adapterOf(t, model(t, "x"), "y"), "x"), "an adapter of an adapter"},
		{adapterOf(t, without("config.json"), "x"), "it has no config.json"},
	} {
		_, err := r.Add(t.Context(), c.folder, "", "", Origin{})
		refused := new(Error)
		if !errors.As(err, &refused) || !strings.Contains(refused.Text, c.want) || refused.Hint == "" {
			t.Errorf("%s: %v, want %q", c.folder, err, c.want)
		}
	}
	if all := must(r.List(t.Context()))(t); len(all) != 0 {
		t.Errorf("recorded: %+v", all)
	}
}

// What was changed by hand is never served, promoted, gone back to or handed out. Adding a
// copy mends it, and puts aside what it had become.
func TestFoldersThatWereChanged(t *testing.T) {
	for name, change := range map[string]func(folder string){
		"another content": func(folder string) {
			path := filepath.Join(folder, "config.json")
			ok(t, os.Chmod(path, 0o644))
			write(t, path, `{"architectures": ["GPT2LMHeadModel"]}`)
		},
		"was not in it":   func(folder string) { write(t, filepath.Join(folder, "model-2.safetensors"), "more") },
		"is not there":    func(folder string) { ok(t, os.Remove(filepath.Join(folder, "tokenizer.json"))) },
		"it is not there": func(folder string) { ok(t, os.RemoveAll(folder)) },
		"is no file any more": func(folder string) {
			ok(t, os.Remove(filepath.Join(folder, "tokenizer.json")))
			ok(t, os.Symlink("config.json", filepath.Join(folder, "tokenizer.json")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry(t)
			ctx := t.Context()
			one, two := add(t, r, model(t, "one")), add(t, r, model(t, "two"))
			ok(t, r.Promote(ctx, one, 0, "why"))
			ok(t, r.Promote(ctx, two, 0, "why"))
			change(one.Folder)
			_, rolled := r.Rollback(ctx, "why")
			for _, err := range []error{r.Check(ctx, one), r.Promote(ctx, one, 0, "why"), rolled, r.Export(ctx, one, filepath.Join(t.TempDir(), "out"))} {
				changed := new(ChangedError)
				if !errors.As(err, &changed) || !strings.Contains(changed.Error(), name) || changed.Hint() == "" {
					t.Errorf("%v, want %q", err, name)
				}
			}
			if now := must(r.Find(ctx, Current))(t); now.Version != two.Version {
				t.Errorf("%s serves", now.Name())
			}
			if again := add(t, r, model(t, "one")); again.Version != one.Version {
				t.Errorf("%+v", again)
			}
			ok(t, r.Check(ctx, one))
			put := slices.DeleteFunc(names(t, r.folder), func(n string) bool { return !strings.HasPrefix(n, aside) })
			if want := 1; name == "it is not there" && len(put) != 0 || name != "it is not there" && len(put) != want {
				t.Errorf("put aside: %q", put)
			}
		})
	}
}

func TestFind(t *testing.T) {
	r := registry(t)
	ctx := t.Context()
	for name, want := range map[string]string{"current": "no policy serves", "v1": "there is no policy v1", "best": `"best" names no policy`, "v0": `"v0" names no policy`, "": `"" names no policy`} {
		_, err := r.Find(ctx, name)
		none := new(Error)
		if !errors.As(err, &none) || !none.Missing || none.Text != want || none.Hint == "" {
			t.Errorf("%q: %v", name, err)
		}
	}
	one, two := add(t, r, model(t, "one")), add(t, r, model(t, "two"))
	ok(t, r.Promote(ctx, two, 0, "why"))
	for name, want := range map[string]int64{"v1": 1, "2": 2, "policy:v1": 1, "current": 2, "policy:current": 2} {
		if p := must(r.Find(ctx, name))(t); p.Version != want || r.Check(ctx, p) != nil {
			t.Errorf("%q: %+v", name, p)
		}
	}
	ok(t, r.Remove(ctx, one))
	if _, err := r.Find(ctx, "v1"); err == nil || err.Error() != "policy v1 was removed" {
		t.Errorf("got %v", err)
	}
	if p := must(r.Lookup(ctx, "v1"))(t); p.RemovedMS == 0 || p.Digest != one.Digest {
		t.Errorf("%+v", p)
	}
	if _, err := os.Stat(one.Folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is there: %v", err)
	}
	if err := r.Remove(ctx, two); err == nil || !strings.Contains(err.Error(), "v2 serves") {
		t.Errorf("got %v", err)
	}
	if err := r.Promote(ctx, one, 0, "why"); err == nil {
		t.Error("a removed policy serves")
	}
	if back := add(t, r, model(t, "one")); back.Version != 1 || back.RemovedMS != 0 {
		t.Errorf("%+v", back)
	}
	child := must(r.Add(ctx, model(t, "three"), "v1", "", Origin{}))(t)
	if got := must(r.Lineage(ctx, child))(t); !slices.Equal(got, []string{"v3", "v1", "base"}) {
		t.Errorf("%q", got)
	}
}

// Rollbacks go back one after the other; the best is what a gate promoted, or a person who
// did not take it back.
func TestPromotions(t *testing.T) {
	type step struct {
		do   string // "v2" by hand, "v2!" by a gate, "-v2" removed, "<" back, "<!" nothing to go back to
		now  string // "": none
		best string
	}
	for _, steps := range [][]step{
		{{"<!", "", ""}, {"v1", "v1", "v1"}, {"<!", "v1", "v1"}},
		{{"v1", "v1", "v1"}, {"v2", "v2", "v2"}, {"v3", "v3", "v3"}, {"<", "v2", "v2"}, {"<", "v1", "v1"}, {"<!", "v1", "v1"}},
		{{"v1", "v1", "v1"}, {"v2!", "v2", "v2"}, {"<", "v1", "v2"}, {"v3", "v3", "v3"}, {"<", "v1", "v2"}, {"v2", "v2", "v2"}, {"<", "v1", "v2"}},
		{{"v1!", "v1", "v1"}, {"v2!", "v2", "v2"}, {"v1", "v1", "v1"}, {"<", "v2", "v2"}, {"<", "v1", "v2"}},
		{{"v1", "v1", "v1"}, {"v2!", "v2", "v2"}, {"v3", "v3", "v3"}, {"-v2", "v3", "v3"}, {"<", "v1", "v1"}},
		{{"v1", "v1", "v1"}, {"v1", "v1", "v1"}, {"<!", "v1", "v1"}}, // twice is once
	} {
		r := registry(t)
		ctx := t.Context()
		for _, content := range []string{"one", "two", "three"} {
			add(t, r, model(t, content))
		}
		gate := int64(0)
		for i, s := range steps {
			var err error
			switch name := strings.Trim(s.do, "-!"); {
			case strings.HasPrefix(s.do, "<"):
				_, err = r.Rollback(ctx, "why")
				if none := new(Error); s.do == "<!" && errors.As(err, &none) && none.Missing {
					err = nil
				} else if s.do == "<!" {
					t.Errorf("%v, step %d: went back: %v", steps, i, err)
				}
			case strings.HasPrefix(s.do, "-"):
				err = r.Remove(ctx, must(r.Find(ctx, name))(t))
			case strings.HasSuffix(s.do, "!"):
				gate++
				err = r.Promote(ctx, must(r.Find(ctx, name))(t), gate, "measured")
			default:
				err = r.Promote(ctx, must(r.Find(ctx, name))(t), 0, "wanted")
			}
			ok(t, err)
			now, _ := r.Find(ctx, Current)
			best, _ := r.Best(ctx)
			if called(now) != s.now || called(best) != s.best {
				t.Errorf("%v, step %d: %s serves and %s is best", steps, i, called(now), called(best))
			}
		}
	}
}

func called(p Policy) string {
	if p.Version == 0 {
		return ""
	}
	return p.Name()
}

// A pipeline that was killed asks again: its gate has promoted, whatever came since.
func TestAGatePromotesOnce(t *testing.T) {
	r := registry(t)
	ctx := t.Context()
	one, two := add(t, r, model(t, "one")), add(t, r, model(t, "two"))
	ok(t, r.Promote(ctx, one, 1, "first"))
	ok(t, r.Promote(ctx, two, 2, "better"))
	must(r.Rollback(ctx, "it is slower here"))(t)
	ok(t, r.Promote(ctx, two, 2, "better"))
	if now := must(r.Find(ctx, Current))(t); now.Version != one.Version {
		t.Errorf("%s serves", now.Name())
	}
	history := must(r.History(ctx))(t)
	if len(history) != 3 || history[1].Gate != 2 || history[1].Reason != "better" || !history[2].Rollback || history[2].Reason != "it is slower here" || history[2].CreatedMS == 0 {
		t.Errorf("%+v", history)
	}
}

// Several who add, promote and go back at once leave one truth.
func TestMany(t *testing.T) {
	r := registry(t)
	ctx := t.Context()
	folders := []string{model(t, "one"), model(t, "two"), model(t, "three")}
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			p, err := r.Add(ctx, folders[i%3], "", "", Origin{})
			if err == nil {
				err = r.Promote(ctx, p, 0, "why")
			}
			if err == nil && i%4 == 3 {
				_, err = r.Rollback(ctx, "why")
			}
			if none := new(Error); err != nil && !errors.As(err, &none) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if found := must(r.List(ctx))(t); len(found) != 3 {
		t.Errorf("%+v", found)
	}
	ok(t, r.Check(ctx, must(r.Find(ctx, Current))(t)))
	if got := names(t, r.folder); !slices.Equal(got, []string{lockFile, "v1", "v2", "v3"}) {
		t.Errorf("%q", got)
	}
}
