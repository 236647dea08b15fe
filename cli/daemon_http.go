package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/serving"
)

// maxClients is how many connections the HTTP API has at once, a listener's included.
const maxClients = 512

// maxEpisodes may be open in a daemon at once.
const maxEpisodes = 256

// served is the daemon's HTTP API while it is served.
type served struct {
	*api.API
	url    string
	server *http.Server
	ended  chan error
}

// serveAPI begins to serve where the settings say so; nil: nowhere.
func (r *room) serveAPI(a *app, o api.Options) (*served, error) {
	h := r.config.HTTP
	if h.Listen == "" {
		return nil, nil
	}
	o.Token, o.ReadToken = strings.TrimSpace(a.getenv(config.APITokenEnv)), strings.TrimSpace(a.getenv(config.APIReadTokenEnv))
	if err := checkHTTP(h, o); err != nil {
		return nil, err
	}
	var certificates *tls.Config
	if h.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(h.TLSCert, h.TLSKey)
		if err != nil {
			return nil, &Error{Code: ExitUsage, Text: "http.tls_cert and http.tls_key are no certificate and its key", Err: err, Hint: "name two files in PEM that belong together"}
		}
		certificates = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	l, err := net.Listen("tcp", h.Listen)
	if err != nil {
		return nil, &Error{Code: ExitUsage, Text: "cannot listen on " + h.Listen, Err: err, Hint: "name another address with --listen; port 0 is any free one"}
	}
	o.Store, o.Version, o.Log = r.store, kernelwright.Version, r.log
	o.Shown = func() func(kernelwright.Run) kernelwright.RunStatus {
		working := r.working()
		return func(run kernelwright.Run) kernelwright.RunStatus { return shownStatus(run, working) }
	}
	s := &served{API: api.New(o), ended: make(chan error, 1)}
	s.server = web.NewServer(r.withPages(o, s.API), r.log)
	clients := maxClients
	if o.Episodes != nil {
		clients += maxEpisodes + episodes.SpareConnections
	}
	limited, scheme := web.LimitConnections(l, clients), "http"
	if certificates != nil {
		limited, scheme = tls.NewListener(limited, certificates), "https"
	}
	go func() { s.ended <- s.server.Serve(limited) }()
	s.url = fmt.Sprintf("%s://%s", scheme, l.Addr())
	r.log.Info("serving the HTTP API", "url", s.url)
	if r.lock != nil {
		if err := r.lock.Serves(s.url); err != nil {
			return nil, errors.Join(dataError(r.folder, err), s.close())
		}
	}
	return s, nil
}

// checkHTTP says what is wrong with the address and the tokens.
func checkHTTP(h config.HTTP, o api.Options) error {
	host, _, err := net.SplitHostPort(h.Listen)
	outside := !web.Loopback(host)
	token := "make one with `openssl rand -hex 16`"
	switch {
	case err != nil:
		return usage(fmt.Sprintf("--listen is %q", h.Listen), "it takes HOST:PORT, such as 127.0.0.1:7791")
	case o.Token != "" && len(o.Token) < leastToken:
		return usage(fmt.Sprintf("the token in %s has less than %d characters", config.APITokenEnv, leastToken), token)
	case o.ReadToken != "" && len(o.ReadToken) < leastToken:
		return usage(fmt.Sprintf("the token in %s has less than %d characters", config.APIReadTokenEnv, leastToken), token)
	case o.ReadToken != "" && o.Token == "":
		return usage(fmt.Sprintf("there is a token in %s, and none in %s", config.APIReadTokenEnv, config.APITokenEnv), "set both, or the second alone")
	case outside && o.Token == "":
		return usage(fmt.Sprintf("%s can be reached from elsewhere, and there is no token", h.Listen), "put one into the environment variable "+config.APITokenEnv+", or listen on 127.0.0.1")
	case outside && h.TLSCert == "" && !h.Insecure:
		return usage(fmt.Sprintf("%s can be reached from elsewhere, and there is no TLS", h.Listen), "name the files http.tls_cert and http.tls_key, or set http.insecure = true where something else encrypts")
	}
	return nil
}

// episodes are those of `train serve`, where the settings say that the daemon has them, too;
// else there are none. The hardware is opened with the first one. End ends them.
func (r *room) episodes(a *app) (routes http.Handler, end func() error, err error) {
	if !r.config.HTTP.Episodes || r.config.HTTP.Listen == "" {
		return nil, func() error { return nil }, nil
	}
	t := &trained{room: r, open: map[episodes.Conditions]episodes.Hardware{}}
	o, err := t.options()
	if err != nil {
		return nil, nil, err
	}
	o.MaxOpen = maxEpisodes
	e, err := episodes.New(a.ctx, o)
	if err != nil {
		return nil, nil, dataError(r.folder, err)
	}
	return e.Routes(), func() error {
		e.Close()
		return t.close()
	}, nil
}

// close ends what is served; requests in progress have a moment.
func (s *served) close() error {
	if s == nil {
		return nil
	}
	s.Close() // the API: who listens would hold it up
	ctx, cancel := context.WithTimeout(context.Background(), trainingStop)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if err != nil { // somebody does not read their answer
		err = s.server.Close()
	}
	if last := <-s.ended; !errors.Is(last, http.ErrServerClosed) {
		err = errors.Join(err, last)
	}
	return err
}

// progress tells listeners of what goes on within a round. What is recorded they hear of
// in any case.
func (s *served) progress(e forge.Event) {
	if s != nil && e.Kind != forge.RoundDone && e.Kind != forge.Finished {
		s.Progress(api.Progress{Run: e.Run.ID, Round: e.Index, Step: string(e.Kind)})
	}
}

// step tells listeners of a step of training.
func (s *served) step(e pipeline.Event) {
	if s != nil && e.Part != "" {
		s.Step(api.Step{Pipeline: e.Stage.Pipeline, Stage: e.Stage.Stage, Part: e.Part, Step: e.Step, Steps: e.Steps, Metrics: e.Metrics, Note: e.Note})
	}
}

// turner changes which policy serves, as the verbs of policy do.
type turner struct {
	app  *app
	room *room
}

// Promote implements api.Policies.
func (p turner) Promote(ctx context.Context, version int64, reason string) error {
	found, err := p.room.policies.Find(ctx, fmt.Sprintf("v%d", version))
	if err == nil {
		quiet := *p.app
		quiet.ctx, quiet.stderr = ctx, io.Discard
		_, _, err = p.room.promote(&quiet, found, 0, reason)
	}
	return policyRefusal(err)
}

// Rollback implements api.Policies.
func (p turner) Rollback(ctx context.Context, reason string) error {
	_, err := p.room.policies.Rollback(ctx, reason)
	return policyRefusal(err)
}

// policyRefusal returns an error of policies as the API tells it.
func policyRefusal(err error) error {
	if none, ok := errors.AsType[*policies.Error](err); ok {
		return &store.StateError{Text: none.Error(), Hint: none.Hint}
	}
	if changed, ok := errors.AsType[*policies.ChangedError](err); ok {
		return &store.StateError{Text: changed.Error(), Hint: changed.Hint()}
	}
	if mute, ok := errors.AsType[*serving.MuteError](err); ok {
		return &store.StateError{Text: mute.Error(), Hint: "it does not serve: train or bring another one"}
	}
	return err
}
