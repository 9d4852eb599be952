package devcluster

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
	"github.com/atoll-k8s/atoll/devcluster/internal/serviceproxy"
)

// Programs of a real node with RealNodeSpec.StockServices or StockNetwork.
const (
	KubeProxy = "kube-proxy"
	CoreDNS   = "coredns"
	Flannel   = "flanneld"
)

// StockServicesMissing returns what this machine lacks for RealNodeSpec.StockServices; nil if it lacks nothing.
func StockServicesMissing() error {
	if _, err := exec.LookPath("nft"); err != nil {
		return fmt.Errorf("kube-proxy needs the program nft, such as that of Debian's package nftables: %w", err)
	}
	return realnode.CanUseNFT()
}

// stockProgram is a program that others make, and that runs on a real node with its own ServiceAccount.
type stockProgram struct {
	name  string
	rules []rbacv1.PolicyRule
	// files are its configuration, by name.
	files map[string]*template.Template
	args  func(at func(string) string) []string
}

// subnetFile is where flannel writes which addresses the pods of the node have. It is gone after a loss of power.
const subnetFile = "/run/flannel/subnet.env"

func reads(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}
}

var stockServices = []stockProgram{
	{
		name: KubeProxy,
		rules: []rbacv1.PolicyRule{
			reads("", "nodes", "services"), reads(discoveryv1.GroupName, "endpointslices"), reads("networking.k8s.io", "servicecidrs"),
			{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch", "update"}},
		},
		files: map[string]*template.Template{"kube-proxy.yaml": template.Must(template.New("").Parse(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: {{.Name}}
bindAddress: {{.Address}}
clusterCIDR: {{.Pods}}
clientConnection: {kubeconfig: "{{.Kubeconfig}}"}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 100ms}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
`))},
		args: func(at func(string) string) []string { return []string{"--config=" + at("kube-proxy.yaml")} },
	},
	{
		name:  CoreDNS,
		rules: []rbacv1.PolicyRule{reads("", "services", "namespaces", "pods", "endpoints", "nodes"), reads(discoveryv1.GroupName, "endpointslices")},
		files: map[string]*template.Template{"Corefile": template.Must(template.New("").Parse(`.:53 {
	bind {{.Address}}
	errors
	health 127.0.0.1:10271
	ready 127.0.0.1:10272
	kubernetes {{.Domain}} {
		kubeconfig {{.Kubeconfig}}
	}
	cache 2
}
`))},
		args: func(at func(string) string) []string { return []string{"-conf", at("Corefile")} },
	},
}

var stockNetwork = stockProgram{
	name: Flannel,
	rules: []rbacv1.PolicyRule{
		reads("", "nodes"), {APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
	},
	files: map[string]*template.Template{
		"flannel.json": template.Must(template.New("").Parse(`{"Network": "{{.Network}}", "Backend": {"Type": "host-gw"}}
`)),
	},
	args: func(at func(string) string) []string {
		return []string{at(Flannel + ".kubeconfig"), at("flannel.json"), subnetFile, string(Pool)}
	},
}

// stockValues are what the files of stock programs are made of.
type stockValues struct{ Name, Dir, Address, Pods, Network, Domain, Kubeconfig string }

// stock writes the files of what a node runs of others, and returns these programs. lead encodes the kubeconfig of one
// of them.
func (c *Cluster) stock(ctx context.Context, n *realNode, spec *RealNodeSpec, lead func(*clientcmdapi.Config) ([]byte, error)) (programs []realnode.Program, err error) {
	var wanted []stockProgram
	if spec.StockServices {
		wanted = append(wanted, stockServices...)
	}
	if spec.StockNetwork {
		wanted = append(wanted, stockNetwork)
	}
	if wanted == nil {
		return nil, nil
	}
	set, err := binaries.EnsureClients(ctx, c.KubernetesVersion(), c.options.Log)
	if err != nil {
		return nil, err
	}
	info, err := c.network().Info(ctx)
	if err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(realnode.Mount, name) }
	for _, p := range wanted {
		config, err := c.accountConfig(ctx, p.name, p.rules)
		if err != nil {
			return nil, err
		}
		kubeconfig, err := lead(config)
		if err != nil {
			return nil, err
		}
		files := map[string][]byte{p.name + ".kubeconfig": kubeconfig}
		values := stockValues{n.Name, realnode.Mount, n.Link.Address.String(), n.Link.Pods.String(), info.Range.String(), strings.TrimSuffix(serviceproxy.Domain, "."), at(p.name + ".kubeconfig")}
		for name, file := range p.files {
			var text bytes.Buffer
			if err := file.Execute(&text, values); err != nil {
				return nil, fmt.Errorf("making %s of node %q: %w", name, n.Name, err)
			}
			files[name] = text.Bytes()
		}
		for name, text := range files {
			if err := writeConfig(filepath.Join(n.Dir, name), text); err != nil {
				return nil, err
			}
		}
		programs = append(programs, realnode.Program{Name: p.name, Path: set.Path(p.name), Args: p.args(at), Env: []string{"NODE_NAME=" + n.Name}})
	}
	return programs, nil
}

// accountConfig returns a kubeconfig with a token of a ServiceAccount in kube-system, which it makes with these
// rights if it is not there.
func (c *Cluster) accountConfig(ctx context.Context, name string, rules []rbacv1.PolicyRule) (*clientcmdapi.Config, error) {
	role := "devcluster:" + name
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	_, errRole := c.client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: rules}, metav1.CreateOptions{})
	_, errBinding := c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}},
	}, metav1.CreateOptions{})
	for _, err := range []error{err, errRole, errBinding} {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("making the ServiceAccount %s: %w", name, err)
		}
	}
	path, err := c.ServiceAccountKubeconfig(ctx, metav1.NamespaceSystem, name)
	if err != nil {
		return nil, err
	}
	return clientcmd.LoadFromFile(path)
}
