package cli

import "testing"

// A round that a model wrote is shown with what the model was told and what it said.
func TestARoundIsShownWithItsPrompt(t *testing.T) {
	data := t.TempDir()
	seedForJSON(t, data)
	code, said := says(t, "history", "show", "1", "1", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "run 1, round 1  softmax  wrong\n", "goes on   from round 0\n", "why       so it is\n",
		"\nfeedback\n  Issue: i\n", "\nsource\n  class ModelNew: 1\n", "\nprompt\n-- coder, user\n  write\n", "recorded:a as coder")
	code, said = says(t, "history", "show", "1", "2", "--data-dir", data)
	wantSaid(t, code, said, ExitOK, "run 1, round 2  softmax  certified\n", "quick     2.00 ms, 2.00× [1.50, 2.50] against eager\n", "certify   certified, 2.00 ms\n")
}
