package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/ui"
)

// measured stands for the version of the program.
const measured = "measured"

// taken is what one answer took: time by the clock, and of the processor.
type taken struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"`
}

// row is a line of the table.
type row struct {
	question
	warm, cold []taken
}

// measure asks everything, warm and cold, and prints the table.
func measure(ctx context.Context, db *store.Store, s settings) error {
	k, err := catalogue(ctx, db, s)
	if err != nil {
		return err
	}
	info, err := os.Stat(db.Path())
	if err != nil {
		return err
	}
	fmt.Printf("%d runs, a file of %.2f GB, %s\n\n", k.runs, float64(info.Size())/1e9, load())
	all := make([]row, 0, 128)
	for _, q := range k.questions() {
		if strings.Contains(q.name, s.only) {
			all = append(all, row{question: q})
		}
	}
	// All of it warm first: who asks cold drops the file from memory.
	if err := readThrough(db.Path()); err != nil {
		return err
	}
	pages, drop := handler(db)
	defer drop()
	profiled, err := profile(s.profile)
	if err != nil {
		return err
	}
	for i, r := range all {
		for range s.warm {
			t, err := answer(ctx, pages, r.path())
			if err != nil {
				return err
			}
			all[i].warm = append(all[i].warm, t)
		}
		fmt.Fprintf(os.Stderr, "%s, warm:%s\n", r.name, cells(all[i].warm))
	}
	if err := profiled(); err != nil {
		return err
	}
	peak := peakMemory()
	for i, r := range all {
		for range s.cold {
			t, err := askAnother(ctx, s, r.path())
			if err != nil {
				return err
			}
			all[i].cold = append(all[i].cold, t)
		}
		fmt.Fprintf(os.Stderr, "%s, cold:%s\n", r.name, cells(all[i].cold))
	}
	if s.only == "" {
		for _, q := range k.commands() {
			if s.bin == "" {
				break
			}
			r, err := commands(ctx, db, s, q)
			if err != nil {
				return err
			}
			all = append(all, r)
		}
		recorded, err := record(ctx, db, s, k)
		if err != nil {
			return err
		}
		all = append(all, row{question: question{name: "recording a round"}, warm: recorded})
	}
	fmt.Println("| asked | warm | p50 | p99 | processor p99 | cold | p50 | p99 | processor p99 |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, r := range all {
		fmt.Printf("| %s |%s%s\n", r.name, cells(r.warm), cells(r.cold))
	}
	fmt.Printf("\nSlowest: %s.\nMemory of the process that answered, at its peak: %s. %s.\n", slowest(all), peak, load())
	return nil
}

// profile begins to write a profile of the processor's time to a file; what it returns ends
// that. No name: nothing is written.
func profile(name string) (end func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// commands runs a command as often with the file in memory as without.
func commands(ctx context.Context, db *store.Store, s settings, q line) (row, error) {
	r := row{question: question{name: "`history " + q.name + "`, whole"}}
	fmt.Fprintln(os.Stderr, r.name)
	for _, into := range []*[]taken{&r.warm, &r.cold} {
		for range s.cold {
			if into == &r.cold {
				if err := forget(db.Path()); err != nil {
					return r, err
				}
			}
			t, err := command(ctx, s.bin, append([]string{"history", "--data-dir", s.dir}, q.args()...)...)
			if err != nil {
				return r, err
			}
			*into = append(*into, t)
		}
	}
	return r, nil
}

// readThrough has the system keep a file in memory.
func readThrough(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, f)
	return errors.Join(err, f.Close())
}

// handler is what a daemon serves of a store: its pages, and its API below them.
func handler(db *store.Store) (h http.Handler, drop func()) {
	serves := api.New(api.Options{Store: db, Version: measured})
	return ui.New(ui.Options{
		Store: db, Version: measured, API: serves,
		Run: func(ctx context.Context, id int64, talk bool) (report.Data, error) {
			if talk {
				return daemon.Load(ctx, db, id)
			}
			return daemon.LoadQuiet(ctx, db, id)
		},
		Bench: func(ctx context.Context, id int64) (report.Bench, error) { return loadBench(ctx, db, id) },
	}), serves.Close
}

// loadBench gathers what the page of a bench shows.
func loadBench(ctx context.Context, db *store.Store, id int64) (b report.Bench, err error) {
	if b.Bench, err = db.Bench(ctx, id); err != nil {
		return b, err
	}
	members, err := db.Members(ctx, id)
	if err != nil {
		return b, err
	}
	for _, m := range members {
		d, err := daemon.Load(ctx, db, m.RunID)
		if err != nil {
			return b, err
		}
		b.Runs, b.Machine = append(b.Runs, report.ReduceRun(d, m, report.Spend{Spend: d.Spend})), d.Device
	}
	return b, nil
}

// answer asks for a path, and says what that took.
func answer(ctx context.Context, h http.Handler, path string) (taken, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+path, nil)
	got := httptest.NewRecorder()
	began, used := time.Now(), processor()
	h.ServeHTTP(got, r)
	t := taken{time.Since(began), processor() - used}
	if got.Code != http.StatusOK {
		return t, fmt.Errorf("%s: %d %.300s", path, got.Code, got.Body)
	}
	return t, nil
}

// askOnce answers a path in a process that has asked for nothing else, from a file that is
// not in memory.
func askOnce(ctx context.Context, database, path string) (err error) {
	db, err := store.OpenToRead(database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	pages, drop := handler(db)
	defer drop()
	if err := forget(database); err != nil {
		return err
	}
	t, err := answer(ctx, pages, path)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(t)
}

// askAnother has another process ask.
func askAnother(ctx context.Context, s settings, path string) (t taken, err error) {
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	c := exec.CommandContext(ctx, self, "-data-dir", s.dir, "-ask", path)
	c.Stderr = os.Stderr
	said, err := c.Output()
	if err != nil {
		return t, fmt.Errorf("%s, asked by another process: %w", path, err)
	}
	return t, json.Unmarshal(said, &t)
}

// command runs a whole process.
func command(ctx context.Context, name string, args ...string) (taken, error) {
	c := exec.CommandContext(ctx, name, args...)
	began := time.Now()
	if said, err := c.CombinedOutput(); err != nil {
		return taken{}, fmt.Errorf("%v: %w: %.300s", args, err, said)
	}
	return taken{time.Since(began), c.ProcessState.UserTime() + c.ProcessState.SystemTime()}, nil
}

// forget has the system drop a file from memory.
func forget(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}

// processor is the time that processors have worked for this process.
func processor() time.Duration {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // of oneself: cannot fail
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// peakMemory is the most memory that this process ever had.
func peakMemory() string {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return fmt.Sprintf("%.0f MB", float64(used.Maxrss)*1024/1e6) // getrusage(2): kilobytes
}

// load says what else the machine does.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load unknown"
	}
	return "load " + strings.Join(strings.Fields(string(text))[:3], " ")
}

func cells(all []taken) string {
	if len(all) == 0 {
		return " – | – | – | – |"
	}
	wall, used := column(all)
	return fmt.Sprintf(" %d | %s | %s | %s |", len(all), ms(quantile(wall, 0.5)), ms(quantile(wall, 0.99)), ms(quantile(used, 0.99)))
}

// column is the times of answers, sorted.
func column(all []taken) (wall, used []time.Duration) {
	for _, t := range all {
		wall, used = append(wall, t.Wall), append(used, t.CPU)
	}
	slices.Sort(wall)
	slices.Sort(used)
	return wall, used
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// slowest names what took longest, warm and cold.
func slowest(all []row) string {
	var said []string
	for _, of := range []struct {
		how string
		of  func(row) []taken
	}{{"warm", func(r row) []taken { return r.warm }}, {"cold", func(r row) []taken { return r.cold }}} {
		var most time.Duration
		name := ""
		for _, r := range all {
			if t := of.of(r); len(t) > 0 {
				if wall, _ := column(t); quantile(wall, 0.99) > most {
					most, name = quantile(wall, 0.99), r.name
				}
			}
		}
		said = append(said, fmt.Sprintf("%s %s (%s)", of.how, ms(most), name))
	}
	return strings.Join(said, ", ")
}

// record times the next rounds in so large a history: what a run pays.
func record(ctx context.Context, db *store.Store, s settings, k known) (all []taken, err error) {
	o, patterns, err := patterns()
	if err != nil {
		return nil, err
	}
	tasks, err := saveTasks(ctx, db, s, o)
	if err != nil {
		return nil, err
	}
	for id := k.runs + 1; len(all) < s.warm; id++ {
		d, err := draw(s, o, patterns, tasks, id)
		if err != nil {
			return nil, err
		}
		run, err := db.CreateRun(ctx, d.run)
		if err != nil {
			return nil, err
		}
		for _, r := range d.rounds {
			r.RunID, r.Certificate = run.ID, nil
			began, used := time.Now(), processor()
			if err := db.AppendRound(ctx, r); err != nil {
				return nil, err
			}
			all = append(all, taken{time.Since(began), processor() - used})
		}
	}
	return all, nil
}
