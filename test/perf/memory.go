package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// memory compares the memory of atoll-manager with that of informers for the cluster's
// objects.
var memory = benchmark{
	name: "memory", unit: "MB", nodes: 1000, pods: 10000,
	about: `The memory of the whole process atoll-manager ÷ that of a process that only runs stock client-go informers on the same
objects: pods, nodes, and the six kinds of owners that Kubernetes has.

- 1,000 simulated nodes and 10,000 pods; the pods have one container, with probes, variables and requests, and no status,
  which favours the informers.
- Both processes are started again for each round and read from the same API server, with protobuf.
- ` + "`heap`" + ` is the live heap after a garbage collection. ` + "`resident`" + ` is the resident memory some seconds after the caches are full, without the
  pages of the program's own file (some 50 MB of code on both sides, which the system may drop).`,
	variants: []variant{
		{name: "heap", ideal: "≤ 0.25", a: "atoll-manager", b: "stock informers"},
		{name: "resident", ideal: "≤ 0.25", a: "atoll-manager", b: "stock informers"},
	},
	open: openMemory,
}

const (
	// peerName is the name of the peer's process.
	peerName = "stock-informers"
	// settle is the delay before the memory of a process is read.
	settle = 5 * time.Second
)

type memoryBench struct {
	*fleet
	// managerProfile and peerProfile are the addresses at which the two serve profiles.
	managerProfile, peerProfile string
}

func openMemory(ctx context.Context, o options, log io.Writer) (_ bench, err error) {
	m := &memoryBench{}
	for _, address := range []*string{&m.managerProfile, &m.peerProfile} {
		port, err := devcluster.FreePort()
		if err != nil {
			return nil, err
		}
		*address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	o.profile = m.managerProfile
	m.fleet, err = makeFleet(ctx, settings{options: o, log: log})
	return m, err
}

func (m *memoryBench) sides(_ context.Context, variant string) (a, b side, err error) {
	read := map[string]func(ctx context.Context, process, profile string) (float64, error){"heap": m.heap, "resident": m.resident}[variant]
	if read == nil {
		return a, b, fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
	of := func(process, profile string, start func(context.Context) error) side {
		return side{name: process + " " + variant, measure: func(ctx context.Context) (s sample, err error) {
			s.off = -1
			if err := start(ctx); err != nil {
				return s, err
			}
			if err := pause(ctx, settle); err != nil {
				return s, err
			}
			s.rate, err = read(ctx, process, profile)
			return s, err
		}}
	}
	return of(atoll.Manager, m.managerProfile, m.startManager), of(peerName, m.peerProfile, m.startPeer), nil
}

func (m *memoryBench) startManager(ctx context.Context) error {
	start, err := m.restartManager(ctx)
	if err != nil {
		return err
	}
	if err := start(ctx); err != nil {
		return err
	}
	a, err := newAsker(m.installed.ExtenderURL, m.installed.TLSDir)
	if err != nil {
		return err
	}
	_, err = m.waitCorrect(ctx, a)
	return err
}

// startPeer starts this program as the peer.
func (m *memoryBench) startPeer(ctx context.Context) error {
	processes, err := m.cluster.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range processes {
		if p.Name == peerName {
			return m.cluster.Restart(ctx, peerName)
		}
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	return m.cluster.StartProcess(ctx, devcluster.ProcessSpec{
		Name: peerName, Path: program,
		Args:      []string{"-informers", m.cluster.KubeconfigPath(), "-profile-address", m.peerProfile},
		HealthURL: "http://" + m.peerProfile + "/readyz",
	})
}

// heap returns the live heap of a process after a garbage collection.
func (m *memoryBench) heap(ctx context.Context, _, profile string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+profile+"/debug/pprof/heap?gc=1&debug=1", http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("asking for a heap profile: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("asking for a heap profile: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	const key = "# HeapAlloc = "
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), key); ok {
			n, err := strconv.ParseFloat(value, 64)
			return n / 1e6, err
		}
	}
	return 0, fmt.Errorf("reading a heap profile: it has no line %q: %w", key, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// resident reads the resident memory of a process.
func (m *memoryBench) resident(ctx context.Context, process, _ string) (float64, error) {
	processes, err := m.cluster.Processes(ctx)
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		if p.Name == process && p.Running {
			return residentOf(p.PID)
		}
	}
	return 0, fmt.Errorf("reading the memory of %s: it does not run", process)
}

// residentOf reads the resident memory that does not belong to a file, in MB.
func residentOf(pid int) (float64, error) { return memoryOf(pid, "RssAnon") }

// memoryOf reads a field of /proc/<pid>/status, in MB.
func memoryOf(pid int, field string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of a process: %w", err)
	}
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			kB, err := strconv.ParseFloat(string(bytes.Fields(value)[0]), 64)
			return kB * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("reading the memory of a process: there is no %s", field)
}

// pause waits for a time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// serveInformers runs the peer: stock informers of client-go, and profiles.
func serveInformers(ctx context.Context, o options) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.informers)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	core, apps, batch := factory.Core().V1(), factory.Apps().V1(), factory.Batch().V1()
	for _, make := range []func() toolscache.SharedIndexInformer{
		core.Pods().Informer, core.Nodes().Informer,
		apps.Deployments().Informer, apps.ReplicaSets().Informer, apps.StatefulSets().Informer, apps.DaemonSets().Informer,
		batch.Jobs().Informer, batch.CronJobs().Informer,
	} {
		make() // the factory starts it
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("filling the informer of %s: %w", kind, ctx.Err())
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Addr: o.profile, Handler: mux, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving profiles: %w", err)
	}
	return nil
}
