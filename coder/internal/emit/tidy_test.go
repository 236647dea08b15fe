package emit

import "testing"

// TestTidied: what one function does not need is left out of it, and of no other.
func TestTidied(t *testing.T) {
	text := `__global__ void kernel0(int* a) {
  const long long rows = 5;
  const int width = f(1, rows), lane = threadIdx.x % 32, other = 1;
  const bool live = true;
  if (lane == 0 && live) {
    a[0] = lane;
  }
  if (live) {
    a[1] = 0;
  }
}
__global__ void kernel1(int* a) {
  const long long rows = 5;
  const bool live = rows > a[0];
  if (live) a[0] = rows;
}
`
	want := `__global__ void kernel0(int* a) {
  const int lane = threadIdx.x % 32, other = 1;
  if (lane == 0) {
    a[0] = lane;
  }
  {
    a[1] = 0;
  }
}
__global__ void kernel1(int* a) {
  const long long rows = 5;
  const bool live = rows > a[0];
  if (live) a[0] = rows;
}
`
	if got := tidied(text); got != want {
		t.Errorf("got\n%s", got)
	}
}
