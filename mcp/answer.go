package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// Bounds of what an answer says: a model reads all of it, and pays for it.
const (
	maxAnswer  = 16 << 10  // characters of a text, and
	maxSource  = 128 << 10 // of a source that was asked for
	maxForeign = 2 << 10   // of what a compiler or a candidate says
	maxList    = 12        // of lines of a kind
)

// tool is what all tools have in common: their errors become sentences that a
// model can act on.
func tool[In, Out any](s *Server, t *sdk.Tool, answer func(ctx context.Context, req *sdk.CallToolRequest, in In) (string, Out, error)) {
	closed := false
	if t.Annotations == nil {
		t.Annotations = &sdk.ToolAnnotations{}
	}
	t.Annotations.OpenWorldHint, t.Annotations.DestructiveHint = &closed, &closed
	sdk.AddTool(s.sdk, t, func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		text, out, err := answer(ctx, req, in)
		if err != nil {
			return nil, out, errors.New(failure(ctx, err))
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, out, nil
	})
}

// failure says an error with what to do about it.
func failure(ctx context.Context, err error) string {
	var argument *argumentError
	var invalid *kernelwright.InvalidTaskError
	var infra *kernelwright.InfrastructureError
	var hinted interface{ Advice() string }
	text, hint := report.Line(err.Error()), ""
	if errors.As(err, &hinted) {
		hint = report.Line(hinted.Advice())
	}
	switch {
	case ctx.Err() != nil:
		text, hint = "the call was cancelled", "nothing of it was recorded; it can be made again"
	case errors.As(err, &argument):
		hint = argument.hint
	case errors.As(err, &invalid):
		text, hint = "the reference is invalid: "+report.Line(invalid.Reason), report.Line(invalid.Hint)
	case errors.As(err, &infra):
		text = "the machinery failed, which says nothing about the candidate: " + text
	}
	text = clip(text, maxForeign)
	if hint != "" {
		text += "\nhint: " + clip(hint, maxForeign)
	}
	return text
}

// clip cuts a text that is too long, and says so.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := strings.ToValidUTF8(s[:most], "")
	return fmt.Sprintf("%s\n… (%d more bytes are left out)", cut, len(s)-len(cut))
}

// foreign marks a text that a compiler, a reference or a candidate wrote: each
// line of it, so that it cannot end what it stands in.
func foreign(s string, most int) string {
	s = strings.TrimRight(clip(report.Clean(s), most), "\n")
	return "  | " + strings.ReplaceAll(s, "\n", "\n  | ") + "\n"
}

// words says a status.
func words(s kernelwright.Status) string { return strings.ReplaceAll(string(s), "_", " ") }
