package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// promise is the state of one group that the policies promise.
type promise struct {
	group  string
	pods   int
	images string
	// args are the arguments of the pods' containers; "" means none.
	args string
}

// promised is docs/sources.md, G23: "we want 3 pods to run in Hangzhou and 2 pods to run
// in Beijing" and "use their local image registry", as numbers and names. The demo is
// judged by it, and never shows it as a result.
var promised = []promise{
	{group: "hangzhou", pods: 3, images: "hangzhou.registry.io/nginx:1.27"},
	{group: "beijing", pods: 2, images: "beijing.registry.io/nginx:1.27"},
}

// maxUnavailable is the policy's default for rescheduling.maxUnavailable.
const maxUnavailable = 1

// outcome is the result of a demo.
type outcome struct {
	picture *picture
	// first is the time of the starting point, converged the time from the last command
	// to the end, total the time since the start of the program.
	first, converged, total time.Duration
	// failures are the differences from the promises.
	failures []string
	// scene has lines about the acts of the scene that was played afterwards.
	scene []string
}

// judge returns the differences from the promises.
func judge(p *picture, promises []promise) []string {
	var failures []string
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	found := map[string]*groupView{}
	for i := range p.groups {
		found[p.groups[i].name] = &p.groups[i]
	}
	total := 0
	for _, want := range promises {
		total += want.pods
		group := found[want.group]
		if group == nil {
			fail("NodeGroup %s does not exist", want.group)
			continue
		}
		if group.wanted != want.pods {
			fail("%s: the PropagationPolicy wants %s pods, not %d", want.group, number(group.wanted), want.pods)
		}
		pods := group.pods()
		if len(pods) != want.pods {
			fail("%s: %d pods, wanted %d", want.group, len(pods), want.pods)
		}
		if n := countReady(pods); n != len(pods) {
			fail("%s: %d of %d pods are Ready", want.group, n, len(pods))
		}
		if images := strings.Join(group.images(), ", "); images != want.images {
			fail("%s: images %s, wanted %s", want.group, images, want.images)
		}
		if args := strings.Join(group.args(), ", "); args != want.args {
			fail("%s: arguments %q, wanted %q", want.group, args, want.args)
		}
	}
	if n := p.pods(); n != total {
		fail("%d pods in all, wanted %d", n, total)
	}
	if len(p.policies) != 2 {
		fail("%d policies, wanted 2", len(p.policies))
	}
	for _, policy := range p.policies {
		if policy.status != "True" {
			fail("%s", policy.text())
		}
	}
	return failures
}

// judgeAvailability returns a failure for each time that more pods were unavailable than
// allowed.
func judgeAvailability(p *picture, allowed int) []string {
	switch a := p.availability; {
	case a == nil:
		return []string{"nobody counted available pods"}
	case a.worst > allowed:
		return []string{fmt.Sprintf("%d pods were unavailable at a time, allowed is %d", a.worst, allowed)}
	case a.gaps > 0:
		return []string{fmt.Sprintf("watches were interrupted %d times: nobody knows how many pods were available then", a.gaps)}
	default:
		return nil
	}
}

// number formats -1, which means no value, as a dash.
func number(n int) string {
	if n < 0 {
		return "–"
	}
	return strconv.Itoa(n)
}

// closing is the last part of the output.
func closing(o *outcome) string {
	var out strings.Builder
	fmt.Fprintln(&out)
	table := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	header, hasArgs := "GROUP\tWANTED\tIS\tREADY\tIMAGES", o.picture.hasArgs()
	if hasArgs {
		header += "\tARGS"
	}
	fmt.Fprintln(table, header)
	for i := range o.picture.groups {
		group := &o.picture.groups[i]
		name := group.name
		if name == "" {
			name = "(none)"
		}
		pods := group.pods()
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s", name, number(group.wanted), len(pods), countReady(pods), strings.Join(group.images(), ", "))
		if hasArgs {
			fmt.Fprintf(table, "\t%s", strings.Join(group.args(), ", "))
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // strings.Builder takes everything
	fmt.Fprintln(&out)
	for _, policy := range o.picture.policies {
		fmt.Fprintln(&out, policy.text())
	}
	if a := o.picture.availability; a != nil {
		fmt.Fprintf(&out, "Unavailable pods, counted after each change of any pod: never more than %d of %d at a time.\n", a.worst, a.wanted)
	}
	fmt.Fprintf(&out, "First picture after %.1f s; as it is now %.1f s after the labels, %.1f s in total.\n",
		o.first.Seconds(), o.converged.Seconds(), o.total.Seconds())
	for _, line := range o.scene {
		fmt.Fprintln(&out, line+".")
	}
	if len(o.failures) == 0 && len(o.scene) > 0 {
		fmt.Fprintln(&out, "As the policies say, and so was the scene.")
		return out.String()
	}
	if len(o.failures) == 0 {
		fmt.Fprintln(&out, "As the policies say.")
		return out.String()
	}
	fmt.Fprintln(&out, "NOT as the policies say:")
	for _, failure := range o.failures {
		fmt.Fprintln(&out, "  - "+failure)
	}
	return out.String()
}
