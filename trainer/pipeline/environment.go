package pipeline

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/trainer/episodes"
)

// tokenEnv is the variable that programs have the episode API's token in.
const tokenEnv = "KERNELWRIGHT_EPISODES_TOKEN"

// closing is how long requests in progress have when the episode API is closed.
const closing = 5 * time.Second

// environment is the episode API of this process, for the programs that it starts.
type environment struct {
	url, token string
	episodes   *episodes.Episodes
	server     *http.Server
	served     chan error
}

// serve begins to serve episodes on a loopback address, to who knows a token that is
// drawn here.
func serve(ctx context.Context, o episodes.Options) (*environment, error) {
	secret := make([]byte, 24)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	// What is under way when ctx ends is finished: a program that is asked to stop needs it.
	e, err := episodes.New(context.WithoutCancel(ctx), o)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.Close()
		return nil, err
	}
	env := &environment{url: "http://" + l.Addr().String(), token: hex.EncodeToString(secret), episodes: e, served: make(chan error, 1)}
	env.server = web.NewServer(e.Handler(env.token), o.Log)
	go func() { env.served <- env.server.Serve(web.LimitConnections(l, o.MaxOpen+episodes.SpareConnections)) }()
	return env, nil
}

// close ends it and waits for that.
func (e *environment) close() error {
	e.episodes.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	err := e.server.Shutdown(ctx)
	if err != nil { // somebody does not read their answer
		err = e.server.Close()
	}
	if last := <-e.served; !errors.Is(last, http.ErrServerClosed) {
		err = errors.Join(err, last)
	}
	return err
}

// settings are those of a program that plays episodes, as r has them. name is that of
// its policy.
func (e *environment) settings(name string, r episodes.Request, parallel int) (map[string]any, error) {
	r.Session, r.Policy = name, name
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var request map[string]any
	if err := json.Unmarshal(text, &request); err != nil {
		return nil, err
	}
	delete(request, "reference") // each task has its own
	return map[string]any{"url": e.url, "token_env": tokenEnv, "request": request, "parallel": parallel}, nil
}

// env is what a program needs to reach it.
func (e *environment) env() []string { return []string{tokenEnv + "=" + e.token} }
