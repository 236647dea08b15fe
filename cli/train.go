package cli

type trainCmd struct {
	Serve trainServeCmd `cmd:"" help:"Let a trainer of yours play the Coder, over HTTP."`
	Tasks trainTasksCmd `cmd:"" help:"Make and show the tasks that a policy is trained on."`
}
