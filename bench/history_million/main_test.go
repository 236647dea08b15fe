package main

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/store"
)

// What is written in bulk is what the store would have written: it is sound,
// is read back as it was drawn, and may be continued.
func TestBulkIsHonest(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := settings{tasks: 5, perRun: 10, seed: 1}
	for _, s.rounds = range []int{50, 120} {
		db, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(t.Context(), db, s); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e, err := store.Examine(t.Context(), path, func(string) {})
	if err != nil || !e.Sound() || e.Rows["rounds"] != 120 {
		t.Fatalf("%+v, %v", e, err)
	}
	db, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	o, all, err := patterns()
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := saveTasks(t.Context(), db, s, o)
	if err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= 12; id++ {
		d, err := draw(s, o, all, tasks, id)
		if err != nil {
			t.Fatal(err)
		}
		got, err := db.Rounds(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if (got[i].Certificate != nil) != (got[i].CertifiedMS > 0) {
				t.Errorf("run %d, round %d: a certificate has its time, and no other round", id, i)
			}
			got[i].CertifiedMS = 0 // by the clock, when it was recorded
		}
		want, err1 := json.Marshal(d.rounds)
		have, err2 := json.Marshal(got)
		if err1 != nil || err2 != nil || string(want) != string(have) {
			t.Errorf("run %d is not as it was drawn", id)
		}
		for i := range d.rounds { // recording the same again does nothing: the digests agree
			if err := db.AppendRound(t.Context(), d.rounds[i]); err != nil {
				t.Error(err)
			}
		}
	}
}

// Every route that reads is asked, and every page: a new one is not left out.
func TestEveryRouteAndPageIsAsked(t *testing.T) {
	db, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	pages, drop := handler(db)
	defer drop()
	got := httptest.NewRecorder()
	pages.ServeHTTP(got, httptest.NewRequest("GET", "http://127.0.0.1/openapi.json", nil))
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(got.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, q := range (known{}).questions() {
		name, _, _ := strings.Cut(q.name, ",")
		name, _, _ = strings.Cut(name, "?")
		asked = append(asked, strings.TrimPrefix(strings.TrimPrefix(name, "page "), "download "))
	}
	routes := 0
	for path, methods := range document.Paths {
		if _, reads := methods["get"]; !reads || slices.Contains([]string{"/api/v1/events", "/readyz"}, path) { // the first does not end, the second asks the daemon
			continue
		}
		routes++
		if !slices.Contains(asked, strings.TrimPrefix(path, "/api/v1")) {
			t.Errorf("%s is not asked", path)
		}
	}
	mounted := regexp.MustCompile(`u\.(?:get|download)\("([^"]+)"`)
	sources, err := filepath.Glob("../../ui/*.go")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mounted.FindAllStringSubmatch(string(text), -1) {
			shown++
			if page := strings.ReplaceAll(m[1], "{$}", ""); page != "/login" && !slices.Contains(asked, page) { // it has nothing of the record
				t.Errorf("page %s is not asked", page)
			}
		}
	}
	if routes < 25 || shown < 25 {
		t.Errorf("%d routes and %d pages were found", routes, shown)
	}
}
