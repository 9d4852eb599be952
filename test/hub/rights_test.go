package hub

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// wayToTheCloud is in the answer to who tries a change that the policy refuses.
const wayToTheCloud = "Make them at the cloud's API server"

// served is a resource of an API server.
type served struct {
	metav1.APIResource

	in schema.GroupVersion
}

func (s *served) key() string {
	return strings.TrimPrefix(s.in.Group+"/"+s.Name, "/")
}

// path returns that of a collection, or of an object.
func (s *served) path(namespace, name string) string {
	path := "/apis/" + s.in.String()
	if s.in.Group == "" {
		path = "/api/" + s.in.Version
	}
	resource, sub, _ := strings.Cut(s.Name, "/")
	if s.Namespaced {
		path += "/namespaces/" + namespace
	}
	path += "/" + resource
	if name != "" {
		path += "/" + name
	}
	if sub != "" {
		path += "/" + sub
	}
	return path
}

// asker sends requests with a certificate, or with none.
type asker struct {
	*http.Client

	server string
}

func (c *coordinator) asker(server, name string, pair *certs.Pair) *asker {
	c.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca.Cert)
	config := &tls.Config{RootCAs: roots, ServerName: name}
	if pair != nil {
		own, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			c.Fatal(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}, Timeout: time.Minute}
	c.Cleanup(client.CloseIdleConnections)
	return &asker{client, "https://" + server}
}

// ask sends a request. Of a watch only the head of the answer is read; code is 0 if there is no connection.
func (a *asker) ask(ctx context.Context, method, path string, body any) (code int, answer string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return 0, err.Error()
	}
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(text))
	if err != nil {
		return 0, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := a.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	if strings.Contains(path, "watch=1") && response.StatusCode == http.StatusOK {
		return response.StatusCode, ""
	}
	all, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(all)
}

// issued returns a certificate of a CA.
func (c *coordinator) issued(ca certs.Pair, user string, groups ...string) *certs.Pair {
	c.Helper()
	pair, err := certs.Issue(ca, certs.Leaf{CommonName: user, Groups: groups}, time.Now())
	if err != nil {
		c.Fatal(err)
	}
	return &pair
}

// ofFile returns the certificate of a kubeconfig.
func (c *coordinator) ofFile(path string) *certs.Pair {
	c.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		c.Fatal(err)
	}
	return &certs.Pair{Cert: config.CertData, Key: config.KeyData}
}

// everything returns all resources that the API server of the coordinator serves, each in one version, and an object of
// each of which there are any.
func (r *poolRig) everything() (all []*served, examples map[string]*unstructured.Unstructured) {
	r.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", r.coordinator.kubeconfig("root", "system:masters"))
	if err != nil {
		r.Fatal(err)
	}
	config.QPS = -1
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		r.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		r.Fatal(err)
	}
	groups, err := client.ServerGroups()
	if err != nil {
		r.Fatal(err)
	}
	examples = map[string]*unstructured.Unstructured{}
	for _, group := range groups.Groups {
		list, err := client.ServerResourcesForGroupVersion(group.PreferredVersion.GroupVersion)
		if err != nil {
			r.Fatal(err)
		}
		of, err := schema.ParseGroupVersion(group.PreferredVersion.GroupVersion)
		if err != nil {
			r.Fatal(err)
		}
		for _, resource := range list.APIResources {
			s := &served{resource, of}
			all = append(all, s)
			if !slices.Contains(resource.Verbs, "list") || of.Group == "metrics.k8s.io" {
				continue
			}
			found, err := objects.Resource(of.WithResource(resource.Name)).List(r.Context(), metav1.ListOptions{Limit: 1})
			if err != nil {
				r.Fatal(err)
			}
			if len(found.Items) > 0 {
				examples[s.key()] = &found.Items[0]
			}
		}
	}
	return all, examples
}

// methods are those of HTTP for verbs; others have none of their own.
var methods = map[string]string{
	"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE",
}

// tried is what an identity is answered that tries a verb on a resource.
type tried struct {
	verb, resource string
	code           int
	answer         string
}

func (t *tried) isRefused() bool {
	return t.code == 0 || t.code == http.StatusUnauthorized || t.code == http.StatusForbidden
}

// isChange reports whether something was changed, or would have been.
func (t *tried) isChange() bool {
	if methods[t.verb] == "GET" || t.code/100 != 2 {
		return false
	}
	if t.verb == "deletecollection" {
		var list unstructured.UnstructuredList
		return json.Unmarshal([]byte(t.answer), &list) != nil || len(list.Items) > 0
	}
	return true
}

// deleteNothing is the body of a deletion in a dry run: with a body the API server does not look at the query.
var deleteNothing = map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": []string{"All"}}

// tries sends a request for each verb of each resource. Nothing is stored, whatever is allowed.
func (r *poolRig) tries(as *asker, all []*served, examples map[string]*unstructured.Unstructured) (got []tried) {
	r.Helper()
	for _, s := range all {
		resource, sub, _ := strings.Cut(s.Name, "/")
		parent := strings.TrimPrefix(s.in.Group+"/"+resource, "/")
		example, name, within := examples[parent], "none", "default"
		if slices.Contains([]string{"log", "exec", "attach", "portforward", "proxy"}, sub) {
			example = nil // nobody waits for a node: rights are looked at before that
		}
		if example != nil {
			name, within = example.GetName(), example.GetNamespace()
		}
		body := map[string]any{"metadata": map[string]any{"name": name}}
		if example != nil && sub == "" {
			body = example.DeepCopy().Object
		}
		gvk := s.in.WithKind(s.Kind)
		if s.Group != "" {
			gvk = schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind}
		}
		body["apiVersion"], body["kind"] = gvk.GroupVersion().String(), gvk.Kind
		for _, verb := range s.Verbs {
			path, sent := s.path(within, name), body
			switch verb {
			case "list":
				path = s.path(within, "") + "?limit=1"
			case "watch":
				path = s.path(within, "") + "?watch=1"
			case "deletecollection":
				path, sent = s.path(within, ""), deleteNothing
			case "create":
				if sub == "" {
					path = s.path(within, "")
				}
				path += "?dryRun=All"
				if copied := (&unstructured.Unstructured{Object: body}).DeepCopy(); example != nil && sub == "" {
					copied.SetName(name + "-2")
					copied.SetUID("")
					copied.SetResourceVersion("")
					unstructured.RemoveNestedField(copied.Object, "spec", "clusterIP")
					unstructured.RemoveNestedField(copied.Object, "spec", "clusterIPs")
					sent = copied.Object
				}
			case "patch":
				path, sent = path+"?dryRun=All", map[string]any{"metadata": map[string]any{"labels": map[string]any{"tried": "yes"}}}
			case "update":
				path += "?dryRun=All"
				if example != nil && sub == "" { // whatever has changed meanwhile
					unstructured.RemoveNestedField(body, "metadata", "resourceVersion")
				}
			case "delete":
				sent = deleteNothing
			}
			if methods[verb] == "GET" {
				sent = nil
			}
			code, answer := as.ask(r.Context(), methods[verb], path, sent)
			got = append(got, tried{verb, s.key(), code, answer})
		}
	}
	return got
}

// peopleRead are the resources that people read, as docs/pools.md says, and peopleUse those by which they act.
var (
	peopleRead = []string{"nodes", "pods", "pods/status", "serviceaccounts", "configmaps", "events", "namespaces", "services", "coordination.k8s.io/leases", "discovery.k8s.io/endpointslices", "apps.openyurt.io/nodepools", "metrics.k8s.io/nodes", "metrics.k8s.io/pods"}
	peopleUse  = []string{"get pods/log", "get pods/exec", "create pods/exec", "get pods/attach", "create pods/attach", "get pods/portforward", "create pods/portforward"}
	// peopleWrite are further resources by which people change something, and are told where to do that.
	peopleWrite = []string{"pods/ephemeralcontainers"}
	// reviews store nothing, and everybody with a certificate of the pool may ask for them.
	reviews = []string{
		"create authentication.k8s.io/selfsubjectreviews", "create authorization.k8s.io/selfsubjectaccessreviews", "create authorization.k8s.io/selfsubjectrulesreviews",
	}
)

// testRights: each identity tries each verb on each resource at the API server of the coordinator.
func (r *poolRig) testRights() {
	c := r.coordinator
	all, examples := r.everything()
	if len(all) < 60 || len(examples) < 8 {
		r.Fatalf("the API server serves %d resources, and has objects of %v", len(all), slices.Sorted(maps.Keys(examples)))
	}
	otherPool, err := certs.NewCA(time.Now())
	if err != nil {
		r.Fatal(err)
	}
	node, err := r.Kubeconfig(r.Context(), "system:node:"+nodeName, "system:nodes")
	if err != nil {
		r.Fatal(err)
	}
	cloudAdmin := r.KubeconfigPath()
	people := map[string]bool{}
	for _, resource := range peopleRead {
		for _, verb := range []string{"get", "list", "watch"} {
			people[verb+" "+resource] = true
		}
	}
	for _, use := range append(slices.Clone(peopleUse), append(slices.Clone(reviews), "get pods/ephemeralcontainers")...) {
		people[use] = true
	}
	asked := map[string]bool{}
	for _, review := range reviews {
		asked[review] = true
	}
	for name, tc := range map[string]struct {
		pair    *certs.Pair
		allowed map[string]bool
		// refused is the code of a refusal.
		refused int
	}{
		"a person":                 {c.issued(c.ca, "alice", governance.PeopleGroup), people, 403},
		"the API server of a pool": {c.issued(c.ca, "atoll:coordinator-edge", governance.APIServerGroup), asked, 403},
		"a certificate of the pool without a group": {c.issued(c.ca, "mallory"), asked, 403},
		"a node's name by the pool's CA":            {c.issued(c.ca, "system:node:"+nodeName, "system:nodes"), asked, 403},
		"a hub":                                     {c.ofFile(node), nil, 401},
		"an administrator of the cloud":             {c.ofFile(cloudAdmin), nil, 401},
		"a person of another pool":                  {c.issued(otherPool, "alice", governance.PeopleGroup), nil, 401},
		"nobody":                                    {nil, nil, 401},
	} {
		r.Run(name, func(t *testing.T) {
			got := r.tries(c.asker(c.server, "127.0.0.1", tc.pair), all, examples)
			for _, one := range got {
				what := one.verb + " " + one.resource
				switch {
				case one.isChange() && !tc.allowed[what]:
					t.Errorf("%s changes something: %d %s", what, one.code, short(one.answer))
				case tc.allowed[what] && one.isRefused():
					t.Errorf("%s is refused: %d %s", what, one.code, short(one.answer))
				case !tc.allowed[what] && tc.refused == 401 && one.code != 401:
					t.Errorf("%s is answered %d %s", what, one.code, short(one.answer))
				case !tc.allowed[what] && !one.isRefused() && !r.isTold(&one):
					t.Errorf("%s is not refused: %d %s", what, one.code, short(one.answer))
				}
			}
			t.Logf("%d requests", len(got))
		})
	}
	r.Run("system:masters of the pool's CA", func(t *testing.T) {
		refused := map[string]bool{}
		for _, one := range r.tries(c.asker(c.server, "127.0.0.1", c.issued(c.ca, "root", "system:masters")), all, examples) {
			what, group := one.verb+" "+one.resource, strings.Split(one.resource, "/")[0]
			isReview := group == "authentication.k8s.io" || group == "authorization.k8s.io"
			if one.isChange() && !isReview && group != "admissionregistration.k8s.io" { // an API server has no policy for policies: the writer puts them back
				t.Errorf("%s changes something: %d %s", what, one.code, short(one.answer))
			}
			if one.code == http.StatusForbidden && strings.Contains(one.answer, wayToTheCloud) {
				refused[what] = true
			}
		}
		for _, resource := range []string{"nodes", "pods", "services", "configmaps", "coordination.k8s.io/leases", "rbac.authorization.k8s.io/clusterroles"} {
			for _, verb := range []string{"create", "update", "patch", "delete"} {
				isVersionNeeded := verb == "update" && strings.HasPrefix(resource, "coordination")
				if !refused[verb+" "+resource] && !isVersionNeeded {
					t.Errorf("who tries %s %s is not told where to do it", verb, resource)
				}
			}
		}
		t.Logf("the policy refuses %v", slices.Sorted(maps.Keys(refused)))
	})
	r.Run("nobody asks for health only", func(t *testing.T) {
		for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthz": 401, "/version": 401, "/metrics": 401, "/api": 401, "/openapi/v2": 401, "/livez/ping": 401, "/debug/pprof/": 401} {
			if code, answer := c.asker(c.server, "127.0.0.1", nil).ask(r.Context(), "GET", path, nil); code != want {
				t.Errorf("%s is answered %d %s, want %d", path, code, short(answer), want)
			}
		}
	})
	r.Run("a person asks for what is no resource", func(t *testing.T) {
		alice := c.asker(c.server, "127.0.0.1", c.issued(c.ca, "alice", governance.PeopleGroup))
		for path, want := range map[string]int{"/version": 200, "/api": 200, "/openapi/v2": 200, "/metrics": 403, "/debug/pprof/": 403, "/logs/": 403, "/configz": 403} {
			if code, answer := alice.ask(r.Context(), "GET", path, nil); code != want {
				t.Errorf("%s is answered %d %s, want %d", path, code, short(answer), want)
			}
		}
	})
	r.podsAreTheSame()
	r.nodeIsTheSame()
}

// isTold reports whether somebody who may see a resource, and tries to change it, is told what is wrong with their
// request, or that there is nothing.
func (r *poolRig) isTold(one *tried) bool {
	return methods[one.verb] != "GET" && !one.isChange() && (slices.Contains(peopleRead, one.resource) || slices.Contains(peopleWrite, one.resource))
}

// testWriterPort: each identity tries each path with each method at the port for uploads, and at that of metrics.k8s.io.
func (r *poolRig) testWriterPort() {
	c := r.coordinator
	node := func(name string, groups ...string) *certs.Pair {
		r.Helper()
		path, err := r.Kubeconfig(r.Context(), name, groups...)
		if err != nil {
			r.Fatal(err)
		}
		return c.ofFile(path)
	}
	posts := []string{governance.BeatPath, governance.InventoryPath, governance.PoolInventoryPath, governance.UploadPath}
	paths := slices.Concat(posts, []string{"/", "/metrics", "/healthz", "/debug/pprof/", "/v1", governance.UploadPath + "/pods/default/web"})
	for name, tc := range map[string]struct {
		pair *certs.Pair
		// want is the code for what only nodes of the pool may do; 0: no connection.
		want int
	}{
		"nobody":                          {nil, 0},
		"a person":                        {c.issued(c.ca, "alice", governance.PeopleGroup), 0},
		"the API server of the pool":      {c.issued(c.ca, "atoll:coordinator-edge", governance.APIServerGroup), 0},
		"a node's name by the pool's CA":  {c.issued(c.ca, "system:node:"+nodeName, "system:nodes"), 0},
		"system:masters of the pool's CA": {c.issued(c.ca, "root", "system:masters"), 0},
		"the writer's own user":           {c.ofFile(c.path("kubeconfig")), 0},
		"an administrator of the cloud":   {c.ofFile(r.KubeconfigPath()), 403},
		"a node of another pool":          {node("system:node:foreign", "system:nodes"), 403},
		"a node's name without its group": {node("system:node:" + nodeName), 403},
	} {
		as := c.asker(c.writer, governance.ServerName, tc.pair)
		for _, path := range paths {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
				code, answer := as.ask(r.Context(), method, path, map[string]any{})
				isServed := method == "POST" && slices.Contains(posts, path)
				if want := tc.want; isServed && code != want || code/100 == 2 || want == 0 && code != 0 {
					r.Errorf("%s: %s %s is answered %d %s, want %d", name, method, path, code, short(answer), want)
				}
			}
		}
		if code, answer := c.asker(c.usage, governance.ServerName, tc.pair).ask(r.Context(), "GET", "/apis/metrics.k8s.io/v1beta1/nodes", nil); code != 0 {
			r.Errorf("%s: the port of metrics.k8s.io answers %d %s", name, code, short(answer))
		}
	}
	other := c.asker(c.writer, governance.ServerName, node("system:node:other", "system:nodes"))
	for _, path := range paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if code, answer := other.ask(r.Context(), method, path, nil); code/100 == 2 && path != governance.BeatPath && path != governance.InventoryPath {
				r.Errorf("a node of the pool: %s %s is answered %d %s", method, path, code, short(answer))
			}
		}
	}
}
