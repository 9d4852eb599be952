package capacity

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	tests := map[string]struct {
		sources []Source
		want    Settings
		invalid string
	}{
		"nothing said":                       {nil, Settings{Count: MaxCount}, ""},
		"on without a count: all on-demand":  {[]Source{{Switch: "true"}}, Settings{On: true, Count: MaxCount}, ""},
		"a count alone is no switch":         {[]Source{{Count: "3"}}, Settings{Count: 3}, ""},
		"the workload has both keys":         {[]Source{{Switch: "true", Count: "3"}, {Switch: "false", Count: "5"}}, Settings{On: true, Count: 3}, ""},
		"the workload opts out":              {[]Source{{Switch: "false"}, {Switch: "true", Count: "5"}}, Settings{Count: 5}, ""},
		"each key is looked for by itself":   {[]Source{{Count: "0"}, {}, {Switch: "true"}}, Settings{On: true, Count: 0}, ""},
		"the highest count":                  {[]Source{{Switch: "true", Count: "2147483647"}}, Settings{On: true, Count: MaxCount}, ""},
		"beyond":                             {[]Source{{Switch: "true", Count: "2147483648"}}, Settings{On: true, Count: MaxCount}, "is not an integer"},
		"negative":                           {[]Source{{Switch: "true", Count: "-1"}}, Settings{On: true, Count: MaxCount}, `"-1" is not an integer`},
		"a sign":                             {[]Source{{Switch: "true", Count: "+1"}}, Settings{On: true, Count: MaxCount}, "is not an integer"},
		"a space":                            {[]Source{{Switch: "true", Count: " 1"}}, Settings{On: true, Count: MaxCount}, "is not an integer"},
		"a percentage":                       {[]Source{{Switch: "true", Count: "50%"}}, Settings{On: true, Count: MaxCount}, "is not an integer"},
		"junk hides what is further away":    {[]Source{{Switch: "true", Count: "x"}, {Switch: "", Count: "5"}}, Settings{On: true, Count: MaxCount}, "is not an integer"},
		"a switch that is none is off":       {[]Source{{Switch: "yes"}, {Switch: "true"}}, Settings{Count: MaxCount}, "neither true nor false"},
		"the other class where one is empty": {[]Source{{Switch: "true", Count: "1"}, {OnEmpty: "Fallback"}}, Settings{On: true, Count: 1, Fallback: true}, ""},
		"waiting is nearer":                  {[]Source{{Switch: "true", Count: "1", OnEmpty: "Wait"}, {OnEmpty: "Fallback"}}, Settings{On: true, Count: 1}, ""},
		"neither of them":                    {[]Source{{Switch: "true", Count: "1", OnEmpty: "fallback"}}, Settings{On: true, Count: 1}, "neither Wait nor Fallback"},
		"two values are invalid":             {[]Source{{Switch: "yes", Count: "x"}}, Settings{Count: MaxCount}, "neither true nor false"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := Read(tc.sources...)
			if got.On != tc.want.On || got.Count != tc.want.Count || got.Fallback != tc.want.Fallback {
				t.Errorf("settings are %+v, want %+v", got, tc.want)
			}
			if (got.Invalid == nil) != (tc.invalid == "") || got.Invalid != nil && !strings.Contains(got.Invalid.Error(), tc.invalid) {
				t.Errorf("invalid is %v, want %q", got.Invalid, tc.invalid)
			}
		})
	}
}

// TestDivide begins with the four cases of docs/sources.md, C4.
func TestDivide(t *testing.T) {
	for _, tc := range [][4]int{
		{5, 5, 5, 0}, {5, 3, 3, 2}, {5, 0, 0, 5}, {5, 7, 5, 0},
		{8, 3, 3, 5}, {2, 3, 2, 0}, {0, 3, 0, 0}, {1, MaxCount, 1, 0},
	} {
		if onDemand, spot := Divide(tc[0], tc[1]); onDemand != tc[2] || spot != tc[3] {
			t.Errorf("%d pods with count %d are %d and %d, want %d and %d", tc[0], tc[1], onDemand, spot, tc[2], tc[3])
		}
	}
}

func TestWants(t *testing.T) {
	for _, tc := range []struct {
		class    Class
		n, count int
		want     bool
	}{{OnDemand, 2, 1, true}, {Spot, 2, 1, true}, {Spot, 2, 2, false}, {OnDemand, 2, 0, false}, {Spot, 0, 0, false}, {None, 2, 1, false}} {
		if got := Wants(tc.class, tc.n, tc.count); got != tc.want {
			t.Errorf("of %d pods with count %d some are %q: %t", tc.n, tc.count, tc.class, got)
		}
	}
}

func TestClassesRoundTripThroughLabels(t *testing.T) {
	for _, c := range []Class{None, OnDemand, Spot} {
		if got := ParseClass(c.String()); got != c {
			t.Errorf("%q is %d, want %d", c, got, c)
		}
		if c.Other().Other() != c || c != None && c.Other() == c {
			t.Errorf("the other of %q is %q", c, c.Other())
		}
	}
}

func TestOrdinals(t *testing.T) {
	for name, want := range map[string]int{"web-0": 0, "a-b-12": 12, "web": -1, "web-": -1, "web-x": -1, "web--1": 1, "web-99999999999": -1} {
		got, ok := Ordinal(name)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("the ordinal of %q is %d, want %d", name, got, want)
		}
	}
	for _, tc := range []struct {
		ordinal, start, count int
		want                  Class
	}{
		{0, 0, 1, OnDemand}, {1, 0, 1, Spot}, {0, 0, 0, Spot}, {5, 5, 2, OnDemand}, {6, 5, 2, OnDemand}, {7, 5, 2, Spot},
		{3, 5, 2, OnDemand}, // one that is on its way out after start was raised
		{7, 0, MaxCount, OnDemand},
	} {
		if got := OfOrdinal(tc.ordinal, tc.start, tc.count); got != tc.want {
			t.Errorf("ordinal %d from %d with count %d is %q, want %q", tc.ordinal, tc.start, tc.count, got, tc.want)
		}
	}
}

// rollout simulates rollouts of a Deployment, in which pods become Ready and are deleted
// in any order, as its controller scales the ReplicaSets.
type rollout struct {
	*rand.Rand
	replicas, count, surge, unavailable int
	revisions                           []*revision // the newest last
}

type revision struct {
	replicas int
	pods     []pod
}

type pod struct {
	class Class
	ready bool
}

func (r *revision) onDemand() (n int) {
	for _, p := range r.pods {
		if p.class == OnDemand {
			n++
		}
	}
	return n
}

func (r *rollout) pods() (all, ready, onDemand int) {
	for _, rev := range r.revisions {
		all += len(rev.pods)
		onDemand += rev.onDemand()
		for _, p := range rev.pods {
			if p.ready {
				ready++
			}
		}
	}
	return all, ready, onDemand
}

// create makes one pod of a revision that has too few, if there is one.
func (r *rollout) create() bool {
	for _, i := range r.Perm(len(r.revisions)) {
		rev := r.revisions[i]
		if len(rev.pods) >= rev.replicas {
			continue
		}
		var others []Revision
		for _, o := range r.revisions {
			if o != rev {
				others = append(others, Revision{OnDemand: o.onDemand(), Replicas: o.replicas})
			}
		}
		rev.pods = append(rev.pods, pod{class: Next(rev.onDemand(), others, r.count, r.surge)})
		return true
	}
	return false
}

// remove deletes a pod of a revision that has too many: first one that is not Ready, then
// the one of the lowest deletion cost, as a ReplicaSet does.
func (r *rollout) remove() bool {
	for _, i := range r.Perm(len(r.revisions)) {
		rev := r.revisions[i]
		if len(rev.pods) <= rev.replicas {
			continue
		}
		slices.SortStableFunc(rev.pods, func(a, b pod) int {
			rank := func(p pod) (n int) {
				if p.ready {
					n += 2
				}
				if p.class == OnDemand {
					n++
				}
				return n
			}
			return rank(a) - rank(b)
		})
		rev.pods = rev.pods[1:]
		return true
	}
	return false
}

func (r *rollout) becomeReady() bool {
	for _, i := range r.Perm(len(r.revisions)) {
		for j := range r.revisions[i].pods {
			if !r.revisions[i].pods[j].ready {
				r.revisions[i].pods[j].ready = true
				return true
			}
		}
	}
	return false
}

// scale is one step of the Deployment's controller.
func (r *rollout) scale() bool {
	newest := r.revisions[len(r.revisions)-1]
	total, all, ready := 0, 0, 0
	for _, rev := range r.revisions {
		total += rev.replicas
	}
	all, ready, _ = r.pods()
	if room := r.replicas + r.surge - max(total, all); room > 0 && newest.replicas < r.replicas {
		newest.replicas += min(room, r.replicas-newest.replicas)
		return true
	}
	for _, rev := range r.revisions[:len(r.revisions)-1] {
		notReady := 0
		for _, p := range newest.pods {
			if !p.ready {
				notReady++
			}
		}
		notReady += max(0, newest.replicas-len(newest.pods))
		if may := min(rev.replicas, total-(r.replicas-r.unavailable)-notReady, ready-(r.replicas-r.unavailable)); may > 0 {
			rev.replicas -= may
			return true
		}
	}
	return false
}

// TestRolloutsEndExact checks that rollouts end with the exact count, in whatever order
// pods are created, become Ready and are deleted, and with any surge and unavailability.
// At most count + surge on-demand pods exist that are not about to be deleted.
func TestRolloutsEndExact(t *testing.T) {
	for seed := range uint64(4000) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		r := &rollout{Rand: rnd, replicas: 1 + rnd.IntN(12), count: rnd.IntN(14), surge: rnd.IntN(6), unavailable: rnd.IntN(4)}
		if r.surge+r.unavailable == 0 {
			r.surge = 1
		}
		r.revisions = []*revision{{replicas: r.replicas}}
		steps := []func() bool{r.create, r.remove, r.becomeReady, r.scale}
		settle := func(most int) {
			for idle, done := 0, 0; idle < 64 && done < most; idle, done = idle+1, done+1 {
				if steps[rnd.IntN(len(steps))]() {
					idle = 0
				}
				if _, _, onDemand := r.pods(); len(r.revisions) == 1 && onDemand > r.count {
					t.Fatalf("seed %d: %d on-demand with count %d", seed, onDemand, r.count)
				}
			}
		}
		const all = 1 << 20
		settle(all)
		for range 1 + rnd.IntN(3) {
			r.revisions = append(r.revisions, &revision{})
			settle(rnd.IntN(120)) // the next comes in the middle
		}
		settle(all)
		newest := r.revisions[len(r.revisions)-1]
		want, _ := Divide(r.replicas, r.count)
		if all, _, onDemand := r.pods(); all != r.replicas || len(newest.pods) != r.replicas || onDemand != want {
			t.Fatalf("seed %d: %d pods, %d of the newest revision, %d on-demand; want %d, all of it, %d (count %d, surge %d, unavailable %d)",
				seed, all, len(newest.pods), onDemand, r.replicas, want, r.count, r.surge, r.unavailable)
		}
	}
}

// TestNextAmongRevisions checks that each other revision counts with as many pods as it
// should keep, and that the surge bounds all revisions together.
func TestNextAmongRevisions(t *testing.T) {
	tests := map[string]struct {
		own          int
		others       []Revision
		count, surge int
		want         Class
	}{
		"alone":                               {2, nil, 3, 0, OnDemand},
		"alone, with enough":                  {3, nil, 3, 5, Spot},
		"the others have all there may be":    {1, []Revision{{OnDemand: 2, Replicas: 2}}, 3, 0, Spot},
		"one more is surge":                   {1, []Revision{{OnDemand: 2, Replicas: 2}}, 3, 1, OnDemand},
		"two others, and not only the last":   {0, []Revision{{OnDemand: 2, Replicas: 2}, {OnDemand: 1, Replicas: 1}}, 3, 0, Spot},
		"two others, and the surge of one":    {0, []Revision{{OnDemand: 2, Replicas: 2}, {OnDemand: 2, Replicas: 2}}, 3, 1, Spot},
		"what they give up does not count":    {0, []Revision{{OnDemand: 3, Replicas: 1}}, 3, 0, OnDemand},
		"what they do not have does not":      {0, []Revision{{OnDemand: 1, Replicas: 9}}, 3, 0, OnDemand},
		"none is wanted":                      {0, nil, 0, 5, Spot},
		"a surge below none is none":          {1, []Revision{{OnDemand: 1, Replicas: 1}}, 3, -1, OnDemand},
		"replicas below none take none away":  {2, []Revision{{OnDemand: 1, Replicas: -1}}, 3, 0, OnDemand},
		"own and others together, at the end": {2, []Revision{{OnDemand: 1, Replicas: 1}}, 3, 0, Spot},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Next(tc.own, tc.others, tc.count, tc.surge); got != tc.want {
				t.Errorf("the next pod is %q, want %q", got, tc.want)
			}
		})
	}
}

// TestReadReportsTheFirstInvalidValue checks all three keys.
func TestReadReportsTheFirstInvalidValue(t *testing.T) {
	got := Read(Source{Switch: "yes", Count: "x", OnEmpty: "never"})
	if got.Invalid == nil || !strings.Contains(got.Invalid.Error(), "neither true nor false") {
		t.Errorf("invalid is %v", got.Invalid)
	}
	if got, ok := Ordinal("-0"); got != 0 || !ok {
		t.Errorf("the ordinal of -0 is %d, %t", got, ok)
	}
}
