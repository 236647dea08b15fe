package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
)

// KeptEvents is how many events are kept, the last ones.
const KeptEvents = 50_000

// Event is something that was recorded, as listeners are told of it. It is written in
// the transaction of what it tells of, so the order of numbers is that of the record.
type Event struct {
	ID     int64
	AtMS   int64
	Kind   string
	Run    int64           // 0: of none
	Detail json.RawMessage // an object
}

// The kinds of events.
const (
	EventRun         = "run"
	EventRound       = "round"
	EventCertificate = "certificate"
	EventQueue       = "queue"
	EventStage       = "stage"
	EventPromotion   = "promotion"
	EventNight       = "night"
)

// Events returns at most limit events after one, in order: of a run where that is not 0,
// and of some kinds where any is given.
func (s *Store) Events(ctx context.Context, after, run int64, kinds []string, limit int) ([]Event, error) {
	query, args := `SELECT id, at, kind, coalesce(run, 0), detail FROM events WHERE id > ?`, []any{after}
	if run != 0 {
		query, args = query+` AND run = ?`, append(args, run)
	}
	if len(kinds) > 0 {
		query += ` AND kind IN (?` + strings.Repeat(", ?", len(kinds)-1) + `)`
		for _, kind := range kinds {
			args = append(args, kind)
		}
	}
	rows, err := s.read.QueryContext(ctx, query+` ORDER BY id LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (e Event, err error) {
		var detail string
		err = r.Scan(&e.ID, &e.AtMS, &e.Kind, &e.Run, &detail)
		e.Detail = json.RawMessage(strings.ToValidUTF8(detail, "\uFFFD"))
		return e, err
	})
}

// EventBounds returns the numbers of the oldest event that is kept and of the newest; 0
// and 0 where there is none.
func (s *Store) EventBounds(ctx context.Context) (oldest, newest int64, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT coalesce((SELECT min(id) FROM events), 0), coalesce((SELECT max(id) FROM events), 0)`).Scan(&oldest, &newest)
	return oldest, newest, err
}

// eventTriggers have a connection record events. They are the connection's, as those of
// digests are.
func eventTriggers(ctx context.Context, db *sql.DB) (string, error) {
	var there bool // not in a file of an earlier version, which Salvage makes
	if err := db.QueryRowContext(ctx, `SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'events'`).Scan(&there); err != nil || !there {
		return "", err
	}
	var all strings.Builder
	for i, t := range eventSources {
		const insert = `INSERT INTO events (at, kind, run, detail) SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER), `
		fmt.Fprintf(&all, "CREATE TEMP TRIGGER event_%d AFTER %s BEGIN %s'%s', %s; END;\n", i, t.after, insert, t.kind, t.values)
	}
	fmt.Fprintf(&all, "CREATE TEMP TRIGGER event_dropped AFTER INSERT ON main.events BEGIN DELETE FROM events WHERE id <= NEW.id - %d; END;\n", KeptEvents)
	return all.String(), nil
}

// What events say. Foreign texts in them are short.
const (
	runDetail = `NEW.id, json_object('run', NEW.id, 'task', nullif(NEW.task, ''), 'task_name', nullif(NEW.task_name, ''), 'path', nullif(NEW.path, ''), 'device', nullif(NEW.device, ''),
		'status', NEW.status, 'stop', nullif(NEW.stop, ''), 'reason', nullif(substr(NEW.reason, 1, 500), ''), 'rounds', (SELECT count(*) FROM rounds WHERE run = NEW.id), 'best', NEW.best)`
	verdictDetail = `'status', v.status, 'reason', nullif(substr(v.reason, 1, 500), ''), 'candidate_ms', nullif(v.candidate_ms, 0),
		'speedup', json(CASE WHEN v.speedup IS NOT NULL THEN json_object('value', v.speedup, 'low', v.speedup_low, 'high', v.speedup_high, 'against', v.against) END)`
	roundDetail = `NEW.run, json_object('run', NEW.run, 'round', NEW.idx, 'task_name', nullif((SELECT task_name FROM runs WHERE id = NEW.run), ''), 'language', nullif(NEW.language, ''), ` + verdictDetail + `,
		'best', json(CASE WHEN NEW.standing > 0 AND NOT EXISTS (SELECT 1 FROM rounds o WHERE o.run = NEW.run AND o.idx <> NEW.idx
			AND (o.standing, -o.ms) >= (NEW.standing, -NEW.ms)) THEN 'true' ELSE 'false' END)) FROM verdicts v WHERE v.id = NEW.verdict`
	certificateDetail = `NEW.run, json_object('run', NEW.run, 'round', NEW.idx, ` + verdictDetail + `, 'exported_sha256', nullif(NEW.sha256, '')) FROM verdicts v WHERE v.id = NEW.verdict`
	queueDetail       = `NEW.run, json_object('run', NEW.run, 'state', NEW.state, 'hold', (SELECT wanted FROM holds WHERE run = NEW.run), 'priority', NEW.priority, 'attempts', NEW.attempts)`
	goneDetail        = `OLD.run, json_object('run', OLD.run, 'state', 'gone', 'hold', NULL, 'priority', OLD.priority, 'attempts', OLD.attempts)`
	heldDetail        = `run, json_object('run', run, 'state', state, 'hold', %s, 'priority', priority, 'attempts', attempts) FROM queue WHERE run = %s`
	stageDetail       = `NULL, json_object('pipeline', NEW.pipeline, 'stage', NEW.stage, 'attempt', NEW.attempt, 'status', NEW.status, 'seconds', NEW.seconds, 'verdicts', NEW.verdicts, 'reason', nullif(substr(NEW.reason, 1, 500), ''))`
	promotionDetail   = `NULL, json_object('policy', NEW.policy, 'rollback', json(CASE WHEN NEW.rollback THEN 'true' ELSE 'false' END), 'gate', nullif(NEW.gate, 0), 'reason', nullif(substr(NEW.reason, 1, 500), ''))`
	nightDetail       = `NULL, json_object('night', NEW.id, 'pipeline', NEW.pipeline, 'state', CASE NEW.ended WHEN 0 THEN 'running' ELSE 'ended' END, 'stop', nullif(NEW.stop, ''), 'decision', nullif(NEW.decision, ''))`
)

// eventSources is what there are events of: the kind, the change, and the run and the
// detail.
var eventSources = []struct{ kind, after, values string }{
	{EventRun, `INSERT ON main.runs`, runDetail},
	{EventRun, `UPDATE OF status ON main.runs WHEN NEW.status <> OLD.status`, runDetail},
	{EventRound, `INSERT ON main.rounds`, roundDetail},
	{EventCertificate, `INSERT ON main.certificates`, certificateDetail},
	{EventQueue, `INSERT ON main.queue`, queueDetail},
	{EventQueue, `UPDATE OF run, state, priority ON main.queue WHEN (NEW.run, NEW.state, NEW.priority) <> (OLD.run, OLD.state, OLD.priority)`, queueDetail},
	{EventQueue, `DELETE ON main.queue`, goneDetail},
	{EventQueue, `INSERT ON main.holds WHEN NEW.run <> 0`, fmt.Sprintf(heldDetail, "NEW.wanted", "NEW.run")},
	{EventQueue, `UPDATE OF wanted ON main.holds WHEN NEW.run <> 0 AND NEW.wanted <> OLD.wanted`, fmt.Sprintf(heldDetail, "NEW.wanted", "NEW.run")},
	{EventQueue, `DELETE ON main.holds WHEN OLD.run <> 0`, fmt.Sprintf(heldDetail, "NULL", "OLD.run")},
	{EventQueue, `INSERT ON main.holds WHEN NEW.run = 0`, `NULL, json_object('paused', json('true'))`},
	{EventQueue, `DELETE ON main.holds WHEN OLD.run = 0`, `NULL, json_object('paused', json('false'))`},
	{EventStage, `INSERT ON main.stages`, stageDetail},
	{EventStage, `UPDATE OF status ON main.stages WHEN NEW.status <> OLD.status`, stageDetail},
	{EventPromotion, `INSERT ON main.promotions`, promotionDetail},
	{EventNight, `INSERT ON main.nights`, nightDetail},
	{EventNight, `UPDATE OF ended ON main.nights WHEN NEW.ended <> OLD.ended`, nightDetail},
}
