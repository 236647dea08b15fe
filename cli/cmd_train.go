package cli

type trainCmd struct {
	Run    trainRunCmd    `cmd:"" help:"Train a policy, from tasks to the gate."`
	Status trainStatusCmd `cmd:"" help:"Say how far training is, with its curves."`
	Ls     trainLsCmd     `cmd:"" help:"List the pipelines."`
	Show   trainShowCmd   `cmd:"" help:"Show the stages of a pipeline, or one stage."`
	Rm     trainRmCmd     `cmd:"" help:"Remove a pipeline with its checkpoints; sets of tasks and policies stay."`
	Data   trainDataCmd   `cmd:"" help:"Say what of people's runs may be trained on, and why the rest may not."`
	Nights trainNightsCmd `cmd:"" help:"List the nights in which the daemon trained by itself."`
	Serve  trainServeCmd  `cmd:"" help:"Let a trainer of yours play the Coder, over HTTP."`
	Tasks  trainTasksCmd  `cmd:"" help:"Make and show the tasks that a policy is trained on."`
}
