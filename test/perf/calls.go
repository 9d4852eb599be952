package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The kinds of calls of atoll-manager that are counted.
const (
	podGroupCalls, patchCalls, listCalls, readCalls = "podgroups", "patches", "lists", "reads"
	// otherCalls are all other calls, except those that are not counted.
	otherCalls, uncounted = "others", "uncounted"
)

// callCounts are the numbers of requests to the API server, by kind.
type callCounts map[string]int

// since returns the difference to an earlier count.
func (c callCounts) since(before callCounts) callCounts {
	out := callCounts{}
	for what, n := range c {
		out[what] = n - before[what]
	}
	return out
}

func (c callCounts) sum() int {
	n := 0
	for _, of := range c {
		n += of
	}
	return n
}

func (c callCounts) String() string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		if c[what] != 0 {
			out = append(out, fmt.Sprintf("%s %d", what, c[what]))
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// callSchema is the prefix of the names of the FlowSchemas that count calls.
const callSchema = "perf-calls-"

// countCalls makes the API server count the calls of a ServiceAccount, with one
// FlowSchema, which has a counter, for each kind of call. They have the default priority
// of ServiceAccounts. A proxy could count too, but it would change the measured time.
func (b *bed) countCalls(ctx context.Context, accountNamespace, account string) error {
	resources := func(group, resource string, verbs ...string) flowcontrolv1.ResourcePolicyRule {
		return flowcontrolv1.ResourcePolicyRule{
			Verbs: verbs, APIGroups: []string{group}, Resources: []string{resource},
			Namespaces: []string{flowcontrolv1.NamespaceEvery}, ClusterScope: true,
		}
	}
	const every = flowcontrolv1.ResourceAll
	for i, of := range []struct {
		what  string
		rules []flowcontrolv1.ResourcePolicyRule
	}{ // the first FlowSchema that matches counts the call
		{uncounted, []flowcontrolv1.ResourcePolicyRule{
			resources(every, every, "watch"), resources("coordination.k8s.io", every, every), resources("authorization.k8s.io", every, every), resources("authentication.k8s.io", every, every),
			resources("", "secrets", every), resources("admissionregistration.k8s.io", every, every),
		}},
		{podGroupCalls, []flowcontrolv1.ResourcePolicyRule{resources("scheduling.volcano.sh", "podgroups", "create")}},
		{patchCalls, []flowcontrolv1.ResourcePolicyRule{resources("", "pods", "patch")}},
		{listCalls, []flowcontrolv1.ResourcePolicyRule{resources("", "pods", "list")}},
		{readCalls, []flowcontrolv1.ResourcePolicyRule{resources("apps", every, "get")}},
		{otherCalls, []flowcontrolv1.ResourcePolicyRule{resources(every, every, every)}},
	} {
		schema := &flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: callSchema + of.what},
			Spec: flowcontrolv1.FlowSchemaSpec{
				MatchingPrecedence:         int32(10 + i),
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
				DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects: []flowcontrolv1.Subject{{
						Kind: rbacv1.ServiceAccountKind, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: accountNamespace, Name: account},
					}},
					ResourceRules: of.rules,
				}},
			},
		}
		if _, err := b.client.FlowcontrolV1().FlowSchemas().Create(ctx, schema, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("counting calls: creating FlowSchema %q: %w", schema.Name, err)
		}
	}
	// Its Lease is renewed all the time: when these renewals are counted, the FlowSchemas
	// are in effect.
	return b.eventually(ctx, "calls to be counted", func(ctx context.Context) (bool, error) {
		data, err := b.metrics(ctx)
		if err != nil {
			return false, err
		}
		return callsIn(data)[uncounted] > 0, nil
	})
}

// calls returns the calls that were counted up to now.
func (b *bed) calls(ctx context.Context) (callCounts, error) {
	data, err := b.metrics(ctx)
	if err != nil {
		return nil, err
	}
	c := callsIn(data)
	delete(c, uncounted)
	return c, nil
}

// metrics returns the metrics of the API server.
func (b *bed) metrics(ctx context.Context) (string, error) {
	data, err := b.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the metrics of the API server: %w", err)
	}
	return string(data), nil
}

// callsIn reads the counted calls from the API server's metrics.
func callsIn(metrics string) callCounts {
	c := callCounts{}
	for line := range strings.Lines(metrics) {
		rest, ok := strings.CutPrefix(line, `apiserver_flowcontrol_dispatched_requests_total{flow_schema="`+callSchema)
		if !ok {
			continue
		}
		what, rest, _ := strings.Cut(rest, `"`)
		_, value, _ := strings.Cut(rest, "} ")
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			c[what] += int(n)
		}
	}
	return c
}
