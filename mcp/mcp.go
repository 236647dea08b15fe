// Package mcp lets an agent outside of this process be the Coder, over the Model
// Context Protocol: it writes candidates and decides what to try next, and the
// verdicts, the sandbox and the record are those of every other run.
//
// What an agent sends is foreign, and so is everything that references,
// compilers and candidates say: arguments are checked with a sentence, answers
// are bounded, and foreign texts in them are cleaned and marked as such.
package mcp

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

// Workshop is where candidates are evaluated and runs are recorded. Its methods may
// be called at the same time; those that measure wait for each other, and return
// the context's error soon after its end. A *kernelwright.InvalidTaskError says
// that a reference is no task, and any error besides that nothing was recorded.
type Workshop interface {
	// Read reads a reference file that the agent named, by its path from the
	// folder that may be read. The answer's path is what Job wants.
	Read(path string) (task.File, error)
	// Inspect makes a task of a job's reference.
	Inspect(ctx context.Context, j Job) (kernelwright.Task, kernelwright.Device, error)
	// MeasureBaselines measures what the job's candidates are held against.
	MeasureBaselines(ctx context.Context, j Job) (map[string]kernelwright.Measurement, error)
	// AddBaseline holds candidates for the task against another program, if it is
	// certified, which its verdict says. A name that is taken is a *TakenError.
	AddBaseline(ctx context.Context, j Job, name, source string) (kernelwright.Verdict, error)
	// Round evaluates a candidate as the next round of the client's open run on the
	// job's task, which begins with it where there is none.
	Round(ctx context.Context, j Job, c kernelwright.Candidate) (kernelwright.Round, error)
	// Certify has the candidate of a round of that run certified, or where index is
	// negative the fastest first until one is. Nil: none was.
	Certify(ctx context.Context, j Job, index int) (*kernelwright.Round, error)
	// Open returns that run as it stands; store.ErrNotFound says that there is none.
	Open(ctx context.Context, j Job) (report.Data, error)
	// Finish ends that run and writes its results.
	Finish(ctx context.Context, j Job) (Results, error)
}

// TakenError says that a baseline of this name is there already.
type TakenError struct{ Name string }

func (e *TakenError) Error() string { return "there is a baseline " + e.Name + " of this task already" }

// Job is what one call is about: the reference, and who asks.
type Job struct {
	Client   string // as records name it: see ClientName
	Name     string
	Source   string
	Path     string                   // of the reference's file; empty where it did not come from one
	Progress func(stage, note string) // told what goes on; may hold nobody up
}

// Results names the files of a run that has ended; empty where there is none.
type Results struct {
	Kernel      string `json:"kernel,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Older       string `json:"older,omitempty"` // what became of an older kernel of this name, where none was written
	Markdown    string `json:"markdown,omitempty"`
	HTML        string `json:"html,omitempty"`
	// Problem is why some could not be written. The record is whole.
	Problem string `json:"problem,omitempty"`
}

// Record is what was recorded, to be read: *store.Store.
type Record interface {
	Run(ctx context.Context, id int64) (kernelwright.Run, error)
	Runs(ctx context.Context, f store.RunFilter) ([]kernelwright.Run, error)
	Rounds(ctx context.Context, runID int64) ([]kernelwright.Round, error)
	Round(ctx context.Context, runID int64, index int) (kernelwright.Round, error)
	Task(ctx context.Context, fingerprint string) (kernelwright.Task, error)
	RunTask(ctx context.Context, runID int64) (kernelwright.Task, error)
	RunDevice(ctx context.Context, runID int64) (kernelwright.Device, error)
	Worked(ctx context.Context, f store.RunFilter) ([]store.Worked, error)
	Best(ctx context.Context, task, reference, deviceKey string) (kernelwright.Round, error)
	Search(ctx context.Context, query string, limit int) ([]store.Hit, error)
	Lessons(ctx context.Context, f store.LessonFilter) ([]kernelwright.Lesson, error)
	Baselines(ctx context.Context, task string, device kernelwright.DeviceKind) ([]store.Baseline, error)
}

// Judge reads verdicts: judge.Rules.
type Judge interface {
	Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error)
}

// Server answers one client.
type Server struct {
	workshop Workshop
	record   Record
	judge    Judge
	sdk      *sdk.Server
	life     context.Context // of Run
	mu       sync.Mutex
	last     *Job // what the client named last
}

// maxLine is the longest message: every byte of a source may come as six.
const maxLine = 64 << 20

const instructions = `kernelwright evaluates kernels. You write a candidate: one Python file that defines ModelNew with the signature of the reference's Model; the resource ` + guideURI + ` says how, in the native form that builds fastest.
Name a task once (path, task or reference); later calls go on with it. Call task to see what it is and what time is possible, then evaluate with a candidate: you get a verdict and one finding of rules over what the hardware measured. profile has the numbers behind it, lessons what was tried before, submit certifies the fastest and writes it out.
Wrong results, cheating (caching outputs, calling the reference, work outside of the clock) and PyTorch in disguise are found by referee processes; nothing that a candidate prints counts.`

// New makes a server.
func New(w Workshop, r Record, j Judge) *Server {
	s := &Server{workshop: w, record: r, judge: j, life: context.Background()}
	s.sdk = sdk.NewServer(
		&sdk.Implementation{Name: "kernelwright", Version: kernelwright.Version},
		&sdk.ServerOptions{Instructions: instructions, Logger: slog.New(slog.DiscardHandler), Capabilities: &sdk.ServerCapabilities{}},
	)
	s.sdk.AddReceivingMiddleware(s.bounded)
	for _, add := range []func(){s.addTask, s.addEvaluate, s.addProfile, s.addBaselines, s.addHistory, s.addLessons, s.addSubmit, s.addGuide} {
		add()
	}
	return s
}

// Run serves one client over a pair of streams, until it goes away, which is no
// error, or ctx ends. Calls under way are cancelled then, and Run returns when
// they have. It is called once. The streams are closed.
func (s *Server) Run(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	return s.run(ctx, &sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: maxLine})
}

func (s *Server) run(ctx context.Context, t sdk.Transport) error {
	s.life = ctx
	err := s.sdk.Run(ctx, t)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, gone := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, syscall.EPIPE} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// bounded ends every call with the server: by itself the SDK waits for them.
func (s *Server) bounded(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })()
		answer, err := next(ctx, method, req)
		if r, ok := answer.(*sdk.CallToolResult); ok && err == nil && r.IsError {
			explainSchema(r)
		}
		return answer, err
	}
}

// explainSchema bounds what the SDK says of arguments that a tool does not have,
// which quotes them.
func explainSchema(r *sdk.CallToolResult) {
	for _, part := range r.Content {
		if text, ok := part.(*sdk.TextContent); ok {
			if what, ok := strings.CutPrefix(text.Text, `validating "arguments": `); ok {
				text.Text = "the arguments are not those of the tool: " + clip(report.Line(what), maxForeign) + "\nhint: the list of tools has the arguments of each"
			}
		}
	}
}
