package uniteddeployment

import (
	"errors"
	"testing"
	"time"
)

// TestRepeatedRepairsBackOff: a program changes a workload after each repair. The first
// ten repairs have no delay, later ones have longer and longer delays. Other pools have no
// delay.
func TestRepeatedRepairsBackOff(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	insist := func(name string) {
		t.Helper()
		d := s.deployment(name)
		d.Spec.Template.Spec.Containers[0].Image = "insists"
		if err := s.all.Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	for range freeRestores {
		insist("web-a")
		s.rest()
	}
	insist("web-a")
	insist("web-b")
	s.writes = nil
	result, err := s.pass()
	if err != nil || result.RequeueAfter != restoreFirst {
		t.Errorf("it comes back after %s, error %v", result.RequeueAfter, err)
	}
	if images := s.images(); images["web-a"] != "insists" || images["web-b"] != "nginx:1" {
		t.Errorf("images are %v", images)
	}
	s.clock.Step(restoreFirst)
	s.rest()
	if images := s.images(); images["web-a"] != "nginx:1" {
		t.Errorf("images are %v", images)
	}
}

func TestPace(t *testing.T) {
	p, now := &pace{}, time.Unix(0, 0)
	var waited []time.Duration
	for range freeRestores + 14 {
		err := p.check("u", now)
		var early *earlyError
		if errors.As(err, &early) {
			waited = append(waited, early.after)
			now = now.Add(early.after)
			err = p.check("u", now)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.restored("u", now)
	}
	if len(waited) != 14 || waited[0] != restoreFirst || waited[1] != 2*restoreFirst || waited[13] != restoreLast {
		t.Errorf("it waited %v", waited)
	}
	now = now.Add(restoreForgotten + 1)
	for range freeRestores {
		if err := p.check("u", now); err != nil {
			t.Errorf("long after: %v", err)
		}
		p.restored("u", now)
	}
}
