package cli

type trainCmd struct {
	Tasks trainTasksCmd `cmd:"" help:"Make and show the tasks that a policy is trained on."`
}
