package policies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
)

const (
	killedData   = "KERNELWRIGHT_TEST_KILLED_DATA"
	killedModels = "KERNELWRIGHT_TEST_KILLED_MODELS"
)

func TestMain(m *testing.M) {
	if data := os.Getenv(killedData); data != "" {
		fmt.Fprintln(os.Stderr, live(data, strings.Split(os.Getenv(killedModels), ":")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// live adds, promotes, goes back and removes until it is killed.
func live(data string, models []string) error {
	s, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		return err
	}
	r := Open(s, data)
	ctx := context.Background()
	for i := 0; ; i++ {
		fmt.Print(".")
		var err error
		switch i % 4 {
		case 0, 1:
			var p Policy
			if p, err = r.Add(ctx, models[rand.IntN(len(models))], "", "", Origin{}); err == nil {
				fmt.Print(".")
				err = r.Promote(ctx, p, 0, "why")
			}
		case 2:
			err = r.Remove(ctx, Policy{Version: int64(1 + rand.IntN(len(models)))})
		case 3:
			_, err = r.Rollback(ctx, "why")
		}
		if told := new(Error); err != nil && !errors.As(err, &told) {
			return err
		}
	}
}

// Killed at any moment: each version is there whole or not at all, one serves or none does,
// and whoever comes next goes on.
func TestKills(t *testing.T) {
	kills := 8
	if soak.Long() {
		kills = 300
	}
	data := t.TempDir()
	models := []string{model(t, strings.Repeat("one", 50_000)), model(t, strings.Repeat("two", 50_000)), model(t, "three")}
	rng := rand.New(rand.NewPCG(3, 5))
	served := 0
	for range kills {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), killedData+"="+data, killedModels+"="+strings.Join(models, ":"))
		var said strings.Builder
		c.Stderr = &said
		out := must(c.StdoutPipe())(t)
		ok(t, c.Start())
		must(io.ReadFull(out, make([]byte, 1+rng.IntN(12))))(t)
		time.Sleep(time.Duration(rng.IntN(20_000)) * time.Microsecond) // any moment will do
		ok(t, c.Process.Kill())
		_ = c.Wait() // as it was killed
		if said.Len() > 0 {
			t.Fatal(said.String())
		}
		e, err := store.Examine(t.Context(), filepath.Join(data, store.FileName), func(string) {})
		if err != nil || !e.Sound() {
			t.Fatalf("%+v, %v", e.Faults, err)
		}
		s := must(store.Open(filepath.Join(data, store.FileName)))(t)
		r := Open(s, data)
		for _, p := range must(r.List(t.Context()))(t) {
			if p.RemovedMS == 0 {
				ok(t, r.Check(t.Context(), p))
			}
		}
		if p, err := r.Find(t.Context(), Current); err == nil {
			served++
			ok(t, r.Check(t.Context(), p))
		} else if none := new(Error); !errors.As(err, &none) {
			t.Fatal(err)
		}
		ok(t, s.Close())
	}
	if served == 0 {
		t.Error("nothing ever served")
	}
	r := Open(must(store.Open(filepath.Join(data, store.FileName)))(t), data)
	defer r.store.Close()
	add(t, r, models[0])
	for _, name := range names(t, r.folder) {
		if strings.HasPrefix(name, unfinished) {
			t.Errorf("%s is left", name)
		}
	}
}
