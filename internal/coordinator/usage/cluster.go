package usage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// maxHeader bounds the headers of a hub's answer.
const maxHeader = 16 << 10

// cluster reads nodes and pods at the API server of the pod, and the texts of kubelets at their hubs.
type cluster struct {
	nodes corev1client.NodeInterface
	meta  metadata.Getter
	o     Options
}

func newCluster(o Options) (*cluster, error) {
	config := rest.CopyConfig(o.Config)
	config.QPS = -1 // maxReads is the bound
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	return &cluster{nodes: core.Nodes(), meta: meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}), o: o}, nil
}

func (c *cluster) node(ctx context.Context, name string) (*nodeInfo, error) {
	node, err := c.nodes.Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("reading the Node: %w", err)
	}
	ips, err := governance.InternalIPs(node)
	if err != nil {
		return nil, err
	}
	return &nodeInfo{address: net.JoinHostPort(ips[0].String(), strconv.Itoa(governance.HubPort)), labels: node.Labels}, nil
}

func (c *cluster) pods(ctx context.Context, node string) (map[types.NamespacedName]map[string]string, error) {
	// Of a node the writer takes a bounded number of pods, of bounded size.
	list, err := c.meta.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of the node: %w", err)
	}
	pods := make(map[types.NamespacedName]map[string]string, len(list.Items))
	for i := range list.Items {
		pods[types.NamespacedName{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}] = list.Items[i].Labels
	}
	return pods, nil
}

func (c *cluster) text(ctx context.Context, address string) ([]byte, error) {
	config, err := c.tls()
	if err != nil {
		return nil, err
	}
	// A connection for each reading: most of the day there is none.
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics/resource", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return nil, fmt.Errorf("%s answers %d: %q", address, response.StatusCode, text)
	}
	return keep(response.Body)
}

// tls returns how hubs are reached: as the API server of the pod reaches them.
func (c *cluster) tls() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.o.CertFile, c.o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate for hubs: %w", err)
	}
	ca, err := readFile("the CA of the pool", c.o.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the file with the CA of the pool has no certificate")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}
