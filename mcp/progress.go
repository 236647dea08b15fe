package mcp

import (
	"context"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright/report"
)

// progress tells the client what goes on, if it asked for that. Who measures is
// never held up by a client that does not read: only the newest note waits for
// it. Stop ends it, before the answer goes out.
func progress(ctx context.Context, req *sdk.CallToolRequest) (tell func(stage, note string), stop func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(string, string) {}, func() {}
	}
	notes := make(chan string, 1)
	over := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for n := 1.0; ; n++ {
			select {
			case <-over:
				return
			case note := <-notes:
				// A client that cannot be told has gone, or does so.
				_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: note})
			}
		}
	})
	var mu sync.Mutex
	tell = func(stage, note string) {
		text := report.Line(stage)
		if note != "" {
			text += ": " + report.Line(note)
		}
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-notes:
		default:
		}
		notes <- clip(text, maxForeign/4)
	}
	return tell, func() { close(over); done.Wait() }
}
