package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// pytorchMost is the share that PyTorch's operators may keep before moving
// them into the kernel is what pays most.
const pytorchMost = 0.15

// pytorchShare is for work that is still left to PyTorch's operators.
func pytorchShare(v view) (finding, bool) {
	share, ok := v.metric(metrics.PyTorchShare)
	if !ok || share < pytorchMost {
		return finding{}, false
	}
	var top kernelwright.OperatorShare
	for _, o := range v.verdict.Work.Operators {
		if o.Kind == "pytorch" && o.Share > top.Share {
			top = o
		}
	}
	which := ""
	if top.Name != "" {
		which = fmt.Sprintf(", most of it into %s (%s)", oneLine(top.Name), percent(top.Share))
	}
	return finding{
		bottleneck: fmt.Sprintf("PyTorch's own operators take %s of the time%s, and each writes its result to memory for the next to read.", percent(share), which),
		method:     "Fuse them into the custom kernel",
		plan:       "Compute them in the loop that produces or consumes their operand, so that the intermediate tensors are never written.",
		evidence:   v.evidence(metrics.PyTorchShare, metrics.CustomShare, metrics.VendorShare),
		gain:       share,
		moves:      []move{{"fuse", toMost}},
	}, true
}
