package api

import (
	"context"
	"strings"

	"github.com/kernelwright/kernelwright"
)

type hash struct {
	SHA256 string `path:"sha256" pattern:"^[0-9a-fA-F]{64}$" doc:"Hex SHA-256."`
}

// tasks has the routes of tasks.
func (a *API) tasks() {
	get(a, "/api/v1/tasks", "List tasks as they were last recorded, by fingerprint.", func(ctx context.Context, in *struct {
		Paged
		Name string `query:"name" maxLength:"1000" doc:"Of this name."`
	}) (*answer[list[kernelwright.Task]], error) {
		var after string
		if err := in.from(&after); err != nil {
			return nil, err
		}
		found, err := a.o.Store.Tasks(ctx, in.Name, after, in.Limit+1)
		return page(in.Paged, found, func(t kernelwright.Task) string { return t.Fingerprint }, err)
	})
	get(a, "/api/v1/tasks/{fingerprint}", "A task as it was last recorded.", func(ctx context.Context, in *struct {
		Fingerprint string `path:"fingerprint" maxLength:"200"`
	}) (*answer[kernelwright.Task], error) {
		return say(a.o.Store.Task(ctx, in.Fingerprint))
	})
}

// texts has the route of texts by their hashes: sources, and all else that is kept whole.
func (a *API) texts() {
	get(a, "/api/v1/texts/{sha256}", "A recorded text, whole.", func(ctx context.Context, in *hash) (*answer[textObject], error) {
		found, err := a.o.Store.Text(ctx, strings.ToLower(in.SHA256))
		return say(textObject{strings.ToLower(in.SHA256), len(found), found}, err)
	})
}

type textObject struct {
	SHA256 string `json:"sha256"`
	Size   int    `json:"size" doc:"In bytes of UTF-8."`
	Text   string `json:"text" keep:"empty" doc:"It may be foreign: a candidate's, or a model's."`
}
