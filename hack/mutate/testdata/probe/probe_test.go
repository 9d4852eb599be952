package probe

import "testing"

// TestAbove leaves out 3 on purpose.
func TestAbove(t *testing.T) {
	if !Above(10) || Above(1) {
		t.Error("10 is above three, and 1 is not")
	}
}
