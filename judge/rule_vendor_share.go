package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// vendorMost is the share of the vendor library from which it is what the time
// goes into.
const vendorMost = 0.5

// vendorShare is for a forward on a GPU most of which is the vendor's matrix
// products and convolutions: what is left to gain is around them.
func vendorShare(v view) (finding, bool) {
	share, ok := v.metric(metrics.VendorShare)
	if !ok || share < vendorMost || share > 1-vendorRest {
		return finding{}, false
	}
	return finding{
		bottleneck: fmt.Sprintf("The vendor library takes %s of the time; what comes before and after its calls takes the rest.", percent(share)),
		method:     "Make one kernel of all between two calls of the library",
		plan: "Leave the matrix products and convolutions to the library, do everything from one of its calls to the next in one kernel that reads its output once, and hand it tensors that it need not copy; " +
			"where bias or an activation follows at once, its own epilogue (torch.addmm) takes that along.",
		evidence: v.evidence(metrics.VendorShare, metrics.CustomShare, metrics.PyTorchShare),
		gain:     oneStep * (1 - within(share)),
		moves:    []move{{"fuse", toMost}},
	}, true
}
