package forge_test

import (
	"path/filepath"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/store"
)

// A finished run replays from the database file alone.
func TestReplaysFromTheDatabaseAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	settings := forge.Settings{Rounds: 5, JudgeMode: forge.JudgeBoth}
	w, _ := fullRun(t, settings)
	w.rounds = nil
	device := kw.Device{Kind: kw.CPUDevice, Key: "d"}
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SaveTask(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if err := s.SaveDevice(t.Context(), device); err != nil {
		t.Fatal(err)
	}
	run, err := s.CreateRun(t.Context(), kw.Run{Task: task.Fingerprint, DeviceKey: device.Key, Seed: 3, Settings: settings.String()})
	if err != nil {
		t.Fatal(err)
	}
	strategy := w.strategy(settings)
	strategy.Recorder, strategy.Device, strategy.Now = s, device, nil
	out, err := strategy.Run(t.Context(), run, task)
	if err != nil {
		t.Fatal(err)
	}
	run.Status, run.Stop, run.Reason = out.Status, out.Stop, out.Summary
	if err := s.UpdateRun(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	if s, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	again, err := s.Run(t.Context(), run.ID)
	if err != nil {
		t.Fatal(err)
	}
	rounds, err1 := s.Rounds(t.Context(), run.ID)
	pinned, err2 := s.RunTask(t.Context(), run.ID)
	on, err3 := s.RunDevice(t.Context(), run.ID)
	if err1 != nil || err2 != nil || err3 != nil || len(rounds) != 5 {
		t.Fatal(err1, err2, err3, len(rounds))
	}
	d, err := forge.Replay(t.Context(), rounds, pinned, again, forge.Parts{Device: on, Coder: coder{w}, Judge: fakeJudge{w}})
	if d != nil || err != nil {
		t.Errorf("%v %v", d, err)
	}
	if again.Best == nil || out.Best == nil || again.Best.Index != out.Best.Index || again.Best.Certificate == nil {
		t.Errorf("best %+v, outcome %+v", again.Best, out.Best)
	}
	for _, r := range rounds {
		t.Logf("round %d: the loop itself took %.1f ms", r.Index, r.OverheadMS)
	}
}
