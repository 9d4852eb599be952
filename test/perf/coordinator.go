package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/internal/controller/coordinator"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/certs"
)

// coordinatorBenchmark measures the pod of a pool's coordinator.
var coordinatorBenchmark = benchmark{
	name: "coordinator", nodes: 200, pods: 2000,
	about: `The pod of [a pool's coordinator](pools.md), its containers as processes with the arguments that the chart's pod has, and a pool of 200 nodes with 2,000 pods, which have one container with probes, variables and requests.

- ` + "`list`" + `: what ` + "`kubectl get pods -A`" + ` asks for at the coordinator ÷ at the API server of the cloud, p50 of 20.
- ` + "`full`" + `: from the start of an empty coordinator until a person gets all pods, uploaded by 200 hubs at once ÷ the limit of 30 s.
- ` + "`memory`" + `: the resident memory of etcd, kube-apiserver and writer together, when all is there ÷ the limit of 1 GB. etcd's data are files in memory: they are counted too.`,
	variants: []variant{
		{name: "list", unit: "ms", ideal: "≤ 1.2", a: "LIST of all pods at the coordinator", b: "at the cloud"},
		{name: "full", unit: "s", ideal: "≤ 1", a: "start until full", b: "the limit"},
		{name: "memory", unit: "MB", ideal: "≤ 1", a: "etcd, kube-apiserver and writer", b: "the limit"},
	},
	open: openCoordinator,
}

const (
	fullLimit, coordinatorMemoryLimit = 30, 1000 // seconds, MB
	// tableOfPods is what kubectl get asks for.
	tableOfPods = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)

type coordinatorBench struct {
	*bed
	// run and secret are the directories of the pod's volumes. Sockets are in the first: its path is short.
	run, secret string
	program     string
	ca          certs.Pair
	running     map[string]*exec.Cmd
	hubs        []*benchHub
	people      *restclient.RESTClient
}

// benchHub uploads what one node has.
type benchHub struct {
	name   string
	client *http.Client
	items  []governance.Item
	bodies map[governance.Ref][]byte
}

func openCoordinator(ctx context.Context, o options, log io.Writer) (bench, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{Log: log, KeepDir: o.keep})
	if err != nil {
		return nil, err
	}
	c := &coordinatorBench{bed: &bed{options: o, log: log, cluster: cluster}, running: map[string]*exec.Cmd{}}
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *coordinatorBench) close() error {
	c.stop()
	_ = os.RemoveAll(filepath.Dir(c.run))
	return c.bed.close()
}

func (c *coordinatorBench) sides(_ context.Context, variant string) (a, b side, err error) {
	limit := func(n float64) side {
		return side{name: fmt.Sprintf("the limit of %v", n), measure: func(context.Context) (sample, error) { return sample{rate: n, off: -1}, nil }}
	}
	switch variant {
	case "list":
		cloud := c.client.CoreV1().RESTClient()
		return side{name: "coordinator", measure: func(ctx context.Context) (sample, error) { return listed(ctx, c.people) }},
			side{name: "cloud", measure: func(ctx context.Context) (sample, error) { return listed(ctx, cloud) }}, nil
	case "full":
		return side{name: "full", measure: c.refill}, limit(fullLimit), nil
	default:
		return side{name: "memory", measure: c.memory}, limit(coordinatorMemoryLimit), nil
	}
}

func listed(ctx context.Context, client restclient.Interface) (sample, error) {
	var took []time.Duration
	for range 20 {
		began := time.Now()
		if _, err := client.Get().AbsPath("/api/v1/pods").SetHeader("Accept", tableOfPods).DoRaw(ctx); err != nil {
			return sample{}, fmt.Errorf("listing pods: %w", err)
		}
		took = append(took, time.Since(began))
	}
	return sample{rate: milliseconds(percentile(took, 0.5)), off: -1}, nil
}

// refill starts the coordinator empty, and waits until all is there.
func (c *coordinatorBench) refill(ctx context.Context) (sample, error) {
	c.stop()
	began := time.Now()
	if err := c.start(ctx); err != nil {
		return sample{}, err
	}
	if err := inParallel(ctx, len(c.hubs), c.hubs, func(ctx context.Context, h *benchHub) error { return h.upload(ctx) }); err != nil {
		return sample{}, err
	}
	err := c.eventually(ctx, "all pods are at the coordinator", func(ctx context.Context) (bool, error) {
		var list metav1.PartialObjectMetadataList
		text, err := c.people.Get().AbsPath("/api/v1/pods").SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").DoRaw(ctx)
		if err != nil || json.Unmarshal(text, &list) != nil {
			return false, nil //nolint:nilerr // it has just started
		}
		return len(list.Items) == c.options.pods, nil
	})
	return sample{rate: time.Since(began).Seconds(), off: -1}, err
}

func (c *coordinatorBench) memory(context.Context) (s sample, err error) {
	s.off = -1
	for name, cmd := range c.running {
		mb, err := residentOf(cmd.Process.Pid)
		if err != nil {
			return s, err
		}
		s.rate += mb
		s.facts += fmt.Sprintf("%s %.0f MB; ", name, mb)
	}
	var size int64
	err = filepath.Walk(c.run, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	})
	s.rate += float64(size) / 1e6
	s.facts += fmt.Sprintf("files %.0f MB", float64(size)/1e6)
	return s, err
}

func (c *coordinatorBench) prepare(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "pool")
	if err != nil {
		return err
	}
	c.run, c.secret, c.program = filepath.Join(dir, "run"), filepath.Join(dir, "etc"), filepath.Join(dir, "atoll-coordinator")
	build := exec.CommandContext(ctx, "go", "build", "-o", c.program, "github.com/atoll-k8s/atoll/cmd/atoll-coordinator")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0") // its module has the client of etcd
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building atoll-coordinator: %w: %s", err, out)
	}
	if c.client, err = kubernetes.NewForConfig(c.cluster.AdminConfig()); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := c.addObjects(ctx); err != nil {
		return err
	}
	if err := c.writeSecret(); err != nil {
		return err
	}
	if err := c.addHubs(ctx); err != nil {
		return err
	}
	_, err = c.refill(ctx)
	return err
}

// addObjects adds the nodes and their pods to the cloud, where nothing changes them afterwards.
func (c *coordinatorBench) addObjects(ctx context.Context) error {
	core := c.client.CoreV1()
	if _, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating namespace %q: %w", namespace, err)
	}
	if err := c.awaitAccount(ctx); err != nil {
		return err
	}
	for _, name := range []string{devcluster.ControllerManager, devcluster.Scheduler, devcluster.Kwok} {
		if err := c.cluster.Kill(ctx, name); err != nil {
			return err
		}
	}
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for i := range c.options.nodes {
		nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}})
	}
	for i := range c.options.pods {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Namespace: namespace},
			Spec:       corev1.PodSpec{NodeName: nodes[i%len(nodes)].Name, Containers: []corev1.Container{{Name: "main", Image: "nginx:1.27"}}},
		}
		furnish(&pod.Spec.Containers[0])
		pods = append(pods, pod)
	}
	return errors.Join(createAll(ctx, nodes, core.Nodes().Create), createAll(ctx, pods, core.Pods(namespace).Create))
}

func (c *coordinatorBench) writeSecret() (err error) {
	now := time.Now()
	if c.ca, err = certs.NewCA(now); err != nil {
		return err
	}
	server, err := certs.Issue(c.ca, certs.Leaf{CommonName: "coordinator", Names: []string{governance.ServerName, governance.UsageServer, "127.0.0.1"}}, now)
	if err != nil {
		return err
	}
	own, err := certs.Issue(c.ca, certs.Leaf{CommonName: "kube-apiserver", Groups: []string{governance.APIServerGroup}}, now)
	if err != nil {
		return err
	}
	person, err := certs.Issue(c.ca, certs.Leaf{CommonName: "alice", Groups: []string{governance.PeopleGroup}}, now)
	if err != nil {
		return err
	}
	var names []string
	for i := range c.options.nodes {
		names = append(names, fmt.Sprintf("node-%d", i))
	}
	if err := os.MkdirAll(c.secret, 0o700); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"tls.crt": server.Cert, "tls.key": server.Key, "ca.crt": c.ca.Cert, "apiserver.crt": own.Cert, "apiserver.key": own.Key,
		"nodes.crt": c.cluster.AdminConfig().CAData, "nodes": []byte(strings.Join(names, "\n")),
	} {
		if err := os.WriteFile(filepath.Join(c.secret, name), content, 0o600); err != nil {
			return err
		}
	}
	people, err := kubernetes.NewForConfig(&restclient.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", governance.APIPort), QPS: -1,
		TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.Cert, CertData: person.Cert, KeyData: person.Key},
	})
	if err == nil {
		c.people, _ = people.CoreV1().RESTClient().(*restclient.RESTClient)
	}
	return err
}

// addHubs gives each node a client with its certificate, and what the cloud has of it.
func (c *coordinatorBench) addHubs(ctx context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.ca.Cert)
	for i := range c.options.nodes {
		h := &benchHub{name: fmt.Sprintf("node-%d", i), bodies: map[governance.Ref][]byte{}}
		path, err := c.cluster.Kubeconfig(ctx, "system:node:"+h.name, "system:nodes")
		if err != nil {
			return err
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err == nil {
			err = restclient.LoadTLSFiles(config)
		}
		if err != nil {
			return fmt.Errorf("reading the kubeconfig of node %q: %w", h.name, err)
		}
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			return fmt.Errorf("reading the certificate of node %q: %w", h.name, err)
		}
		// Each has an address of its own: the coordinator takes a share of all connections from one.
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(i/250), byte(1+i%250))}}
		h.client = &http.Client{Transport: &http.Transport{DialContext: from.DialContext, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: governance.ServerName, Certificates: []tls.Certificate{pair}}}}
		c.hubs = append(c.hubs, h)
	}
	return inParallel(ctx, 8, c.hubs, func(ctx context.Context, h *benchHub) error {
		pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + h.name})
		if err != nil {
			return fmt.Errorf("listing pods: %w", err)
		}
		refs := []governance.Ref{{Resource: "nodes", Name: h.name}}
		for j := range pods.Items {
			refs = append(refs, governance.Ref{Resource: "pods", Namespace: namespace, Name: pods.Items[j].Name})
		}
		for _, ref := range refs {
			text, err := c.client.CoreV1().RESTClient().Get().AbsPath(strings.Replace("/api/v1/"+path(ref), "//", "/", 1)).SetHeader("Accept", "application/json").DoRaw(ctx)
			if err != nil {
				return fmt.Errorf("reading %s: %w", ref, err)
			}
			var object metav1.PartialObjectMetadata
			if err := json.Unmarshal(text, &object); err != nil {
				return fmt.Errorf("reading %s: %w", ref, err)
			}
			h.bodies[ref] = text
			h.items = append(h.items, governance.Item{Ref: ref, UID: string(object.UID), Version: object.ResourceVersion})
		}
		return nil
	})
}

func path(ref governance.Ref) string {
	if ref.Namespace == "" {
		return ref.Resource + "/" + ref.Name
	}
	return "namespaces/" + ref.Namespace + "/" + ref.Resource + "/" + ref.Name
}

// upload does what a hub does when it finds a coordinator that is empty: it tries again until that answers.
func (h *benchHub) upload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	inventory := governance.Inventory{Items: h.items}
	var missing governance.InventoryAnswer
	for {
		err := h.send(ctx, governance.BeatPath, governance.Beat{Digest: inventory.Digest()}, nil)
		if err == nil {
			err = h.send(ctx, governance.InventoryPath, inventory, &missing)
		}
		if err == nil {
			break
		}
		if pauseErr := pause(ctx, governance.BeatEvery/4); pauseErr != nil {
			return errors.Join(err, pauseErr)
		}
	}
	for left := missing.Missing; len(left) > 0; {
		var uploads []governance.Upload
		for size := 0; len(uploads) < len(left) && size < governance.EnoughAtOnce; size += len(uploads[len(uploads)-1].Body) {
			ref := left[len(uploads)]
			uploads = append(uploads, governance.Upload{Ref: ref, Body: h.bodies[ref]})
		}
		contentType, form, err := governance.EncodeUploads(uploads)
		if err != nil {
			return err
		}
		var answer governance.UploadAnswer
		if err := h.sendAs(ctx, contentType, governance.UploadPath, form, &answer); err != nil {
			return err
		}
		for _, result := range answer.Results {
			if result.Code != http.StatusOK {
				return fmt.Errorf("an upload: the coordinator answers %d %s", result.Code, result.Reason)
			}
		}
		left = left[len(answer.Results):]
	}
	return nil
}

func (h *benchHub) send(ctx context.Context, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return h.sendAs(ctx, "application/json", path, text, answer)
}

func (h *benchHub) sendAs(ctx context.Context, contentType, path string, text []byte, answer any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s", governance.WriterPort, path), bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	response, err := h.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the coordinator answers %s: %s", response.Status, content)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(content, answer)
	}
	return err
}

// start runs the containers of the pod as processes, with an empty volume.
func (c *coordinatorBench) start(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(c.run), os.MkdirAll(c.run, 0o700)); err != nil {
		return err
	}
	here := strings.NewReplacer("/run/atoll", c.run, "/etc/atoll", c.secret, "$(HOST_IP)", "127.0.0.1",
		"/usr/local/bin/etcd", c.cluster.BinaryPath("etcd"), "/usr/local/bin/kube-apiserver", c.cluster.BinaryPath("kube-apiserver"), "/atoll-coordinator", c.program)
	pod := coordinator.PodOf(coordinator.Images{})
	command := func(container *corev1.Container) *exec.Cmd {
		var args []string
		for _, arg := range container.Command {
			args = append(args, here.Replace(arg))
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = c.run
		return cmd
	}
	for i := range pod.InitContainers {
		if out, err := command(&pod.InitContainers[i]).CombinedOutput(); err != nil {
			return fmt.Errorf("running %s: %w: %s", pod.InitContainers[i].Name, err, out)
		}
	}
	for i := range pod.Containers {
		cmd := command(&pod.Containers[i])
		file, err := os.Create(filepath.Join(filepath.Dir(c.run), pod.Containers[i].Name+".log"))
		if err != nil {
			return err
		}
		cmd.Stdout, cmd.Stderr = file, file
		err = cmd.Start()
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("starting %s: %w", pod.Containers[i].Name, err)
		}
		c.running[pod.Containers[i].Name] = cmd
	}
	return ctx.Err()
}

func (c *coordinatorBench) stop() {
	for name, cmd := range c.running {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		delete(c.running, name)
	}
}
