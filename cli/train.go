package cli

type trainCmd struct {
	Serve trainServeCmd `cmd:"" help:"Let a trainer of yours play the Coder, over HTTP."`
}
