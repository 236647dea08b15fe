package cli

type trainCmd struct {
	Data   trainDataCmd   `cmd:"" help:"Say what of people's runs may be trained on, and why the rest may not."`
	Nights trainNightsCmd `cmd:"" help:"List the nights in which the daemon trained by itself."`
	Serve  trainServeCmd  `cmd:"" help:"Let a trainer of yours play the Coder, over HTTP."`
	Tasks  trainTasksCmd  `cmd:"" help:"Make and show the tasks that a policy is trained on."`
}
