package forge

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// replyRule is the rule of the correction that the loop itself gives.
const replyRule = "reply"

// maxAnswerBytes is how much of an answer without a candidate is recorded in
// the candidate's place: enough to see what it was.
const maxAnswerBytes = 64 << 10

// unusableCandidate stands for the candidate that an answer does not hold.
func unusableCandidate(u *kernelwright.UnusableError, language kernelwright.Language) kernelwright.Candidate {
	return kernelwright.Candidate{Source: bounded(u.Answer, maxAnswerBytes), Language: language, Origin: u.Origin}
}

func unusableVerdict(u *kernelwright.UnusableError, c kernelwright.Candidate, task kernelwright.Task, device kernelwright.Device) kernelwright.Verdict {
	return kernelwright.Verdict{
		Status: kernelwright.Rejected, Reason: u.Reason, Hint: u.Hint, Level: kernelwright.Quick,
		Build: kernelwright.BuildReport{Form: kernelwright.FormAnswer},
		Task:  task.Fingerprint, Candidate: kernelwright.HashText(c.Source), Language: c.Language, Device: device.String(), DeviceKey: device.Key,
	}
}

// unusableOf returns what is wrong with a round's answer, nil where it holds a candidate.
func unusableOf(r kernelwright.Round) *kernelwright.UnusableError {
	if r.Verdict.Build.Form != kernelwright.FormAnswer {
		return nil
	}
	return &kernelwright.UnusableError{Answer: r.Candidate.Source, Reason: r.Verdict.Reason, Hint: r.Verdict.Hint, Origin: r.Candidate.Origin}
}

// replyCorrection says what to send instead. Nothing was measured, so there is
// nothing that a Judge could add.
func replyCorrection(u *kernelwright.UnusableError) kernelwright.Feedback {
	return kernelwright.Feedback{
		Kind: kernelwright.Correction, Rule: replyRule,
		Issue: cmp.Or(strings.TrimSpace(u.Reason), "the answer holds no candidate"),
		Why:   "no candidate could be taken from the answer, so nothing was built or measured",
		Fix:   cmp.Or(strings.TrimSpace(u.Hint), "answer with one complete file that defines ModelNew"),
	}
}

// bounded returns foreign text as valid UTF-8 of at most so many bytes.
func bounded(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
