package nodes

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// hubStatus is what a hub says of the coordinator.
type hubStatus struct {
	Coordinator *struct {
		Address, Reason  string
		Leads            bool
		Waiting, Refused int
	}
	Access *struct{ Address string }
}

func (r *poolRig) hub(node string) (s hubStatus, err error) {
	out, err := r.get(node, "http://127.0.0.1:10267/status")
	if err == nil {
		err = json.Unmarshal([]byte(out), &s)
	}
	return s, err
}

// upToDate returns nil if the hub of a node has told the coordinator at an address all that it should; "" is any.
func (r *poolRig) upToDate(node, address string) error {
	s, err := r.hub(node)
	if err != nil {
		return err
	}
	if c := s.Coordinator; c == nil || c.Reason != "" || c.Waiting+c.Refused > 0 || address != "" && c.Address != address+":10271" {
		return fmt.Errorf("the hub of %s says %+v, want %s", node, c, address)
	}
	return nil
}

// goOver waits until these hubs use the coordinator at its address, and fails the test if one was started again.
func (r *poolRig) goOver(began map[string]string, nodes ...string) {
	r.Helper()
	address := r.address()
	for _, node := range nodes {
		r.eventually("the hub of "+node+" goes over to the coordinator at "+address, func() error { return r.upToDate(node, address) })
	}
	for node, was := range began {
		if is := r.hubBegan(node); is != was {
			r.Errorf("the hub of %s was started again: %s, and before %s", node, is, was)
		}
	}
}

// hubsBegan returns when the hubs were started.
func (r *poolRig) hubsBegan() map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, node := range poolNodes {
		all[node] = r.hubBegan(node)
	}
	return all
}

func (r *poolRig) hubBegan(node string) string {
	r.Helper()
	out, err := r.get(node, "http://127.0.0.1:10267/metrics")
	if err != nil {
		r.Fatal(err)
	}
	_, at, found := strings.Cut(out, "\nprocess_start_time_seconds ")
	if !found {
		r.Fatal("the hub does not say when it was started")
	}
	at, _, _ = strings.Cut(at, "\n")
	return at
}

// address returns that of the coordinator's node.
func (r *poolRig) address() string {
	r.Helper()
	c, err := r.coordinator()
	if err != nil {
		r.Fatal(err)
	}
	return c.Status.Addresses[0]
}

// keptKubeconfig copies people's kubeconfig as it is now, as people do.
func (r *poolRig) keptKubeconfig() string {
	r.Helper()
	text, err := os.ReadFile(r.kubeconfig)
	path := filepath.Join(r.T.TempDir(), "kept.kubeconfig")
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		r.Fatal(err)
	}
	return path
}

// with returns the rig of people who have another kubeconfig.
func (r *poolRig) with(kubeconfig string) *poolRig {
	one := *r
	one.kubeconfig = kubeconfig
	return &one
}

// others are the nodes of the pool but one.
func others(node string) []string {
	return slices.DeleteFunc(slices.Clone(poolNodes), func(n string) bool { return n == node })
}

func (r *poolRig) pool(isCut bool, node string) {
	r.Helper()
	if err := r.SetLeg(r.Context(), node, devcluster.Pool, devcluster.LegState{Cut: isCut}); err != nil {
		r.Fatal(err)
	}
}

// leader returns the node whose hub says that it leads, of some; "" if none does.
func (r *poolRig) leader(of ...string) string {
	for _, node := range of {
		if s, err := r.hub(node); err == nil && s.Coordinator != nil && s.Coordinator.Leads {
			return node
		}
	}
	return ""
}

// testPoolLeg: the hub that leads, of another node than the coordinator's, does not reach its pool. Another one leads,
// and at no time both. People use logs and exec of all nodes but that one.
func (r *poolRig) testPoolLeg() {
	leader := ""
	followers := others(r.on)
	if err := r.KillOn(r.Context(), r.on, atoll.Hub); err != nil {
		r.Fatal(err)
	}
	r.eventually("the hub of another node leads", func() error {
		if leader = r.leader(followers...); leader == "" {
			return errors.New("nobody does")
		}
		return nil
	})
	if err := r.RestartOn(r.Context(), r.on, atoll.Hub); err != nil {
		r.Fatal(err)
	}
	for _, node := range poolNodes {
		r.eventually("the hub of "+node+" is up to date", func() error { return r.upToDate(node, "") })
	}
	rest, next := others(leader), ""
	began := time.Now()
	r.pool(true, leader)
	r.eventually("another hub leads", func() error {
		if next = r.leader(rest...); next == "" {
			return errors.New("nobody does")
		}
		return nil
	})
	// It was asked later, and cannot lead anew: if it leads now, both do.
	if r.leader(leader) != "" {
		r.Errorf("the hubs of %s and %s lead", leader, next)
	}
	r.Logf("the hub of %s, which led, does not reach its pool; that of %s leads after %s", leader, next, time.Since(began).Round(100*time.Millisecond))
	for what, args := range map[string][]string{"logs": {"logs", "web-" + leader}, "exec": {"exec", "web-" + leader, "--", "/pause", "get", "http://127.0.0.1:8080"}} {
		if out, err := r.people(r.on, args...); err == nil || !strings.Contains(err.Error(), ":10262") {
			r.Errorf("%s of a node that is not reached: %s, %v; want the hub that is not reached", what, out, err)
		} else {
			r.Logf("%s says %v", what, err)
		}
	}
	for _, node := range rest {
		r.use("while "+leader+" is not reached,", r.on, node)
	}
	if s, err := r.hub(leader); err != nil || s.Coordinator == nil || s.Coordinator.Reason == "" {
		r.Errorf("the hub of %s does not tell that it reaches no coordinator: %+v, %v", leader, s.Coordinator, err)
	}
	r.pool(false, leader)
	r.eventually("the hub of "+leader+" is up to date again", func() error { return r.upToDate(leader, "") })
	r.use("reached again,", r.on, leader)
	for _, node := range poolNodes {
		if one := r.leader(node); one != "" && one != next {
			r.Errorf("the hub of %s leads, and that of %s was there", one, next)
		}
	}
	r.sees(r.on, poolNodes...)
}

// testDrained: the coordinator moves at once. People fetch another kubeconfig, and hubs go over without a restart.
func (r *poolRig) testDrained() {
	drained, began := r.on, r.hubsBegan()
	r.kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=3m")
	r.isReady(drained)
	address := r.address()
	text, err := os.ReadFile(r.kubeconfig)
	if err != nil || !strings.Contains(string(text), "https://"+address+":10270") {
		r.Errorf("people's kubeconfig is not for %s, %v", address, err)
	}
	r.eventually("its certificate is for the address of its node", func() error {
		_, err := r.people(r.on, "--tls-server-name="+address, "get", "nodes")
		return err
	})
	r.goOver(began, poolNodes...)
	r.sees(drained, others(drained)...)
	r.kubectl("uncordon", drained)
	r.createWeb(drained)
	r.sees(r.on, poolNodes...)
	r.use("moved,", drained, r.on)
}

// testCutNode: only the coordinator's node has no cloud, which starts another one. The old one goes on for its own node
// until the link is back, and goes then.
func (r *poolRig) testCutNode() {
	cut, before, began := r.on, r.with(r.keptKubeconfig()), r.hubsBegan()
	r.cut(true, cut)
	r.isReady(cut)
	rest := others(cut)
	r.sees(r.on, rest...)
	r.goOver(began, rest...)
	for _, node := range rest {
		r.use("at the new one,", r.on, node)
	}
	before.sees(cut, poolNodes...)
	before.use("at the old one,", cut, cut)
	r.eventually("the hub of the node that is cut off goes over too: at the old one no hub has the cloud", func() error { return r.upToDate(cut, r.address()) })
	r.kubectl("label", "pod", "web-"+rest[0], "split=yes", "--overwrite")
	r.eventually("people at the new one see what changes", func() error {
		out, err := r.people(r.on, "get", "pod", "web-"+rest[0], "--show-labels")
		if err == nil && !strings.Contains(out, "split=yes") {
			err = errors.New(out)
		}
		return err
	})
	r.cut(false, cut)
	at := time.Now()
	r.eventually("the old one goes", func() error {
		for _, node := range rest {
			if out, err := r.people(r.on, "get", "pod", "web-"+node); err != nil {
				r.Errorf("meanwhile the new one loses what it had: %s, %v", out, err)
			}
		}
		if out, err := before.people(cut, "--request-timeout=5s", "get", "nodes"); err == nil {
			return errors.New("it answers " + out)
		}
		return nil
	})
	r.Logf("the old one is gone %s after its node is back", time.Since(at).Round(100*time.Millisecond))
	r.goOver(began, poolNodes...)
	r.eventually("the node "+cut+" is back", r.ready(cut, corev1.ConditionTrue))
	r.sees(cut, poolNodes...)
	var pods corev1.PodList
	r.eventually("there is one pod of the coordinator", func() error {
		if err := r.client.List(r.Context(), &pods, client.InNamespace("atoll-pools")); err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("there are %d, %w", len(pods.Items), err)
		}
		return nil
	})
}

// testOtherPool: a node moves by its label. What is of it goes from the coordinator, and comes back with it.
func (r *poolRig) testOtherPool() {
	moved := r.other()
	r.create(&apps.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	r.create(&apps.YurtCoordinator{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: apps.YurtCoordinatorSpec{NodePool: "other"}})
	r.kubectl("label", "node", moved, apps.NodePoolLabel+"=other", "--overwrite")
	r.eventually("what is of the node goes", func() error {
		out, err := r.people(r.on, "get", "nodes,pods", "-A")
		if err == nil && strings.Contains(out, moved) {
			err = errors.New(out)
		}
		return err
	})
	r.eventually("its hub knows of no coordinator, and serves none", func() error {
		s, err := r.hub(moved)
		if err == nil && (s.Coordinator != nil || s.Access != nil && s.Access.Address != "") {
			err = fmt.Errorf("it says %+v, %+v", s.Coordinator, s.Access)
		}
		return err
	})
	r.eventually("a pool of one node has no coordinator", r.pending("other", apps.ReasonFewNodes))
	r.sees(r.on, others(moved)...)
	if out := r.kubectl("get", "nodes", moved); !strings.Contains(out, " Ready") {
		r.Errorf("the node is %s", out)
	}
	r.kubectl("label", "node", moved, apps.NodePoolLabel+"=edge", "--overwrite")
	r.sees(r.on, poolNodes...)
	r.use("back in its pool,", r.on, moved)
	r.kubectl("delete", "yurtcoordinator,nodepool", "other")
}

// testRights: in the cloud, atoll-manager and the nodes do what the chart lets them do for coordinators, and no more.
func (r *poolRig) testRights() {
	manager := []string{"--as=system:serviceaccount:" + atoll.Namespace + ":atoll-manager", "--as-group=system:serviceaccounts", "--as-group=system:authenticated"}
	node := func(name string) []string {
		return []string{"--as=system:node:" + name, "--as-group=system:nodes", "--as-group=system:authenticated"}
	}
	from, request := r.other(), filepath.Join(r.Dir(), "request.yaml") // kubectl divides names at commas
	if err := os.WriteFile(request, fmt.Appendf(nil, "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: foreign}\n"+
		"spec: {signerName: kubernetes.io/kube-apiserver-client, usages: [client auth], request: %s}\n", certificateRequest(r.T)), 0o600); err != nil {
		r.Fatal(err)
	}
	r.kubectl("create", "-f", request)
	defer r.kubectl("delete", "csr", "foreign")
	for what, tc := range map[string]struct {
		as, args []string
		may      bool
	}{
		"the manager reads the CA of a pool":                    {manager, []string{"get", "secret", "-n", "atoll-pools", "ca-edge"}, true},
		"the manager lists Secrets of pools":                    {manager, []string{"get", "secrets", "-n", "atoll-pools"}, false},
		"the manager reads Secrets of others":                   {manager, []string{"get", "secrets", "-n", "kube-system"}, false},
		"the manager reads all Secrets":                         {manager, []string{"get", "secrets", "-A"}, false},
		"the manager approves a client of the API server":       {manager, []string{"certificate", "approve", "foreign"}, false},
		"the manager uses exec in the coordinator":              {manager, []string{"exec", "-n", "atoll-pools", r.podOfCoordinator().Name, "-c", "writer", "--", "/atoll-coordinator"}, false},
		"the manager makes pods":                                {manager, []string{"run", "x", "-n", "atoll-pools", "--image=x"}, false},
		"the manager gives rights":                              {manager, []string{"create", "clusterrolebinding", "x", "--clusterrole=cluster-admin", "--user=x"}, false},
		"the manager makes tokens":                              {manager, []string{"create", "token", "default", "-n", "kube-system"}, false},
		"a node reads YurtCoordinators":                         {node(from), []string{"get", "yurtcoordinators"}, true},
		"a node reads Namespaces":                               {node(from), []string{"get", "namespaces"}, true},
		"a node reads EndpointSlices":                           {node(from), []string{"get", "endpointslices", "-A"}, true},
		"a node changes a YurtCoordinator":                      {node(from), []string{"annotate", "yurtcoordinator", "edge", "a=b"}, false},
		"a node changes the status of a YurtCoordinator":        {node(from), []string{"patch", "yurtcoordinator", "edge", "--subresource=status", "--type=merge", "-p", `{"status":{"nodeName":"x"}}`}, false},
		"a node changes Namespaces":                             {node(from), []string{"label", "namespace", "default", "a=b"}, false},
		"a node changes its pool":                               {node(from), []string{"patch", "nodepool", "edge", "--type=merge", "-p", `{"metadata":{"labels":{"a":"b"}}}`}, false},
		"a node approves a request":                             {node(from), []string{"certificate", "approve", "foreign"}, false},
		"a node reads the CA of its pool":                       {node(from), []string{"get", "secret", "-n", "atoll-pools", "ca-edge"}, false},
		"a node reads people's kubeconfig":                      {node(from), []string{"get", "secret", "-n", "atoll-pools", "kubeconfig-edge"}, false},
		"a node reads what the coordinator of another node has": {node(from), []string{"get", "secret", "-n", "atoll-pools", "coordinator-edge"}, false},
		"a node reads what its own coordinator has":             {node(r.on), []string{"get", "secret", "-n", "atoll-pools", "coordinator-edge"}, true},
		"a node lists the Secrets of pools":                     {node(r.on), []string{"get", "secrets", "-n", "atoll-pools"}, false},
	} {
		out, err := r.tryKubectl(append(slices.Clone(tc.as), tc.args...)...)
		if tc.may && err != nil || !tc.may && (err == nil || !strings.Contains(err.Error(), "orbidden") && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy")) {
			r.Errorf("%s: %s, %v; want that it may: %t", what, out, err, tc.may)
		}
	}
}

// certificateRequest returns a request for a certificate, as a CertificateSigningRequest has it.
func certificateRequest(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", Organization: []string{"system:authenticated"}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
}
