package api

import (
	"context"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// lessons has the route of lessons.
func (a *API) lessons() {
	get(a, "/api/v1/lessons", "List what changes brought, the newest first; those of given operators on one page alone.", func(ctx context.Context, in *struct {
		Paged
		DeviceKey  string   `query:"device_key" maxLength:"1000" doc:"Key of the device."`
		Bottleneck string   `query:"bottleneck" maxLength:"200" doc:"The rule that advised the change, or a word of the bottleneck."`
		Operators  []string `query:"operators" maxItems:"32" doc:"Only of tasks that have all of these, such as aten.softmax; separated by commas."`
	}) (*answer[list[kernelwright.Lesson]], error) {
		f := store.LessonFilter{Bottleneck: in.Bottleneck, Limit: in.Limit + 1}
		for _, o := range in.Operators {
			if o = strings.TrimSpace(o); o != "" && !strings.Contains(o, ".") {
				o = "aten." + o
			}
			f.Holding = append(f.Holding, o)
		}
		var before place
		if err := in.from(&before); err != nil {
			return nil, err
		}
		if f.BeforeRun, f.BeforeRound = before.Run, before.Round; len(f.Holding) > 0 {
			if before.Run != 0 {
				return nil, bad("query.cursor: with operators there is one page alone", "leave the cursor out")
			}
			f.Limit = in.Limit
		}
		if in.DeviceKey != "" {
			f.Devices = []string{in.DeviceKey}
		}
		found, err := a.o.Store.Lessons(ctx, f)
		return page(in.Paged, found, func(l kernelwright.Lesson) place { return place{l.Run, l.Round} }, err)
	})
}
