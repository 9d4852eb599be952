package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// tokenLife is how long a token of a delegate is valid, and tokenLeft how much of that is left when the next one is
	// made.
	tokenLife, tokenLeft = 24 * time.Hour, 8 * time.Hour
	// tokenExpires, in the Secret with a token, is when it expires, and tokenAccount the UID of its ServiceAccount. The
	// Secret has nodeNames, too: the nodes that may have read it.
	tokenExpires, tokenAccount = "expires", "account"
	// readers ends the names of the Role and its binding by which nodes read the token. The name of a pool has no dot.
	readers = ".readers"
	// delegatesPolicy is the name of the ValidatingAdmissionPolicy that bounds all delegates, and of its binding.
	delegatesPolicy = "atoll-delegates"
)

// delegateOf returns what lets the hubs of a pool speak for it in the cloud: a ServiceAccount that may write the pulse
// of the pool, and what lets its nodes read the Secret with the token of that. delegated are the nodes of whose pods it may
// write statuses.
func delegateOf(pool string, nodes, delegated []string) (account *corev1.ServiceAccount, others []client.Object) {
	name := governance.Delegate(pool)
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: governance.Namespace, Name: name, Labels: map[string]string{nameLabel: nameValue}}
	}
	rule := func(verb, group, resource string, objects ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: objects}
	}
	role := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: named(name), Rules: rules}
	}
	binding := func(name string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: named(name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: subjects}
	}
	var whoReads []rbacv1.Subject
	for _, node := range nodes {
		whoReads = append(whoReads, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:node:" + node})
	}
	rules := []rbacv1.PolicyRule{rule("patch", coordinationv1.GroupName, "leases", governance.Pulse(pool))}
	// No such resources are served: a policy of the chart asks by them for which nodes the pool speaks.
	speaks := func(resource string, nodes []string) {
		if len(nodes) > 0 { // a rule without names is one for all
			rules = append(rules, rule("update", "atoll.dev", resource, nodes...))
		}
	}
	speaks("delegations", nodes)
	speaks("delegations/pods", delegated)
	account = &corev1.ServiceAccount{ObjectMeta: named(name), AutomountServiceAccountToken: ptr.To(false)}
	return account, []client.Object{
		role(name, rules...),
		binding(name, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: governance.Namespace, Name: name}),
		role(name+readers, rule("get", corev1.GroupName, "secrets", name)),
		binding(name+readers, whoReads...),
		&coordinationv1.Lease{ObjectMeta: named(governance.Pulse(pool))},
	}
}

// delegate writes what lets the hubs of the pool speak for it. Of a coordinator that is not deployed, it deletes that.
func (r *Reconciler) delegate(ctx context.Context, s *scope) error {
	if s.coordinator == nil || !s.isObserved {
		return nil
	}
	account, others := delegateOf(s.coordinator.Spec.NodePool, s.nodes, s.delegated())
	if !s.decision.IsDeployed {
		for _, o := range append(others, account) {
			if err := r.discard(ctx, s, o); err != nil {
				return err
			}
		}
		return r.remove(ctx, s, governance.Delegate(s.coordinator.Spec.NodePool))
	}
	for _, o := range append(others, account) {
		if err := r.ensure(ctx, s, o); err != nil {
			return err
		}
	}
	if err := r.isBounded(ctx); err != nil {
		return errors.Join(err, r.remove(ctx, s, governance.Delegate(s.coordinator.Spec.NodePool)))
	}
	return r.writeToken(ctx, s, account)
}

// isBounded returns an error unless the policy is there without which a delegate could speak for all nodes of the cluster.
func (r *Reconciler) isBounded(ctx context.Context) error {
	for _, o := range []client.Object{&admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}} {
		if err := r.Live.Get(ctx, client.ObjectKey{Name: delegatesPolicy}, o); err != nil {
			return fmt.Errorf("no pool gets a token without the policy %s of the chart: %w", delegatesPolicy, err)
		}
	}
	return nil
}

// ensure creates an object, or makes it as it should be. It has its UID then.
func (r *Reconciler) ensure(ctx context.Context, s *scope, wanted client.Object) error {
	wanted.SetOwnerReferences(ownerOf(s.coordinator))
	found, _ := wanted.DeepCopyObject().(client.Object)
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	switch {
	case apierrors.IsNotFound(err):
		err = r.Client.Create(ctx, wanted)
	case err == nil && (!says(found, wanted) || !equality.Semantic.DeepEqual(found.GetOwnerReferences(), wanted.GetOwnerReferences())):
		wanted.SetUID(found.GetUID())
		wanted.SetResourceVersion(found.GetResourceVersion())
		err = r.Client.Update(ctx, wanted)
	default:
		wanted.SetUID(found.GetUID())
	}
	if err != nil {
		return fmt.Errorf("writing %T %s: %w", wanted, client.ObjectKeyFromObject(wanted), err)
	}
	return nil
}

// says reports whether an object has the rules or the subjects of another one of its kind.
func says(found, wanted client.Object) bool {
	switch wanted := wanted.(type) {
	case *rbacv1.Role:
		found, is := found.(*rbacv1.Role)
		return is && equality.Semantic.DeepEqual(found.Rules, wanted.Rules)
	case *rbacv1.RoleBinding:
		found, is := found.(*rbacv1.RoleBinding)
		return is && equality.Semantic.DeepEqual(found.Subjects, wanted.Subjects)
	}
	return true
}

// discard deletes an object of the coordinator. Those of another one for the same pool stay.
func (r *Reconciler) discard(ctx context.Context, s *scope, o client.Object) error {
	key := client.ObjectKeyFromObject(o)
	err := r.Live.Get(ctx, key, o)
	if err == nil && equality.Semantic.DeepEqual(o.GetOwnerReferences(), ownerOf(s.coordinator)) {
		err = r.Client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %T %s: %w", o, key, err)
	}
	return nil
}

// writeToken writes the Secret with a token of the delegate. The token is bound to the Secret: when a node that may have
// read it leaves the pool, the Secret is made anew, and the token is worth nothing any more.
func (r *Reconciler) writeToken(ctx context.Context, s *scope, account *corev1.ServiceAccount) error {
	name, now := governance.Delegate(s.coordinator.Spec.NodePool), r.Clock.Now()
	secret, err := r.secret(ctx, name)
	if err != nil {
		return err
	}
	for _, node := range strings.Fields(string(secret.Data[nodeNames])) {
		if secret.UID == "" || slices.Contains(s.nodes, node) {
			continue
		}
		if err := r.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Secret %s/%s: %w", governance.Namespace, name, err)
		}
		if secret, err = r.secret(ctx, name); err != nil {
			return err
		}
		break
	}
	data := maps.Clone(secret.Data)
	if data == nil {
		data = map[string][]byte{}
	}
	data[nodeNames] = []byte(strings.Join(s.nodes, "\n"))
	if err := r.write(ctx, s, secret, data); err != nil { // before the token, so that nobody has it who is not noted
		return err
	}
	expires, err := time.Parse(time.RFC3339, string(data[tokenExpires]))
	if err == nil && now.Add(tokenLeft).Before(expires) && string(data[tokenAccount]) == string(account.UID) && len(data[governance.TokenField]) > 0 {
		return nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(tokenLife.Seconds())),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: name, UID: secret.UID},
	}}
	if err := r.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return fmt.Errorf("requesting a token of ServiceAccount %s/%s: %w", governance.Namespace, name, err)
	}
	data = maps.Clone(data)
	data[governance.TokenField], data[tokenAccount] = []byte(request.Status.Token), []byte(account.UID)
	data[tokenExpires] = []byte(request.Status.ExpirationTimestamp.UTC().Format(time.RFC3339))
	return r.write(ctx, s, secret, data)
}
