//go:build !linux

package attack

// separable returns false: nothing keeps a process on some CPUs here.
func separable() bool { return false }

func keepOn(int, bool) error { return nil }
