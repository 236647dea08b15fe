package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright/metrics"
)

// vendorRest is the share outside the vendor library below which even a rest
// that costs nothing would not make the candidate 5 % faster.
const vendorRest = 0.05

// vendorLibrary stops where matrix products and convolutions are all there is.
func vendorLibrary(v view) (finding, bool) {
	share, ok := v.metric(metrics.VendorShare)
	if !ok || share <= 1-vendorRest {
		return finding{}, false
	}
	return finding{
		done:     true,
		why:      fmt.Sprintf("The vendor library takes %s of the time: all the rest together could not make it 5 %% faster.", percent(share)),
		evidence: v.evidence(metrics.VendorShare, metrics.CustomShare, metrics.PyTorchShare),
	}, true
}
