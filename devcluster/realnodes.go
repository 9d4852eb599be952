package devcluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/template"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster/images"
	"github.com/atoll-k8s/atoll/devcluster/internal/gotool"
	"github.com/atoll-k8s/atoll/devcluster/internal/link"
	"github.com/atoll-k8s/atoll/devcluster/internal/process"
	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
	"github.com/atoll-k8s/atoll/devcluster/internal/serviceproxy"
)

// Programs of a real node, for [Cluster.KillOn] and similar methods.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
	// ServiceProxy does what kube-proxy does for the cluster addresses of Services, and answers
	// for their names.
	ServiceProxy = "service-proxy"
)

// Legs of a real node.
const (
	Cloud = link.Cloud // to the control plane, and to nodes of other pools
	Pool  = link.Pool  // to the other nodes of its pool
)

// Leg is one of the two network links of a real node.
type Leg = link.Leg

// LegState is what a leg does with packets.
type LegState = link.State

const (
	networkProcess = "network"
	nodeProgram    = "devcluster-node"
	pauseProgram   = "devcluster-pause"
	modulePath     = "github.com/atoll-k8s/atoll/devcluster"
	kubeletFile    = "kubelet.yaml"
	// maxRealNodes is the number of real nodes of a cluster: each has a network for its pods.
	maxRealNodes = 100
	// containerdSocket is in a file system that each node has for itself.
	containerdSocket = "/run/containerd/containerd.sock"
	// PauseImage is the image of the container that holds the network of a pod, and the
	// smallest one for tests: see cmd/devcluster-pause. It is on every real node.
	PauseImage = "devcluster.local/pause:1"
)

// RealNodeSpec describes a real node.
type RealNodeSpec struct {
	// NodeSpec.Capacity is ignored: the kubelet reports that of the machine.
	NodeSpec

	// Pool is the name of the pool whose nodes it reaches also when the cloud is cut.
	Pool string
	// Kubelet are fields of the KubeletConfiguration, in addition to those that devcluster
	// sets or instead of them.
	Kubelet map[string]any
	// Gateway is the program by which the kubelet and the Service proxy reach the API server. nil means
	// that they reach it themselves.
	Gateway *Gateway
	// StockServices runs kube-proxy and CoreDNS in the place of devcluster's Service proxy: see
	// [StockServicesMissing]. StockNetwork lets flannel (host-gw) make the routes to the pods of the other nodes of
	// the pool.
	StockServices, StockNetwork bool
}

// RealNodesMissing returns what this machine lacks for real nodes; nil if it lacks nothing.
func RealNodesMissing() error {
	switch {
	case runtime.GOOS != "linux":
		return errors.New("real nodes need Linux")
	case os.Geteuid() != 0:
		return errors.New("real nodes need root: they have network devices, mounts and control groups of their own")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("real nodes need TUN devices: %w", err)
	}
	compiler := "gcc"
	if cc := os.Getenv("CC"); cc != "" {
		compiler = strings.Fields(cc)[0]
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return fmt.Errorf("real nodes need a C compiler, because runc contains C: %w", err)
	}
	if err := process.CanBeApart(); err != nil {
		return fmt.Errorf("real nodes need namespaces of their own: %w", err)
	}
	if err := realnode.CanMakeGroups(); err != nil {
		return fmt.Errorf("real nodes need control groups of their own: %w", err)
	}
	return nil
}

// controlGroup is that of a cluster, by its directory in the registry: clusters in other caches may
// have the same name.
func controlGroup(registryDir string) string {
	sum := sha256.Sum256([]byte(registryDir))
	return fmt.Sprintf("atoll-%s-%x", filepath.Base(registryDir), sum[:4])
}

func (c *Cluster) nodeGroup(node string) string {
	return filepath.Join(controlGroup(c.registryDir), node)
}

func (c *Cluster) network() link.Client {
	return link.Client{Socket: filepath.Join(c.record.Dir, "network.sock")}
}

// startNetwork starts the network of real nodes, and records the address of the API server
// in it.
func (c *Cluster) startNetwork(ctx context.Context) error {
	if err := c.buildNodePrograms(ctx); err != nil {
		return err
	}
	// If that is not allowed, kubelets may still find enough.
	told, err := realnode.RaiseInstances()
	if err != nil {
		told = fmt.Sprintf("%v: nodes may never be Ready", err)
	}
	if told != "" {
		fmt.Fprintln(c.options.Log, "devcluster:", told)
	}
	p := processRecord{
		Name: networkProcess, Kind: kindComponent, Path: c.nodeProgram(),
		Args: []string{"network", c.network().Socket}, Dir: c.record.Dir, Log: c.LogPath(networkProcess),
	}
	if err := c.startAndWait(ctx, p); err != nil {
		return err
	}
	info, err := c.network().Info(ctx)
	if err != nil {
		return err
	}
	c.record.Server = info.Server.String()
	return writeJSON(filepath.Join(c.registryDir, "record.json"), c.record)
}

// networkReady returns nil if the network answers.
func (c *Cluster) networkReady(ctx context.Context) error {
	_, err := c.network().Info(ctx)
	return err
}

// restartNetwork starts the network again, with the same addresses, and connects the nodes that
// run. Their legs are whole.
func (c *Cluster) restartNetwork(ctx context.Context, p processRecord) error {
	p.Args = []string{"network", c.network().Socket, c.record.Server}
	if err := c.startAndWait(ctx, p); err != nil {
		return err
	}
	records, err := readProcesses(c.registryDir)
	if err != nil {
		return err
	}
	for _, p := range records {
		if p.Kind == kindReal && p.ID.Alive() {
			if err := c.connectNode(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// unplug takes a node that is about to lose its power from the network. If that does not run, no
// node is in it.
func (c *Cluster) unplug(ctx context.Context, node string) error {
	network, err := c.readProcess(networkProcess)
	if err != nil {
		return err
	}
	if !network.ID.Alive() {
		return nil
	}
	return c.network().Unplug(ctx, node)
}

func (c *Cluster) nodeProgram() string { return filepath.Join(c.record.Dir, "bin", nodeProgram) }

// buildNodePrograms builds what real nodes run besides the programs of Kubernetes, from the
// source of this module: the program that is also their runc (see package realnode), and the
// pause image.
func (c *Cluster) buildNodePrograms(ctx context.Context) error {
	source, err := gotool.SourceDir(ctx, modulePath)
	if err != nil {
		return err
	}
	dir := filepath.Dir(c.nodeProgram())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of programs: %w", err)
	}
	if _, err := gotool.Run(ctx, source, "build", "-o", dir+string(filepath.Separator), "./cmd/"+nodeProgram, "./cmd/"+pauseProgram); err != nil {
		return fmt.Errorf("building the programs of real nodes: %w", err)
	}
	if err := os.Symlink(nodeProgram, filepath.Join(dir, realnode.RuncName)); err != nil {
		return fmt.Errorf("building the programs of real nodes: %w", err)
	}
	program := filepath.Join(dir, pauseProgram)
	pause, err := images.New(images.Spec{
		Programs: map[string]string{"/pause": program, "/tar": program}, Entrypoint: []string{"/pause"}, Architecture: runtime.GOARCH, Fast: true,
	})
	if err != nil {
		return err
	}
	return images.Save(c.pauseTar(), map[string][]v1.Image{PauseImage: {pause}})
}

func (c *Cluster) pauseTar() string { return filepath.Join(c.record.Dir, "bin", "pause.tar") }

// AddRealNodes adds nodes that are network namespaces with a containerd and a kubelet of
// their own, and returns when all are Ready. Each has an address of its own, on two legs. The
// cluster must have been started with Options.RealNodes. [Cluster.Kill] with the name of a
// node is the loss of its power, and [Cluster.Restart] starts it again with what was on its
// disk.
func (c *Cluster) AddRealNodes(ctx context.Context, specs ...RealNodeSpec) error {
	if c.record.Server == "" {
		return errors.New("adding real nodes: start the cluster with Options.RealNodes")
	}
	plain := make([]NodeSpec, len(specs))
	for i, spec := range specs {
		if err := c.startRealNode(ctx, spec); err != nil {
			return err
		}
		plain[i] = spec.NodeSpec
	}
	if err := c.waitNodesReady(ctx, plain); err != nil {
		return err
	}
	for _, spec := range specs {
		if err := c.LoadImages(ctx, c.pauseTar(), spec.Name); err != nil {
			return err
		}
	}
	return nil
}

// startRealNode creates the Node object first, as startHollowNode does.
func (c *Cluster) startRealNode(ctx context.Context, spec RealNodeSpec) (err error) {
	node, err := c.newNode(spec.NodeSpec)
	if err != nil {
		return err
	}
	node.Status = corev1.NodeStatus{}
	n, err := c.place(ctx, spec)
	if err != nil {
		return err
	}
	if spec.StockNetwork {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = n.Link.Pods.String(), []string{n.Link.Pods.String()}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.clearRealNode(context.WithoutCancel(ctx), spec.Name))
		}
	}()
	if err := c.writeNodeFiles(ctx, n, &spec); err != nil {
		return err
	}
	if err := c.createNode(ctx, node); err != nil {
		return err
	}
	p := processRecord{
		Name: spec.Name, Kind: kindReal, Path: c.nodeProgram(),
		Args: []string{"init", filepath.Join(n.Dir, "node.json")}, Dir: n.Dir, Log: c.LogPath(spec.Name),
	}
	if err := c.startNew(ctx, p); err != nil {
		deleteErr := c.client.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), spec.Name, metav1.DeleteOptions{})
		return errors.Join(err, deleteErr)
	}
	return nil
}

// realNode is what is recorded of a real node.
type realNode struct {
	realnode.Config

	Link link.Node `json:"link"`
}

func (c *Cluster) nodeDir(name string) string { return filepath.Join(c.record.Dir, "real", name) }

func (c *Cluster) readNode(name string) (*realNode, error) {
	n := &realNode{}
	if err := readJSON(filepath.Join(c.nodeDir(name), "node.json"), n); err != nil {
		return nil, fmt.Errorf("finding the real node %q: %w", name, err)
	}
	return n, nil
}

// place gives a node its directory and its addresses: those of the lowest number that no
// other node of the cluster has.
func (c *Cluster) place(ctx context.Context, spec RealNodeSpec) (*realNode, error) {
	info, err := c.network().Info(ctx)
	if err != nil {
		return nil, err
	}
	c.verbs.Lock()
	defer c.verbs.Unlock()
	taken := map[netip.Addr]bool{}
	entries, err := os.ReadDir(filepath.Join(c.record.Dir, "real"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing real nodes: %w", err)
	}
	for _, e := range entries {
		if other, err := c.readNode(e.Name()); err == nil {
			taken[other.Link.Address] = true
		}
	}
	base := info.Range.Addr().As4()
	n := &realNode{Config: realnode.Config{Name: spec.Name, Dir: c.nodeDir(spec.Name), CGroup: c.nodeGroup(spec.Name)}}
	for i := byte(1); i <= maxRealNodes; i++ {
		address := netip.AddrFrom4([4]byte{base[0], base[1], 1, i})
		if taken[address] {
			continue
		}
		n.Link = link.Node{Name: spec.Name, Pool: spec.Pool, Address: address, OwnRoutes: spec.StockNetwork, Pods: netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], 100 + i, 0}), 24)}
		if err := os.MkdirAll(filepath.Join(n.Dir, "logs"), 0o700); err != nil {
			return nil, fmt.Errorf("making the directory of node %q: %w", spec.Name, err)
		}
		return n, writeJSON(filepath.Join(n.Dir, "node.json"), n)
	}
	return nil, fmt.Errorf("adding real node %q: the cluster has %d already", spec.Name, maxRealNodes)
}

// clearRealNode removes what is left of a real node whose processes have ended: its control
// groups, its links and, last, its disk. It does nothing for other nodes.
func (c *Cluster) clearRealNode(ctx context.Context, name string) error {
	if !nodeNamePattern.MatchString(name) {
		return nil
	}
	if _, err := os.Stat(c.nodeDir(name)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := realnode.RemoveGroups(c.nodeGroup(name)); err != nil {
		return fmt.Errorf("removing real node %q: %w", name, err)
	}
	if err := c.network().Remove(ctx, name); err != nil {
		return fmt.Errorf("removing real node %q: %w", name, err)
	}
	if err := os.RemoveAll(c.nodeDir(name)); err != nil {
		return fmt.Errorf("removing the disk of real node %q: %w", name, err)
	}
	return nil
}

// nodeFiles are the configurations of the programs of a node.
var nodeFiles = map[string]*template.Template{
	"containerd.toml": template.Must(template.New("").Parse(`version = 3
root = "{{.Dir}}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
  address = "` + containerdSocket + `"

[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "` + PauseImage + `"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{{.Dir}}/registries"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{{.Runc}}"
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.Programs}}"]
    conf_dir = "{{.Dir}}/cni"
`)),
	"cni/10-devcluster.conflist": template.Must(template.New("").Parse(`{
  "cniVersion": "1.0.0",
  "name": "devcluster",
  "plugins": [{
    "type": "ptp",
    "ipam": {"type": "host-local", "dataDir": "{{.Dir}}/addresses", "ranges": [[{"subnet": "{{.Pods}}"}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`)),
	kubeletFile: template.Must(template.New("").Parse(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {{.Address}}
healthzBindAddress: 127.0.0.1
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: "{{.CA}}"}
authorization: {mode: Webhook}
clusterDomain: {{.Domain}}
clusterDNS: ["{{.Address}}"]
containerRuntimeEndpoint: unix://` + containerdSocket + `
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {"memory.available": "50Mi"}
podLogsDir: "{{.Dir}}/pod-logs"
volumePluginDir: "{{.Dir}}/volume-plugins"
resolvConf: "{{.Dir}}/resolv.conf"
nodeStatusUpdateFrequency: 5s
nodeLeaseDurationSeconds: 40
shutdownGracePeriod: 0s
`)),
	"resolv.conf": template.Must(template.New("").Parse("# only names of Services are known, in pods\n")),
}

// writeNodeFiles writes the configurations of a node's programs, and which these are.
func (c *Cluster) writeNodeFiles(ctx context.Context, n *realNode, spec *RealNodeSpec) error {
	kubeconfig, err := c.Kubeconfig(ctx, "system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	proxyConfig, err := c.Kubeconfig(ctx, "system:kube-proxy") // which Kubernetes gives the rights of kube-proxy
	if err != nil {
		return err
	}
	var gateway realnode.Program
	lead := func(config *clientcmdapi.Config) ([]byte, error) { return clientcmd.Write(*config) }
	if g := spec.Gateway; g != nil {
		var on Endpoint
		if gateway, on, kubeconfig, proxyConfig, err = c.throughGateway(ctx, n, g, kubeconfig); err != nil {
			return err
		}
		lead = on.lead
	}
	stock, err := c.stock(ctx, n, spec, lead)
	if err != nil {
		return err
	}
	values := struct{ Dir, Programs, Runc, Address, Pods, CA, Domain string }{
		realnode.Mount, c.record.NodesDir, filepath.Join(filepath.Dir(c.nodeProgram()), realnode.RuncName),
		n.Link.Address.String(), n.Link.Pods.String(), c.pkiPath("ca.crt"), serviceproxy.Domain,
	}
	for name, file := range nodeFiles {
		var text bytes.Buffer
		if err := file.Execute(&text, values); err != nil {
			return fmt.Errorf("making %s of node %q: %w", name, n.Name, err)
		}
		content := text.Bytes()
		if name == kubeletFile && spec.Kubelet != nil {
			if content, err = merged(content, spec.Kubelet); err != nil {
				return fmt.Errorf("making %s of node %q: %w", name, n.Name, err)
			}
		}
		if err := writeConfig(filepath.Join(n.Dir, name), content); err != nil {
			return err
		}
	}
	env := []string{"PATH=" + c.record.NodesDir + ":/usr/sbin:/usr/bin:/sbin:/bin", clusterMark + "=" + c.registryDir}
	program := func(name, path, after string, args ...string) realnode.Program {
		return realnode.Program{Name: name, Path: path, Args: args, Env: env, Log: filepath.Join(n.Dir, "logs", name+".log"), After: after}
	}
	n.Programs = nil
	if spec.Gateway != nil {
		n.Programs = append(n.Programs, program(gateway.Name, gateway.Path, "", gateway.Args...))
	}
	n.Programs = append(n.Programs,
		program(Containerd, filepath.Join(c.record.NodesDir, "containerd"), "", "--config="+filepath.Join(realnode.Mount, "containerd.toml"), "--log-level=warn"),
		program(Kubelet, filepath.Join(c.record.NodesDir, "kubelet"), containerdSocket,
			"--config="+filepath.Join(realnode.Mount, kubeletFile), "--kubeconfig="+kubeconfig,
			"--hostname-override="+n.Name, "--node-ip="+n.Link.Address.String(),
			"--root-dir="+filepath.Join(realnode.Mount, "kubelet"), "--cert-dir="+filepath.Join(realnode.Mount, kubeletPKI)),
	)
	if !spec.StockServices {
		n.Programs = append(n.Programs, program(ServiceProxy, c.nodeProgram(), "", "proxy", proxyConfig, n.Link.Address.String()))
	}
	for _, p := range stock {
		one := program(p.Name, p.Path, "", p.Args...)
		one.Env = append(slices.Clone(env), p.Env...)
		n.Programs = append(n.Programs, one)
	}
	return writeJSON(filepath.Join(n.Dir, "node.json"), n)
}

// merged returns a YAML document with further fields at its top level.
func merged(document []byte, fields map[string]any) ([]byte, error) {
	all := map[string]any{}
	if err := yaml.Unmarshal(document, &all); err != nil {
		return nil, err
	}
	maps.Copy(all, fields)
	return yaml.Marshal(all)
}

// connectNode connects a node that has just been started to the network.
func (c *Cluster) connectNode(p processRecord) error {
	n, err := c.readNode(p.Name)
	if err != nil {
		return err
	}
	n.Link.PID = p.ID.PID
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return c.network().Add(ctx, n.Link)
}

// SetLeg changes what a leg of a real node does with packets: cuts, delays or loses them. The
// zero value restores it.
func (c *Cluster) SetLeg(ctx context.Context, node string, leg Leg, s LegState) error {
	return c.network().Set(ctx, node, leg, s)
}
