package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
)

const guideURI = "kernelwright://candidate.md"

// addGuide offers docs/candidate.md, so that an agent learns the native form.
func (s *Server) addGuide() {
	s.sdk.AddResource(&sdk.Resource{
		URI: guideURI, Name: "candidate.md", Title: "How a candidate is written", MIMEType: "text/markdown",
		Description: "The forms that a candidate may have, and the native one with examples for the CPU and for CUDA.",
	}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: guideURI, MIMEType: "text/markdown", Text: kernelwright.CandidateGuide}}}, nil
	})
}
