package workload

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestOneNamespaceDelaysTheTrialsOfAnotherByOneTurn: a namespace with a thousand workloads
// asks again and again. Another one asks every retryTurn, and gets the first slot that is
// given back after it has asked.
func TestOneNamespaceDelaysTheTrialsOfAnotherByOneTurn(t *testing.T) {
	var s slots
	now := time.Unix(1_000_000, 0)
	for range maxTrying {
		if !s.take("crowd", now) {
			t.Fatal("a free slot is not given")
		}
	}
	for round := range 5 {
		if s.take("other", now) {
			t.Fatal("more slots are given than there are")
		}
		s.give()
		for range 1000 { // its workers are faster
			if s.take("crowd", now) {
				t.Fatalf("round %d: the slot went to the namespace that has had the last ones", round)
			}
		}
		now = now.Add(retryTurn)
		if !s.take("other", now) {
			t.Fatalf("round %d: the namespace that waited did not get the slot", round)
		}
		s.give()
		if !s.take("crowd", now) {
			t.Fatalf("round %d: a free slot is not given", round)
		}
	}
}

// TestAbandonedWaitReleasesTheTrialSlot: its workload may be deleted.
func TestAbandonedWaitReleasesTheTrialSlot(t *testing.T) {
	var s slots
	now := time.Unix(1_000_000, 0)
	for range maxTrying {
		s.take("crowd", now)
	}
	s.take("gone", now)
	s.give()
	if s.take("crowd", now.Add(slotPatience)) {
		t.Error("the namespace that waits lost its turn too early")
	}
	if !s.take("crowd", now.Add(slotPatience+time.Millisecond)) {
		t.Error("the slot is kept for a namespace that does not ask any more")
	}
}

// TestSlots: no more are taken than there are, and with all slots free and everybody asking,
// somebody gets one.
func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s slots
		now := time.Unix(1_000_000, 0)
		used := 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"take", "take", "give", "wait"}).Draw(t, "step") {
			case "take":
				if s.take(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "namespace"), now) {
					used++
				}
			case "give":
				if used > 0 {
					s.give()
					used--
				}
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			}
			if used > maxTrying || used != s.used {
				t.Fatalf("%d slots are taken, and %d are counted", used, s.used)
			}
		}
		for ; used > 0; used-- {
			s.give()
		}
		got := 0
		for i := range 4 {
			if s.take(fmt.Sprintf("%c", 'a'+i), now) {
				got++
			}
		}
		if got == 0 {
			t.Fatal("all slots are free, everybody asks, and nobody gets one")
		}
	})
}
