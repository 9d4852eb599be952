package capacity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// pods returns pods from words: the class of each (od, spot or none), then its properties.
func pods(words ...string) (out []seats.SeatView) {
	for i, word := range words {
		parts := strings.Split(word, "+")
		class := map[string]capacity.Class{"od": capacity.OnDemand, "spot": capacity.Spot, "none": capacity.None}[parts[0]]
		pod := &seats.Pod{
			UID: types.UID(fmt.Sprint("pod-", i)), Name: fmt.Sprint("web-", i), Node: "node", Ready: true, Active: true,
			ClassStamp: class, Class: class, Created: time.Unix(int64(i), 0),
		}
		for _, special := range parts[1:] {
			switch special {
			case "waits":
				pod.Node, pod.Ready = "", false
			case "stuck": // as kube-scheduler says
				pod.Node, pod.Ready, pod.Unschedulable, pod.Demand = "", false, true, &fit.Demand{Claims: true}
			case "refused": // by kube-scheduler, for other reasons
				pod.Node, pod.Ready, pod.Unschedulable, pod.Demand = "", false, true, &fit.Demand{}
			case "unready":
				pod.Ready = false
			case "pinned":
				pod.ClassStamp = capacity.None
			case "gated":
				pod.Node, pod.Ready, pod.Gated = "", false, true
				pod.ClassStamp, pod.Class = capacity.None, capacity.None
			case "named":
				pod.NamesNode, pod.ClassStamp, pod.Class = true, capacity.None, capacity.None
			case "free":
				pod.ClassStamp, pod.Class = capacity.None, capacity.None
			}
		}
		out = append(out, seats.SeatView{Pod: pod, Class: class})
	}
	return out
}

// standing is a paused rollout in which every successor gets the class.
func standing(next capacity.Class) func(*observed) {
	return func(o *observed) {
		o.rollout, o.still = true, true
		o.next = func(seats.SeatView) capacity.Class { return next }
	}
}

func TestPlan(t *testing.T) {
	ordinals := func(count int) func(string) capacity.Class {
		return func(pod string) capacity.Class {
			n, _ := capacity.Ordinal(pod)
			return capacity.OfOrdinal(n, 0, count)
		}
	}
	// rolling is a rollout that goes on, while a class is done without.
	rolling := func(empty capacity.Class) func(*observed) {
		return func(o *observed) {
			o.rollout, o.fellBack, o.open[empty] = true, empty, 0
			o.next = func(seats.SeatView) capacity.Class { return empty.Other() }
		}
	}
	// refuses is that no node takes a pod.
	refuses := func(why fit.Reason) func(*observed) {
		return func(o *observed) {
			o.canTake = func(capacity.Class, *seats.Pod) (bool, fit.Reason) { return false, why }
		}
	}
	both := func(changes ...func(*observed)) func(*observed) {
		return func(o *observed) {
			for _, change := range changes {
				change(o)
			}
		}
	}
	without := func(empty capacity.Class) func(*observed) {
		return func(o *observed) { o.fellBack, o.open[empty] = empty, 0 }
	}
	tied := func(class capacity.Class) func(*observed) {
		return func(o *observed) { o.tied = func(*seats.Pod) capacity.Class { return class } }
	}
	tests := map[string]struct {
		replicas, count int
		pods            []seats.SeatView
		change          func(*observed)
		evict           []string
		reason          string
	}{
		"the target is reached":     {replicas: 3, count: 1, pods: pods("od", "spot", "spot"), reason: api.ReasonSatisfied},
		"0 replicas":                {replicas: 0, count: 1, reason: api.ReasonSatisfied},
		"a higher count":            {replicas: 3, count: 2, pods: pods("od", "spot", "spot"), evict: []string{"pod-2"}, reason: api.ReasonConverging},
		"a lower count":             {replicas: 3, count: 0, pods: pods("od", "od", "spot"), evict: []string{"pod-1", "pod-0"}, reason: api.ReasonConverging},
		"pods without a node first": {replicas: 3, count: 3, pods: pods("spot+waits", "spot+unready", "spot"), evict: []string{"pod-0", "pod-1", "pod-2"}, reason: api.ReasonConverging},
		"a pod without a stamp counts in the class of its node":  {replicas: 2, count: 1, pods: pods("od+free", "spot+free"), reason: api.ReasonSatisfied},
		"a pod without a stamp is moved":                         {replicas: 2, count: 1, pods: pods("od+free", "od+free"), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"on a node of neither class":                             {replicas: 2, count: 1, pods: pods("od", "none+free"), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"its own demands leave no other class":                   {replicas: 2, count: 0, pods: pods("od+pinned", "spot"), reason: api.ReasonPinned},
		"a seat is reserved":                                     {replicas: 3, count: 2, pods: pods("od", "spot", "spot"), change: func(o *observed) { o.reserved[capacity.OnDemand] = 1 }, reason: api.ReasonConverging},
		"pods are missing":                                       {replicas: 3, count: 1, pods: pods("od", "spot"), reason: api.ReasonConverging},
		"pods at the gate are not moved":                         {replicas: 2, count: 1, pods: pods("od", "none+gated"), reason: api.ReasonPodsWaiting},
		"pods wait":                                              {replicas: 3, count: 1, pods: pods("od", "spot", "spot+waits"), reason: api.ReasonPodsWaiting},
		"no node of a class":                                     {replicas: 2, count: 1, pods: pods("od", "spot+waits"), change: func(o *observed) { o.open[capacity.Spot] = 0 }, reason: api.ReasonNoNodes},
		"no node of a class that is not wanted":                  {replicas: 1, count: 1, pods: pods("od"), change: func(o *observed) { o.open[capacity.Spot] = 0 }, reason: api.ReasonSatisfied},
		"no node of a class that pods wait for, in a rollout":    {replicas: 2, count: 0, pods: pods("spot", "spot", "spot+waits"), change: func(o *observed) { o.rollout, o.open[capacity.Spot] = true, 0 }, reason: api.ReasonNoNodes},
		"no room for a pod that waits":                           {replicas: 2, count: 2, pods: pods("od", "spot+waits"), change: refuses(fit.NoRoom), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"too close to other pods for a pod that waits":           {replicas: 2, count: 2, pods: pods("od", "spot+waits"), change: refuses(fit.TooClose), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"a taken host port, for a pod that waits":                {replicas: 2, count: 2, pods: pods("od", "spot+waits"), change: refuses(fit.PortTaken), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"no matching node, for a pod that waits":                 {replicas: 2, count: 2, pods: pods("od", "spot+waits"), change: refuses(fit.NoMatch), reason: api.ReasonPodsWaiting},
		"taints, for a pod that waits":                           {replicas: 2, count: 2, pods: pods("od", "spot+waits"), change: refuses(fit.Tainted), reason: api.ReasonPodsWaiting},
		"no node that reaches the volumes, for a pod that waits": {replicas: 2, count: 2, pods: pods("od", "spot+waits"), change: refuses(fit.OutOfReach), reason: api.ReasonPodsWaiting},
		"a rollout while pods fall back":                         {replicas: 2, count: capacity.MaxCount, pods: pods("spot", "spot", "spot+waits"), change: rolling(capacity.Spot), evict: []string{"pod-2"}, reason: api.ReasonConverging},
		"a rollout after waiting pods fell back":                 {replicas: 2, count: capacity.MaxCount, pods: pods("spot", "spot", "od+waits"), change: rolling(capacity.Spot), reason: api.ReasonFellBack},
		"a class without nodes that the count does not ask for":  {replicas: 2, count: capacity.MaxCount, pods: pods("od", "od"), change: both(without(capacity.Spot), func(o *observed) { o.asked = 2 }), reason: api.ReasonSatisfied},
		"its running pods move":                                  {replicas: 2, count: capacity.MaxCount, pods: pods("od", "spot"), change: both(without(capacity.Spot), func(o *observed) { o.asked = 2 }), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"a StatefulSet that fell back: running pods stay":        {replicas: 2, count: capacity.MaxCount, pods: pods("spot", "spot"), change: both(without(capacity.Spot), func(o *observed) { o.ofOrdinal = ordinals(capacity.MaxCount) }), reason: api.ReasonFellBack},
		"pods that wait fall back":                               {replicas: 2, count: capacity.MaxCount, pods: pods("spot", "spot+waits"), change: both(without(capacity.Spot), func(o *observed) { o.ofOrdinal = ordinals(capacity.MaxCount) }), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"running pods stay, and a pod that waits cannot move": {replicas: 2, count: capacity.MaxCount, pods: pods("spot", "spot+waits"), change: both(without(capacity.Spot), func(o *observed) {
			o.canTake = func(_ capacity.Class, pod *seats.Pod) (bool, fit.Reason) { return pod.Node != "", fit.OutOfReach }
		}), reason: api.ReasonPodsWaiting},
		"a pod waits, and its volumes are on nodes of the other class":              {replicas: 1, count: 1, pods: pods("od+stuck"), change: both(tied(capacity.Spot), func(o *observed) { o.ofOrdinal = ordinals(1) }), evict: []string{"pod-0"}, reason: api.ReasonConverging},
		"a pod waits in a rollout, and its volumes are on nodes of the other class": {replicas: 1, count: 1, pods: pods("od+stuck"), change: both(tied(capacity.Spot), func(o *observed) { o.rollout = true }), evict: []string{"pod-0"}, reason: api.ReasonConverging},
		"a pod waits, and its volumes are on nodes of its class":                    {replicas: 1, count: 1, pods: pods("od+stuck"), change: tied(capacity.OnDemand), reason: api.ReasonPodsWaiting},
		"a pod waits that its volumes tie to its class":                             {replicas: 1, count: 1, pods: pods("od+stuck+pinned"), change: tied(capacity.Spot), reason: api.ReasonPodsWaiting},
		"no room": {replicas: 2, count: 2, pods: pods("od", "spot"), change: func(o *observed) {
			o.canTake = func(capacity.Class, *seats.Pod) (bool, fit.Reason) { return false, fit.NoRoom }
		}, reason: api.ReasonNoRoom},
		"a pod waits in a rollout for a class that it would not get any more": {replicas: 2, count: 1, pods: pods("od", "od+refused"), change: func(o *observed) {
			o.rollout, o.next = true, func(seats.SeatView) capacity.Class { return capacity.Spot }
		}, evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"a pod waits in a rollout for the class that it would get again": {replicas: 2, count: 1, pods: pods("od", "od+refused"), change: func(o *observed) {
			o.rollout, o.next = true, func(seats.SeatView) capacity.Class { return capacity.OnDemand }
		}, reason: api.ReasonConverging},
		"no moves during a rollout":                                  {replicas: 2, count: 2, pods: pods("od", "spot"), change: func(o *observed) { o.rollout = true }, reason: api.ReasonConverging},
		"a paused rollout with surplus pods":                         {replicas: 2, count: 1, pods: pods("od", "od", "spot"), change: standing(capacity.Spot), evict: []string{"pod-1"}, reason: api.ReasonConverging},
		"a paused rollout with too few pods":                         {replicas: 2, count: 2, pods: pods("od", "spot", "spot"), change: standing(capacity.OnDemand), evict: []string{"pod-2"}, reason: api.ReasonConverging},
		"a paused rollout whose successors would get the same class": {replicas: 2, count: 1, pods: pods("od", "od", "spot"), change: standing(capacity.OnDemand), reason: api.ReasonConverging},
		"a class without nodes, with fallback": {replicas: 3, count: capacity.MaxCount, pods: pods("od", "spot", "spot+waits"), change: func(o *observed) { o.fellBack, o.open[capacity.Spot] = capacity.Spot, 0 },
			evict: []string{"pod-2"}, reason: api.ReasonConverging},
		"waiting pods fell back":             {replicas: 2, count: capacity.MaxCount, pods: pods("od", "od"), change: func(o *observed) { o.fellBack, o.open[capacity.Spot] = capacity.Spot, 0 }, reason: api.ReasonFellBack},
		"running pods of that class stay":    {replicas: 3, count: capacity.MaxCount, pods: pods("od", "od", "spot"), change: func(o *observed) { o.fellBack, o.open[capacity.Spot] = capacity.Spot, 0 }, reason: api.ReasonFellBack},
		"its owner names the node":           {replicas: 2, count: 0, pods: pods("od+named", "spot"), reason: api.ReasonPinned},
		"the successor has the same class":   {replicas: 2, count: 2, pods: pods("od", "spot"), change: func(o *observed) { o.inVain = api.ReasonPinned }, reason: api.ReasonPinned},
		"the API server refuses pods":        {replicas: 3, count: 1, pods: pods("od", "spot"), change: func(o *observed) { o.refused = "exceeded quota" }, reason: api.ReasonPodsRefused},
		"the successor was not admitted":     {replicas: 2, count: 2, pods: pods("od", "spot"), change: func(o *observed) { o.inVain = api.ReasonNotAdmitted }, reason: api.ReasonNotAdmitted},
		"a StatefulSet's ordinals":           {replicas: 4, count: 1, pods: pods("spot", "od", "spot", "od"), change: func(o *observed) { o.ofOrdinal = ordinals(1) }, evict: []string{"pod-3", "pod-1", "pod-0"}, reason: api.ReasonConverging},
		"a StatefulSet at its target":        {replicas: 2, count: 1, pods: pods("od", "spot"), change: func(o *observed) { o.ofOrdinal = ordinals(1) }, reason: api.ReasonSatisfied},
		"a StatefulSet with a changed count": {replicas: 3, count: 2, pods: pods("od", "spot", "spot"), change: func(o *observed) { o.ofOrdinal = ordinals(2) }, evict: []string{"pod-1"}, reason: api.ReasonConverging},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := observed{
				replicas: tc.replicas, count: tc.count, pods: tc.pods, open: [3]int{0, 1, 1},
				canTake: func(capacity.Class, *seats.Pod) (bool, fit.Reason) { return true, fit.Fits },
			}
			if tc.change != nil {
				tc.change(&o)
			}
			p := planFor(o)
			var evict []string
			for _, pod := range p.evict {
				evict = append(evict, string(pod.UID))
			}
			if diff := cmp.Diff(tc.evict, evict, cmpopts.EquateEmpty()); diff != "" || p.reason != tc.reason || p.message == "" {
				t.Errorf("%s: %q, want %s; evictions (-want +got):\n%s", p.reason, p.message, tc.reason, diff)
			}
		})
	}
}

// TestMessageNamesTheClassPodsWaitFor: pods at the gate wait for atoll-manager, not for a node.
func TestMessageNamesTheClassPodsWaitFor(t *testing.T) {
	for message, waiting := range map[string][]seats.SeatView{
		"pods wait for a node of class spot":                pods("od", "spot+waits", "none+gated"),
		"pods wait for a node of both classes":              pods("od+waits", "spot+waits"),
		"pods wait for a node of class on-demand":           pods("od+waits", "spot"),
		"pods wait for a node":                              pods("od", "none+waits+free"),
		"pods wait at the scheduling gate of atoll-manager": pods("od", "none+gated"),
	} {
		p := planFor(observed{replicas: len(waiting), count: 1, pods: waiting, open: [3]int{0, 1, 1}, canTake: func(capacity.Class, *seats.Pod) (bool, fit.Reason) { return false, fit.NoMatch }})
		if p.reason != api.ReasonPodsWaiting || p.message != message {
			t.Errorf("%s: %q, want %q", p.reason, p.message, message)
		}
	}
}

// TestRolloutCountsAsPausedAfterStillTime: a rollout counts as paused once all pods are Ready and
// at least stillTime old.
func TestRolloutCountsAsPausedAfterStillTime(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for age, want := range map[time.Duration]bool{29 * time.Second: false, 30 * time.Second: true, time.Hour: true} {
		all := pods("od", "spot")
		all[1].Created = now.Add(-age)
		if got := isPaused(all, now); got != want {
			t.Errorf("with a pod that is %s old: %t", age, got)
		}
	}
	if isPaused(pods("od", "spot+unready"), now) {
		t.Error("with a pod that is not Ready")
	}
}
