package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CheckPaths looks at the files and folders that the settings name, and returns
// what is wrong with them, in the order of the settings' errors; nil: nothing.
// What is only made when it is needed need not be there.
func CheckPaths(c Config, origins Origins, getenv func(string) string) error {
	errs := &errorList{}
	say := func(key, text, hint string) {
		o := origins[key]
		if o.Kind == "default" {
			o.at = ofDefaults
		}
		errs.add(o.at, key, o.Where, key+": "+text, hint)
	}
	if folder, err := DataFolder(c, getenv); err != nil {
		var e *Error
		if errors.As(err, &e) {
			say("data_dir", e.Text, e.Hint)
		}
	} else if why := unusable(folder); why != "" {
		say("data_dir", why, "name another folder, or mend this one")
	}
	if c.Python != "" {
		if _, err := exec.LookPath(c.Python); err != nil {
			say("python", fmt.Sprintf("%s cannot be started: %s", c.Python, cause(err)), "name a Python that has PyTorch; empty, kernelwright makes an environment of its own")
		}
	}
	for _, folder := range c.Watch.Folders {
		if why := missing(folder); why != "" {
			say("watch.folders", why, "make the folder, or leave it out")
		}
	}
	if folder := c.Watch.OutputDir; folder != "" {
		if why := unusable(folder); why != "" {
			say("watch.output_dir", why, "name another folder, or mend this one")
		}
	}
	if folder := c.Prompts.Folder; folder != "" {
		if why := missing(folder); why != "" {
			say("prompts.folder", why, "make the folder, or leave the key empty for the program's own words")
		}
	}
	return errs.err()
}

// missing says why a folder cannot be read, or "".
func missing(folder string) string {
	info, err := os.Stat(folder)
	switch {
	case err != nil:
		return folder + ": " + cause(err)
	case !info.IsDir():
		return folder + " is no folder"
	case unix.Access(folder, unix.R_OK|unix.X_OK) != nil:
		return folder + " cannot be read"
	}
	return ""
}

// unusable says why nothing can be written into a folder, or "": one that is not
// there is made.
func unusable(folder string) string {
	for at := filepath.Clean(folder); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			continue
		case err != nil:
			return at + ": " + cause(err)
		case !info.IsDir():
			return at + " is no folder"
		case unix.Access(at, unix.W_OK|unix.X_OK) != nil && at == filepath.Clean(folder):
			return at + " cannot be written into"
		case unix.Access(at, unix.W_OK|unix.X_OK) != nil:
			return fmt.Sprintf("%s is not there, and %s cannot be written into", folder, at)
		}
		return ""
	}
}
