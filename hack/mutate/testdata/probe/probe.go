// Package probe has a test that does not notice one change.
package probe

// Above reports whether a number is above three.
func Above(n int) bool { return n > 3 }
