package llm

import "encoding/json"

// dialect is a protocol: how a request is written, and an answer read.
type dialect interface {
	// write turns the fields of langchaingo's request into those that are sent.
	write(fields map[string]json.RawMessage, c *call) error
	// reader returns what reads the answer.
	reader(c *call) reader
}

// reader gathers one answer.
type reader interface {
	// read adds one JSON value: all of the answer, or an event of a stream. done
	// says that nothing comes after it. The errors are *refusal, errTooLarge, or
	// say what cannot be read.
	read(data []byte, stream bool) (done bool, err error)
	// reason is why the answer ended, as the server says it; "" while it has not.
	reason() string
	// close returns the reply. There must be a reason.
	close() (Reply, error)
}

// refusal is an error that a server put into its answer.
type refusal struct {
	status int // as of HTTP, where it says or implies one
	body   []byte
}

func (r *refusal) Error() string { return "the server reports an error" }

// set writes a field; v is something of ours, which has a JSON form.
func set(fields map[string]json.RawMessage, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	fields[key] = b
	return nil
}

// setAll writes fields in turn and returns the first error.
func setAll(fields map[string]json.RawMessage, values map[string]any) error {
	for key, v := range values {
		if err := set(fields, key, v); err != nil {
			return err
		}
	}
	return nil
}
