package cli

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kernelwright/kernelwright/store"
)

// seedTasks records a set of tasks with one of each of three splits.
func seedTasks(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	s, err := store.Open(filepath.Join(ts.MkAbs(args[0]), store.FileName))
	ts.Check(err)
	defer func() { ts.Check(s.Close()) }()
	set, err := s.BeginTaskSet(ctx, "small", []byte("{}"))
	ts.Check(err)
	for i, split := range []store.Split{store.TrainSplit, store.ValSplit, store.KindsSplit} {
		mark := "print-" + string(split)
		ts.Check(s.SaveTaskDraw(ctx, set.ID, store.TaskDraw{
			Index: int64(i), Split: split, Fingerprint: mark, Source: "class Model: # " + string(split) + "\n",
			Detail: fmt.Appendf(nil, `{"level": 2, "split": %q, "fingerprint": %q}`, split, mark),
		}))
	}
}
