package atoll

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-k8s/atoll/devcluster"
)

// Hub is the name of atoll-hub as a program of real nodes.
const Hub = "atoll-hub"

// hubAddress and hubObserve are where the hub of a real node serves.
const hubAddress, hubObserve = "127.0.0.1:10261", "127.0.0.1:10267"

// NewHub builds atoll-hub from the source of this module's Atoll, and returns it for real nodes.
func NewHub(ctx context.Context, log io.Writer) (*devcluster.Gateway, error) {
	binary, err := buildHub(ctx, log)
	if err != nil {
		return nil, err
	}
	return &devcluster.Gateway{
		Name: Hub, Path: binary, URL: "https://" + hubAddress, CAFile: servingCA,
		Configure: func(v devcluster.GatewayValues) ([]string, []byte) {
			return []string{"--config=" + v.ConfigFile}, hubConfig(v, hubAddress, hubObserve)
		},
	}, nil
}

// servingCA is the file in the directory of a hub that has the CA of its certificate.
const servingCA = "serving/ca.crt"

func buildHub(ctx context.Context, log io.Writer) (string, error) {
	source, err := sourceDir(ctx)
	if err != nil {
		return "", err
	}
	return build(ctx, source, Hub, log)
}

func hubConfig(v devcluster.GatewayValues, listen, observe string) []byte {
	return fmt.Appendf(nil, `apiVersion: hub.atoll.dev/v1alpha1
kind: HubConfiguration
nodeName: %s
listen: %s
observe: %s
directory: %s
clientCAFile: %s
cloud:
  servers: [%q]
  caFile: %[5]s
  certificateFile: %[7]s
  returnWithin: 2s
kubelet: {address: %q, certificateFile: %q}
`, v.NodeName, listen, observe, v.Directory, v.CAFile, v.Server, v.CertificateFile, v.Kubelet, v.KubeletCertificateFile)
}

// HubProcess is a hub that is a process of the cluster, for hollow nodes and other clients of this
// machine.
type HubProcess struct {
	// Name is that of the process, for [devcluster.Cluster.Kill] and similar methods.
	Name string
	// Endpoint is where clients of the node reach it.
	devcluster.Endpoint
	// Observe is the address of its second port, without a scheme.
	Observe string
	// Program is the executable, and ConfigFile its configuration.
	Program, ConfigFile string
}

// StartHub builds atoll-hub and starts one for a node, which need not exist yet. server is the URL of
// the API server as the hub reaches it, for example over a link that can be cut; unset means the
// cluster's own. It returns when the hub serves.
func StartHub(ctx context.Context, c *devcluster.Cluster, node, server string, log io.Writer) (*HubProcess, error) {
	binary, err := buildHub(ctx, log)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir(), "hubs", node)
	values := devcluster.GatewayValues{
		NodeName: node, Server: server, CAFile: filepath.Join(dir, "ca.crt"), CertificateFile: filepath.Join(dir, "node.pem"),
		Directory: filepath.Join(dir, "state"), ConfigFile: filepath.Join(dir, "hub.yaml"),
	}
	if values.Server == "" {
		values.Server = c.AdminConfig().Host
	}
	var addresses [2]string
	for i := range addresses {
		port, err := devcluster.FreePort()
		if err != nil {
			return nil, err
		}
		addresses[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	h := &HubProcess{
		Name: Hub + "-" + node, Program: binary, ConfigFile: values.ConfigFile, Observe: addresses[1],
		Endpoint: devcluster.Endpoint{URL: "https://" + addresses[0], CAFile: filepath.Join(values.Directory, servingCA)},
	}
	if err := writeHubFiles(ctx, c, values, hubConfig(values, addresses[0], addresses[1])); err != nil {
		return nil, err
	}
	return h, c.StartProcess(ctx, devcluster.ProcessSpec{
		Name: h.Name, Path: binary, Args: []string{"--config=" + h.ConfigFile}, Dir: dir, HealthURL: "http://" + h.Observe + "/healthz",
	})
}

// writeHubFiles writes what the configuration of a hub names, and the configuration.
func writeHubFiles(ctx context.Context, c *devcluster.Cluster, v devcluster.GatewayValues, config []byte) error {
	kubeconfig, err := c.Kubeconfig(ctx, "system:node:"+v.NodeName, "system:nodes")
	if err != nil {
		return err
	}
	loaded, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of node %q: %w", v.NodeName, err)
	}
	auth := loaded.AuthInfos[loaded.Contexts[loaded.CurrentContext].AuthInfo]
	if err := os.MkdirAll(filepath.Dir(v.ConfigFile), 0o700); err != nil {
		return fmt.Errorf("making the directory of the hub of node %q: %w", v.NodeName, err)
	}
	for path, content := range map[string][]byte{
		v.CAFile: c.AdminConfig().CAData, v.CertificateFile: slices.Concat(auth.ClientCertificateData, auth.ClientKeyData), v.ConfigFile: config,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("writing %s of the hub of node %q: %w", filepath.Base(path), v.NodeName, err)
		}
	}
	return nil
}
