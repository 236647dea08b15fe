//go:build !cgo || !linux

package gpu

// List returns an *AbsentError: this program was built without what it takes.
func List(...int) ([]GPU, error) { return ListNow() }

// ListNow returns the same.
func ListNow() ([]GPU, error) {
	return nil, &AbsentError{Reason: "this kernelwright was built without support for NVIDIA GPUs", Hint: "build it with CGO_ENABLED=1 on Linux"}
}
