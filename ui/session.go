package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	sessionCookie = "kernelwright_session"
	sessionTime   = 12 * time.Hour
	maxSessions   = 1000
)

// session is somebody who has given a token.
type session struct {
	token   string
	write   bool
	expires time.Time
}

// sessions are kept in memory, by the digest of their secret: a restart ends them all.
type sessions struct {
	mu    *sync.Mutex
	all   map[[sha256.Size]byte]session
	tries *rate.Limiter // at tokens, of everybody together
}

func newSessions() sessions {
	return sessions{new(sync.Mutex), map[[sha256.Size]byte]session{}, rate.NewLimiter(rate.Every(2*time.Second), 20)}
}

// of returns the session that a request names.
func (s sessions) of(r *http.Request) (session, bool) {
	c, err := r.Cookie(sessionCookie)
	if err != nil {
		return session{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.all[sha256.Sum256([]byte(c.Value))]
	return found, ok && time.Now().Before(found.expires)
}

// begin makes a session and returns its secret. The one that ends first gives way where
// there are too many.
func (s sessions) begin(token string, write bool) string {
	secret := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest [sha256.Size]byte
	var first time.Time
	for key, one := range s.all {
		if time.Now().After(one.expires) {
			delete(s.all, key)
		} else if first.IsZero() || one.expires.Before(first) {
			oldest, first = key, one.expires
		}
	}
	if len(s.all) >= maxSessions {
		delete(s.all, oldest)
	}
	s.all[sha256.Sum256([]byte(secret))] = session{token, write, time.Now().Add(sessionTime)}
	return secret
}

func (s sessions) end(r *http.Request) {
	if c, err := r.Cookie(sessionCookie); err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, sha256.Sum256([]byte(c.Value)))
	}
}

// same compares in a time that says nothing of the token.
func same(given, token string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(token))
	return token != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

type loginBody struct{ Next, Said string }

// login has the page on which a token is given.
func (u *UI) login() {
	u.get("/login", "login", func(r *http.Request) (view, error) {
		if u.o.Token == "" {
			return view{}, missing("There is nothing to sign in to.", "This daemon has no token: whoever is on this machine may use it.")
		}
		return view{Title: "Sign in", Body: loginBody{Next: local(r.FormValue("next"))}}, nil
	})
	u.mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		token, next := strings.TrimSpace(r.PostFormValue("token")), local(r.PostFormValue("next"))
		if !u.sessions.tries.Allow() {
			w.Header().Set("Retry-After", retryAfter)
			u.write(w, r, "login", http.StatusTooManyRequests, view{Title: "Sign in", Body: loginBody{next, "Too many tokens were tried. Wait a moment."}})
			return
		}
		write := same(token, u.o.Token)
		if !write && !same(token, u.o.ReadToken) {
			u.write(w, r, "login", http.StatusUnauthorized, view{Title: "Sign in", Body: loginBody{next, "This is not the daemon's token."}})
			return
		}
		u.sessions.end(r)
		http.SetCookie(w, u.cookie(r, u.sessions.begin(token, write), int(sessionTime/time.Second)))
		http.Redirect(w, r, next, http.StatusSeeOther)
	})
	u.mux.HandleFunc("POST /logout", func(w http.ResponseWriter, r *http.Request) {
		u.sessions.end(r)
		http.SetCookie(w, u.cookie(r, "", -1))
		http.Redirect(w, r, "/login", http.StatusSeeOther)
	})
}

func (u *UI) cookie(r *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{Name: sessionCookie, Value: value, Path: "/", MaxAge: age, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode}
}

// local is a path of this server; "/" for what is none.
func local(next string) string {
	if !strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\r\n\t") {
		return "/"
	}
	return next
}
