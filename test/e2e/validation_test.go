package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// dryRun sends a document to the API server as a dry run with strict field validation.
func (f *fixture) dryRun(doc []byte) error {
	f.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict(doc, &o.Object); err != nil {
		return err
	}
	if kind := o.GetKind(); kind != "NodeGroup" && kind != "NodePool" && kind != "YurtCoordinator" && kind != "Namespace" {
		o.SetNamespace(f.ns)
	}
	strict := client.FieldValidation(metav1.FieldValidationStrict)
	return f.client.Create(f.ctx, o, client.DryRunAll, strict)
}

// TestExamplesAreAccepted: every example can be applied unchanged, but those for Flux and Argo CD, whose kinds this cluster
// does not have (see test/kstatus).
func TestExamplesAreAccepted(t *testing.T) {
	f := newFixture(t)
	f.kindWorkflow() // examples/gangs has one
	err := filepath.WalkDir("../../examples", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err == nil && d.Name() == "gitops":
			return fs.SkipDir
		case err != nil || filepath.Ext(path) != ".yaml":
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, doc := range bytes.Split(raw, []byte("\n---\n")) {
			if err := f.dryRun(doc); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

const (
	propagation = "apiVersion: groupmanagement.kubeedge.io/v1alpha1\nkind: PropagationPolicy\nmetadata: {name: %s}\nspec: %s"
	override    = "apiVersion: groupmanagement.kubeedge.io/v1alpha1\nkind: OverridePolicy\nmetadata: {name: policy}\nspec: {overrideRules: [%s]}"
	nodeGroup   = "apiVersion: groupmanagement.kubeedge.io/v1alpha1\nkind: NodeGroup\nmetadata: {name: %s}\nspec: %s"
)

func weightsSpec(rule string) string { return "{staticWeightList: [" + rule + "]}" }

func image(o string) string { return fmt.Sprintf(override, "{imageOverrider: ["+o+"]}") }

// TestBadInputIsRefused: invalid documents are refused when they are applied, with a
// message that names field and error; valid ones are accepted.
func TestBadInputIsRefused(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat("x", 64)
	for name, tc := range map[string]struct {
		doc string
		// want is a part of the expected refusal; empty means that the document is
		// accepted.
		want string
	}{
		"a weight":                            {fmt.Sprintf(propagation, "p", weightsSpec("{nodeGroupNames: [a], weight: 1}")), ""},
		"a negative weight":                   {fmt.Sprintf(propagation, "p", weightsSpec("{nodeGroupNames: [a], weight: -1}")), "weight"},
		"a weight beyond bounds":              {fmt.Sprintf(propagation, "p", weightsSpec("{nodeGroupNames: [a], weight: 1000001}")), "weight"},
		"no group":                            {fmt.Sprintf(propagation, "p", weightsSpec("{nodeGroupNames: [], weight: 1}")), "nodeGroupNames"},
		"a group name that cannot be":         {fmt.Sprintf(propagation, "p", weightsSpec("{nodeGroupNames: ['a b'], weight: 1}")), "nodeGroupNames"},
		"a policy name of 64 characters":      {fmt.Sprintf(propagation, long, weightsSpec("{nodeGroupNames: [a], weight: 1}")), "at most 63 characters"},
		"no list at all":                      {fmt.Sprintf(propagation, "p", "{}"), "set staticWeightList or numRange"},
		"both lists and no strategy":          {fmt.Sprintf(propagation, "p", "{staticWeightList: [{nodeGroupNames: [a], weight: 1}], numRange: [{nodeGroupNames: [a]}]}"), "propagationStrategy"},
		"both lists and a strategy":           {fmt.Sprintf(propagation, "p", "{propagationStrategy: NumRange, staticWeightList: [{nodeGroupNames: [a], weight: 1}], numRange: [{nodeGroupNames: [a]}]}"), ""},
		"a strategy without its list":         {fmt.Sprintf(propagation, "p", "{propagationStrategy: NumRange, staticWeightList: [{nodeGroupNames: [a], weight: 1}]}"), "set numRange"},
		"a strategy that is none":             {fmt.Sprintf(propagation, "p", "{propagationStrategy: Guess, staticWeightList: [{nodeGroupNames: [a], weight: 1}]}"), "propagationStrategy"},
		"a range":                             {fmt.Sprintf(propagation, "p", "{numRange: [{nodeGroupNames: [a], min: 2, max: 4}, {nodeGroupNames: [b], min: 30%}]}"), ""},
		"a range that is upside down":         {fmt.Sprintf(propagation, "p", "{numRange: [{nodeGroupNames: [a], min: 4, max: 2}]}"), "min is greater than max"},
		"percentages that are upside down":    {fmt.Sprintf(propagation, "p", "{numRange: [{nodeGroupNames: [a], min: 40%, max: 20%}]}"), "min"},
		"a percentage above 100":              {fmt.Sprintf(propagation, "p", "{numRange: [{nodeGroupNames: [a], min: 101%}]}"), "percentage from 0% to 100%"},
		"a negative range":                    {fmt.Sprintf(propagation, "p", "{numRange: [{nodeGroupNames: [a], min: -1}]}"), "must be a number from 0"},
		"a mode that is none":                 {fmt.Sprintf(propagation, "p", "{rescheduling: {mode: Maybe}, numRange: [{nodeGroupNames: [a]}]}"), "mode"},
		"a field that is none":                {fmt.Sprintf(propagation, "p", "{weights: [], numRange: [{nodeGroupNames: [a]}]}"), "unknown field"},
		"an image rule":                       {image("{component: Registry, operator: replace, value: 'hz.io:5000'}"), ""},
		"a nested image rule":                 {fmt.Sprintf(override, "{overriders: {imageOverrider: [{component: Tag, operator: remove}]}}"), ""},
		"nested and inline overriders":        {fmt.Sprintf(override, "{overriders: {}, imageOverrider: [{component: Tag, operator: remove}]}"), "move them all to one place"},
		"a registry with a scheme":            {image("{component: Registry, operator: replace, value: 'https://hz.io'}"), "without scheme and path"},
		"a registry with a path":              {image("{component: Registry, operator: replace, value: 'hz.io/'}"), "without scheme and path"},
		"an empty registry":                   {image("{component: Registry, operator: replace, value: ''}"), "must not be empty"},
		"no value":                            {image("{component: Registry, operator: add}"), "must not be empty"},
		"no repository":                       {image("{component: Repository, operator: remove}"), "without a repository"},
		"a repository in upper case":          {image("{component: Repository, operator: replace, value: Nginx}"), "lower case"},
		"a repository that begins with /":     {image("{component: Repository, operator: replace, value: /nginx}"), "with one / between parts"},
		"a repository with nothing between /": {image("{component: Repository, operator: replace, value: a//b}"), "with one / between parts"},
		"a repository that begins with -":     {image("{component: Repository, operator: replace, value: -x}"), "dashes between letters or digits"},
		"a part that ends with -":             {image("{component: Repository, operator: add, value: edge-}"), "dashes between letters or digits"},
		"a part that begins with /":           {image("{component: Repository, operator: add, value: /edge}"), ""},
		"a host in upper case":                {image("{component: Registry, operator: replace, value: MyHost}"), "must be a host or host:port"},
		"a host with two dots":                {image("{component: Registry, operator: replace, value: hz..io}"), "must be a host or host:port"},
		"a port that is none, added":          {image("{component: Registry, operator: add, value: 'hz.io:'}"), "must be a part of a host"},
		"an IPv6 registry":                    {image("{component: Registry, operator: replace, value: '[fd00::1]:5000'}"), ""},
		"an IPv6 registry, added":             {image("{component: Registry, operator: add, value: '[fd00::1]:5000'}"), ""},
		"a plaintext of a label's bad value":  {fmt.Sprintf(override, "{plaintext: [{path: /metadata/labels/tier, operator: add, value: 'an edge'}]}"), "cannot be the value of a label"},
		"a plaintext of a bad key":            {fmt.Sprintf(override, "{plaintext: [{path: /metadata/annotations/a b, operator: add, value: x}]}"), "cannot be the key of an annotation"},
		"a plaintext of a Job's label":        {fmt.Sprintf(override, "{plaintext: [{path: /metadata/labels/job-name, operator: add, value: x}]}"), "a controller finds its pods by the label"},
		"a tag":                               {image("{component: Tag, operator: replace, value: ':v1'}"), ""},
		"a digest":                            {image("{component: Tag, operator: update, value: '@sha256:" + strings.Repeat("a", 64) + "'}"), ""},
		"a tag that is none":                  {image("{component: Tag, operator: replace, value: 'bad tag'}"), "must be a tag"},
		"a part of a tag":                     {image("{component: Tag, operator: add, value: '-alpine'}"), ""},
		"a part of a tag that is none":        {image("{component: Tag, operator: add, value: '/'}"), "part of a tag"},
		"a component that is none":            {image("{component: Name, operator: add, value: x}"), "component"},
		"an operator that is none":            {image("{component: Tag, operator: set, value: x}"), "operator"},
		"a predicate":                         {image("{predicate: {path: spec/template/spec/containers/0/image}, component: Tag, operator: remove}"), ""},
		"a predicate that points elsewhere":   {image("{predicate: {path: /metadata/name}, component: Tag, operator: remove}"), "path"},
		"a plaintext remove with a value":     {fmt.Sprintf(override, "{plaintext: [{path: /spec/hostname, operator: remove, value: 1}]}"), "value"},
		"a plaintext of the node's name":      {fmt.Sprintf(override, "{plaintext: [{path: /spec/nodeName, operator: replace, value: n}]}"), "nodeName"},
		"a plaintext of the service account":  {fmt.Sprintf(override, "{plaintext: [{path: /spec/serviceAccountName, operator: replace, value: n}]}"), "serviceAccountName"},
		"a group":                             {fmt.Sprintf(nodeGroup, "g", "{nodes: [a], matchLabels: {a: b}}"), ""},
		"a group without selection":           {fmt.Sprintf(nodeGroup, "g", "{}"), ""},
		"a group name of 64 characters":       {fmt.Sprintf(nodeGroup, long, "{nodes: [a]}"), "at most 63 characters"},
		"a label value that cannot be":        {fmt.Sprintf(nodeGroup, "g", "{matchLabels: {a: 'no value'}}"), "matchLabels"},
		"an operator without values":          {fmt.Sprintf(nodeGroup, "g", "{matchExpressions: [{key: a, operator: In}]}"), "matchExpressions"},
		"a selector on our own label":         {fmt.Sprintf(nodeGroup, "g", "{matchLabels: {groupmanagement.kubeedge.io/nodegroup: x}}"), "matchLabels"},
		"a failover":                          {fmt.Sprintf(propagation, "p", "{failover: {afterSeconds: 600}, numRange: [{nodeGroupNames: [a]}]}"), ""},
		"a failover without a time":           {fmt.Sprintf(propagation, "p", "{failover: {}, numRange: [{nodeGroupNames: [a]}]}"), "afterSeconds"},
		"a failover at once":                  {fmt.Sprintf(propagation, "p", "{failover: {afterSeconds: 0}, numRange: [{nodeGroupNames: [a]}]}"), "greater than or equal to 1"},
		"a failover after more than a week":   {fmt.Sprintf(propagation, "p", "{failover: {afterSeconds: 604801}, numRange: [{nodeGroupNames: [a]}]}"), "less than or equal to 604800"},
	} {
		t.Run(name, func(t *testing.T) {
			err := f.dryRun([]byte(tc.doc))
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && err == nil:
				t.Error("accepted")
			case tc.want != "" && !strings.Contains(err.Error(), tc.want):
				t.Errorf("the refusal does not say %q: %v", tc.want, err)
			case tc.want != "" && tc.want != "unknown field" && !apierrors.IsInvalid(err):
				t.Errorf("the refusal is not Invalid: %v", err)
			}
		})
	}
	t.Run("two faults in one object", func(t *testing.T) {
		err := f.dryRun([]byte(fmt.Sprintf(nodeGroup, "g", "{matchLabels: {a: 'no value'}, matchExpressions: [{key: a, operator: In}]}")))
		var status apierrors.APIStatus
		if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.Status().Details == nil {
			t.Fatalf("the refusal is not Invalid: %v", err)
		}
		var got []string
		for _, cause := range status.Status().Details.Causes {
			got = append(got, cause.Field)
		}
		if want := []string{"spec.matchLabels[a]", "spec.matchExpressions[0].values"}; !slices.Equal(got, want) {
			t.Errorf("causes name %q, want %q", got, want)
		}
	})
}

// TestManagerMayDoNoMoreThanItNeeds: atoll-manager runs as its ServiceAccount, which may
// neither delete pods nor read Secrets of others.
func TestManagerMayDoNoMoreThanItNeeds(t *testing.T) {
	f := newFixture(t)
	manager := "system:serviceaccount:" + atoll.Namespace + ":" + atoll.Manager
	for name, tc := range map[string]struct {
		attributes authorizationv1.ResourceAttributes
		want       bool
	}{
		"evict pods":           {authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: "create", Resource: "pods", Subresource: "eviction"}, true},
		"delete pods":          {authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: "delete", Resource: "pods"}, false},
		"update nodes":         {authorizationv1.ResourceAttributes{Verb: "update", Resource: "nodes"}, false},
		"read others' secrets": {authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: "get", Resource: "secrets"}, false},
		"list its own secrets": {authorizationv1.ResourceAttributes{Namespace: atoll.Namespace, Verb: "list", Resource: "secrets"}, false},
		"run in pods":          {authorizationv1.ResourceAttributes{Namespace: f.ns, Verb: "create", Resource: "pods", Subresource: "exec"}, false},
		"make others' roles":   {authorizationv1.ResourceAttributes{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}, false},
		"impersonate":          {authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users"}, false},
		"change other webhooks": {authorizationv1.ResourceAttributes{
			Verb: "patch", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations", Name: "somebody-else"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: manager, Groups: []string{"system:serviceaccounts", "system:authenticated"}, ResourceAttributes: &tc.attributes,
			}}
			if err := f.client.Create(f.ctx, review); err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed != tc.want {
				t.Errorf("allowed: %v, want %v (%s)", review.Status.Allowed, tc.want, review.Status.Reason)
			}
		})
	}
	lease, err := f.kube.CoordinationV1().Leases(atoll.Namespace).Get(f.ctx, atoll.Manager, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		t.Errorf("no replica of atoll-manager leads: %v", err)
	}
}
