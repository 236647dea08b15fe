package hwfeedback

import (
	"testing"

	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

func TestOthersOnAGPUAreNamed(t *testing.T) {
	root := machine(map[string]string{
		"proc/1/comm": "python3\n", "proc/2/comm": "VLLM::EngineCore\n", "proc/9/comm": "python\n",
		"proc/9/cmdline": "python\x00-I\x00data/harness/00ff/forkserver.py\x00--idle\x00300",
	})
	for want, there := range map[string][]gpu.Process{
		"":                     {{PID: 9, Bytes: 1e9}}, // ours
		"1 (python3, 12.3 GB)": {{PID: 9}, {PID: 1, Bytes: 12.34e9}},
		"1 (python3)":          {{PID: 1}},
		"7 (0.5 GB)":           {{PID: 7, Bytes: 5e8}}, // it has ended, or is in a container
		"2 (VLLM::EngineCore, 70.0 GB), 1 (python3, 1.0 GB), 7": {{PID: 7}, {PID: 1, Bytes: 1e9}, {PID: 2, Bytes: 70e9}},
		"3, 4, 5, 6, and 2 more":                                {{PID: 8}, {PID: 7}, {PID: 6}, {PID: 5}, {PID: 4}, {PID: 3}, {PID: 9}},
	} {
		if got := others(root, there); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
